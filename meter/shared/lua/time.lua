-- The first part of every script. The server's clock is read once, in µs since 1970:
-- less than 2^51, so all of its arithmetic is exact in Lua's doubles.
local call = redis.call
local time = call('TIME')
local us = time[1] * 1000000 + time[2]
