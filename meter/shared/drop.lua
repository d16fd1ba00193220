-- Removes the host ARGV[1] from the budget KEYS[1], unless it called within its
-- lease. Returns the time since its last call and the lease, both in
-- microseconds, and whether it was removed; false if there is no such host.

local name = '@' .. ARGV[1]
local got = redis.call('HMGET', KEYS[1], '=', name)
if not got[1] or not got[2] then
	return false
end
local s, m = cmsgpack.unpack(got[1]), cmsgpack.unpack(got[2])
local time = redis.call('TIME')
local ago = max(time[1] * 1000000 + time[2] + s[SHIFT], s[TIME]) - m[CALLED]
if ago < s[LEASE] then
	return {ago, s[LEASE], 0}
end
uncount(s, m)
s[COUNT] = s[COUNT] - 1
redis.call('HDEL', KEYS[1], name)
redis.call('HSET', KEYS[1], '=', cmsgpack.pack(s))
return {ago, s[LEASE], 1}
