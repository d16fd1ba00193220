-- Every script begins with this. The server's clock is read once, in µs since 1970: less
-- than 2^51, so all arithmetic with it is exact in Lua's doubles. Numbers leave a script as
-- string.format('%d', n): tostring and .. would cut them to 14 digits.
--
-- Then comes an algorithm, alone or within a function, with
--   key, n: what is to be taken of which key; take says whether it is taken
--   unit: if not all of n fits, as many whole units are taken as fit; nil for none
--   three parameters of the limit
-- It sets n to what fits, and reply to the state before, as numbers with spaces between.
local call = redis.call
local time = call('TIME')
local us = time[1] * 1000000 + time[2]
