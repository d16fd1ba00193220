-- Reads the budget KEYS[1] and changes nothing. Returns false if there is none,
-- otherwise its state, the size set by an operator, and then each host.

local got = redis.call('HMGET', KEYS[1], '=', '+')
if not got[1] and not got[2] then
	return false
end
local set = sound(unpack_size, got[2]) or {}
if not got[1] then
	return {{}, set}
end
local s = sound(unpack_state, got[1])
if not s then
	return redis.error_reply('ERR the record of the budget is damaged: the next call of a shaper replaces it')
end
local time = redis.call('TIME')
local now = max(time[1] * 1000000 + time[2] + s[SHIFT], s[TIME])

local function four(t, at)
	return t[at + 1], t[at + 2], t[at + 3], t[at + 4]
end

local late, sum = 0, {0, 0, 0, 0}
local replies = {0, set}
local fields = redis.call('HGETALL', KEYS[1])
for n = 1, #fields, 2 do
	local name = host_name(fields[n])
	local m = name and sound(unpack_host, fields[n + 1], now)
	if m then
		local is_late = now - m[SEEN] >= 3 * s[EVERY]
		if is_late then
			late = late + 1
		end
		local host = {name, now - m[CALLED], is_late and 1 or 0, m[WEIGHT], m[FLOOR], m[DEMAND + 1], m[DEMAND + 2]}
		for i = 1, 4 do
			host[7 + i], host[11 + i], host[15 + i] = most_held(s, m, i), m[RESCUE + i], m[SIZE + i]
			sum[i] = sum[i] + most_held(s, m, i)
		end
		replies[#replies + 1] = host
	end
end
local state = {s[EPOCH], now - s[TIME], s[EVERY], s[WITHIN], s[LEASE], now < s[LEARNS] and 1 or 0, s[REPLICAS], late, s[SMALLEST]}
for i = 1, 4 do
	state[9 + i], state[13 + i] = s[TOTAL + i], sum[i]
end
replies[1] = state
return replies
