-- The first part of every script. It reads the server's clock once, in µs since 1970. That is
-- less than 2^51, so arithmetic with it is exact in Lua's doubles. Numbers leave a script
-- through string.format('%d', n), because tostring and .. keep only 14 digits.
--
-- An algorithm follows, either at the top level or in a function. Its variables are
--   key, n    the key, and the amount to take from it
--   take      whether to take n, or only check
--   unit      if not all of n fits, take as many whole units as fit; nil takes nothing
--   and three parameters of the limit.
-- It sets n to the amount that fits, and reply to the state before, numbers with spaces between.
local call = redis.call
local time = call('TIME')
local us = time[1] * 1000000 + time[2]
