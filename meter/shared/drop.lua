-- Removes the host ARGV[1] from the budget KEYS[1], unless it called within its
-- lease. Returns the time since its last call and the lease, both in
-- microseconds, and whether it was removed; false if there is no such host.

local name = '@' .. ARGV[1]
local got = redis.call('HMGET', KEYS[1], '=', name)
if not got[1] or not got[2] then
	return false
end
local s, m, ago, lease = sound(unpack_state, got[1]), nil, 0, 0
if s then
	local time = redis.call('TIME')
	local now = max(time[1] * 1000000 + time[2] + s[SHIFT], s[TIME])
	m = sound(unpack_host, got[2], now)
	ago, lease = m and now - m[CALLED] or s[LEASE], s[LEASE]
end
if ago < lease then
	return {ago, lease, 0}
end
redis.call('HDEL', KEYS[1], name)
if m then
	uncount(s, m)
	s[COUNT] = max(s[COUNT] - 1, 0)
	redis.call('HSET', KEYS[1], '=', cmsgpack.pack(s))
end
return {ago, lease, 1}
