-- Sets the size of the budget KEYS[1] to the four numbers of ARGV. Without
-- numbers, the hosts' policies decide again. Returns whether there was a size
-- before.

if #ARGV == 0 then
	redis.call('PEXPIRE', KEYS[1], DAY)
	return redis.call('HDEL', KEYS[1], '+')
end
local size = {}
for i = 1, 4 do
	size[i] = tonumber(ARGV[i])
end
redis.call('PERSIST', KEYS[1])
return 1 - redis.call('HSET', KEYS[1], '+', cmsgpack.pack(size))
