-- The store's side of the lease protocol: Store.Call of lease/store.go, step by step
-- and in the same arithmetic, for each budget in KEYS. ARGV has ARGS values for each.
-- Times are in microseconds. All whole numbers are below 2^53.
--
-- A budget is a hash, with values packed by cmsgpack: '=' is its state, '+' the size
-- that an operator set, '@NAME' a host. Amounts are four numbers: the rates of both
-- buckets, then their bursts.

local floor, min, max = math.floor, math.min, math.max
local ARGS, MAX_HOSTS, ROUNDS, MILLION, DAY = 24, 4096, 16, 1000000, 86400000

-- Refusals, in the order of lease.Refusal.
local NAME_USED, INTERVAL, TOO_MANY, STALE = 1, 2, 3, 4

-- Where a host has what. SIZE and those after it are followed by their numbers.
local INSTANCE, SEQUENCE, SEEN, CALLED, WEIGHT, FLOOR, PART = 1, 2, 3, 4, 5, 6, 7
local SIZE, HOLDS, RESCUE, DEMAND = 7, 11, 15, 19

-- server is the replication ID and the number of replicas: '' and -1 without the right to ask.
local function server()
	local info = redis.pcall('INFO', 'replication')
	if type(info) ~= 'string' then
		return '', -1
	end
	return string.match(info, 'master_replid:(%w+)') or '', tonumber(string.match(info, 'connected_slaves:(%d+)')) or -1
end

-- held is Store.held for number i of the four.
local function held(s, m, i)
	if m[CALLED] >= s.tick or s.tick - m[SEEN] < 3 * s.interval then
		return m[HOLDS + i]
	elseif s.tick - m[CALLED] >= s.lease then
		return m[RESCUE + i]
	end
	return max(m[HOLDS + i], m[RESCUE + i])
end

local function add(s, m)
	for i = 1, 4 do
		s.sum[i] = s.sum[i] + m[HOLDS + i]
	end
end

local function subtract(s, m)
	for i = 1, 4 do
		s.sum[i] = s.sum[i] - held(s, m, i)
	end
end

-- clock is Store.clock. It says, too, whether the clock went back, which changes all hosts.
local function clock(s, now, key)
	local back = false
	if now > s.time + 2 * s.interval then
		s.learns = now + s.lease
	elseif now < s.time - s.interval then
		back = true
		s.learns = now + s.lease
		s.tick = now - s.interval
		local all = redis.call('HGETALL', key)
		for i = 1, #all, 2 do
			if string.sub(all[i], 1, 1) == '@' then
				local m = cmsgpack.unpack(all[i + 1])
				m[SEEN], m[CALLED] = min(m[SEEN], now), min(m[CALLED], s.tick)
				redis.call('HSET', key, all[i], cmsgpack.pack(m))
			end
		end
	else
		now = max(now, s.time)
	end
	s.time = now
	return now, back
end

-- paid is Store.paid.
local function paid(s, i)
	if s.size[i] == 0 then
		return 1
	end
	return i
end

local function fill(s, present, i, rate, weight)
	local level = rate / max(weight, 1)
	for _ = 1, ROUNDS do
		local rest, wanting = rate, 0
		for _, m in ipairs(present) do
			if m[DEMAND + i] <= m[WEIGHT] * level then
				rest = rest - m[DEMAND + i]
			else
				wanting = wanting + m[WEIGHT]
			end
		end
		if wanting == 0 then
			s.level[i] = rate
			return rest
		end
		if rest / wanting <= level then
			break
		end
		level = rest / wanting
	end
	s.level[i] = level
	return 0
end

-- look is Store.look. mine is the host that calls, which is not in the hash yet.
local function look(s, now, key, name, mine, set)
	local id, replicas = server()
	if id ~= s.server then
		s.server, s.learns = id, now + s.lease
	end
	s.tick, s.replicas = now, replicas
	s.sum, s.present, s.late, s.smallest = {0, 0, 0, 0}, 0, 0, ''
	local reserved, weight, weights, least, part = {0, 0, 0, 0}, 0, 0, 0, 0
	local smallest, smallest_name, same = nil, '', true
	local present = {}
	local all = redis.call('HGETALL', key)
	all[#all + 1], all[#all + 2] = name, mine
	for n = 1, #all, 2 do
		local field, m = all[n], all[n + 1]
		if m == mine or field ~= name and string.byte(field) == 64 then
			if m ~= mine then
				m = cmsgpack.unpack(m)
			end
			local late = now - m[SEEN] >= 3 * s.interval
			for i = 1, 4 do
				local holds = held(s, m, i)
				s.sum[i] = s.sum[i] + holds
				if late then
					reserved[i] = reserved[i] + holds
				end
			end
			weights = weights + m[WEIGHT]
			if late then
				s.late = s.late + 1
			else
				present[#present + 1] = m
				weight = weight + m[WEIGHT]
				least = max(least, m[FLOOR])
			end
			if not smallest then
				smallest, smallest_name, part = m, field, m[PART]
				s.size = {m[SIZE + 1], m[SIZE + 2], m[SIZE + 3], m[SIZE + 4]}
			else
				for i = 1, 4 do
					same = same and m[SIZE + i] == smallest[SIZE + i]
					s.size[i] = min(s.size[i], m[SIZE + i])
				end
				part = min(part, m[PART])
				local less = m[SIZE + 1] - smallest[SIZE + 1]
				if less < 0 or less == 0 and field < smallest_name then
					smallest, smallest_name = m, field
				end
			end
		end
	end
	s.present = #present
	if not same then
		s.smallest = string.sub(smallest_name, 2)
	end
	s.size = set or s.size
	local free = {}
	for i = 1, 4 do
		free[i] = max(s.size[i] - reserved[i], 0)
	end
	for i = 1, 2 do
		local reserve = floor(free[i] / 200)
		local rest = fill(s, present, i, free[i] - reserve, weight)
		rest = rest * (#present + 1) / (2 * max(#present, 1))
		s.spare[i] = (reserve + rest) / max(weight, 1)
		s.floor[i] = min(least, floor(free[i + 2] / (4 * max(#present, 1))))
		s.burst[i] = (free[i + 2] - #present * s.floor[i]) / max(free[paid(s, i)], 1)
	end
	for i = 1, 4 do
		s.rescue[i] = s.size[i] * part / MILLION / max(weights, 1)
	end
	redis.call('PEXPIRE', key, DAY)
end

-- fair is Store.fair.
local function fair(s, m, demand1, demand2)
	local a = {}
	local demand = {demand1, demand2}
	for i = 1, 2 do
		a[i] = min(min(demand[i], floor(m[WEIGHT] * s.level[i])) + floor(m[WEIGHT] * s.spare[i]), s.size[i])
	end
	for i = 1, 2 do
		a[i + 2] = min(floor(s.floor[i] + s.burst[i] * a[paid(s, i)]), s.size[i + 2])
	end
	return a
end

local function serve(key, at, now)
	local function arg(i)
		return tonumber(ARGV[at + i])
	end
	local function keep(s, reply)
		redis.call('HSET', key, '=', cmsgpack.pack(s))
		return reply
	end
	local name = '@' .. ARGV[at + 1]
	local instance, sequence, seen, interval, deadline = arg(2), arg(3), arg(4), arg(5), arg(6)
	local got = redis.call('HMGET', key, '=', '+', name)
	local s, set, m = got[1] and cmsgpack.unpack(got[1]), got[2] and cmsgpack.unpack(got[2]), got[3] and cmsgpack.unpack(got[3])
	if not s then
		redis.call('DEL', key)
		if set then
			redis.call('HSET', key, '+', got[2])
		end
		m = nil
		s = {
			epoch = now, time = now, interval = interval, deadline = deadline, count = 0, present = 0, tick = 0,
			size = {arg(10), arg(11), arg(12), arg(13)}, sum = {0, 0, 0, 0},
			level = {0, 0}, spare = {0, 0}, floor = {0, 0}, burst = {0, 0}, rescue = {0, 0, 0, 0},
		}
		s.server = server()
		s.lease = 3 * interval + 2 * deadline + floor(interval / 4)
		s.learns = now + s.lease
	end
	local back
	now, back = clock(s, now, key)
	if m and back then
		m = cmsgpack.unpack(redis.call('HGET', key, name))
	end
	if interval ~= s.interval or deadline ~= s.deadline then
		if s.present > 1 or s.present == 1 and (not m or s.tick - m[SEEN] >= 3 * s.interval) then
			return keep(s, {INTERVAL})
		end
		s.interval, s.deadline = interval, deadline
		s.lease = 3 * interval + 2 * deadline + floor(interval / 4)
		s.tick = min(s.tick, now - interval)
	end
	if not m then
		if s.count >= MAX_HOSTS then
			return keep(s, {TOO_MANY})
		end
		m = {instance, 0, now, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
		s.count = s.count + 1
	elseif m[INSTANCE] ~= instance then
		if now - m[CALLED] < s.lease then
			return keep(s, {NAME_USED})
		end
		subtract(s, m)
		m = {instance, 0, now, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
	elseif sequence <= m[SEQUENCE] then
		return keep(s, {STALE})
	else
		subtract(s, m)
	end
	if ARGV[at + 24] == '1' then
		s.count = s.count - 1
		redis.call('HDEL', key, name)
		return keep(s, {0, now, s.epoch})
	end
	local before1, before2 = m[DEMAND + 1], m[DEMAND + 2]
	m[SEQUENCE], m[CALLED], m[SEEN] = sequence, now, min(max(m[SEEN], seen), now)
	m[WEIGHT], m[FLOOR], m[PART] = arg(7), arg(8), arg(9)
	for i = 1, 14 do -- size, holds, rescue, demand
		m[SIZE + i] = arg(9 + i)
	end
	local holds = {m[HOLDS + 1], m[HOLDS + 2], m[HOLDS + 3], m[HOLDS + 4]}
	local deaf = now - m[SEEN] >= 3 * s.interval
	if deaf then
		for i = 1, 4 do
			m[HOLDS + i] = max(m[HOLDS + i], m[RESCUE + i])
		end
	end
	add(s, m)
	if not set then
		for i = 1, 4 do
			s.size[i] = min(s.size[i], m[SIZE + i])
		end
	end
	if now - s.tick >= floor(s.interval / 2) then
		look(s, now, key, name, m, set)
		before1, before2 = m[DEMAND + 1], m[DEMAND + 2]
	end
	local want, must = fair(s, m, m[DEMAND + 1], m[DEMAND + 2]), fair(s, m, before1, before2)
	local learning = now < s.learns
	for i = 1, 4 do
		local free = s.size[i] - s.sum[i]
		if free < 0 then
			want[i] = min(want[i], must[i], holds[i])
		elseif learning then
			want[i] = min(want[i], holds[i])
		else
			want[i] = min(want[i], m[HOLDS + i] + free)
		end
	end
	local rescue = {}
	for i = 1, 4 do
		rescue[i] = floor(m[WEIGHT] * s.rescue[i])
		s.sum[i] = s.sum[i] - m[HOLDS + i]
		m[HOLDS + i], m[RESCUE + i] = max(m[HOLDS + i], want[i]), max(m[RESCUE + i], rescue[i])
		if deaf then
			m[HOLDS + i] = max(m[HOLDS + i], m[RESCUE + i])
		end
	end
	add(s, m)
	redis.call('HSET', key, '=', cmsgpack.pack(s), name, cmsgpack.pack(m))
	return {
		0, now, s.epoch, want[1], want[2], want[3], want[4], rescue[1], rescue[2], rescue[3], rescue[4],
		floor(m[WEIGHT] * s.spare[1]), floor(m[WEIGHT] * s.spare[2]), s.size[1], s.size[2], s.size[3], s.size[4],
		s.count, s.late, learning and 1 or 0, s.replicas, s.smallest,
	}
end

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local replies = {}
for i, key in ipairs(KEYS) do
	replies[i] = serve(key, (i - 1) * ARGS, now)
end
return replies
