-- The store's side of the lease protocol, for each budget in KEYS: the steps
-- and the arithmetic of Store.Call in lease/store.go. ARGV has ARGS values for
-- each budget. Times are in microseconds. All whole numbers are below 2^53.
-- survey counts everything again that other calls keep up to date, so that a
-- wrong number in the budget's record lasts for half an interval.

-- server returns the replication ID and the number of replicas that are online:
-- '' and -1 without the right to ask.
local function server()
	local info = redis.pcall('INFO', 'replication')
	if type(info) ~= 'string' then
		return '', -1
	end
	local _, replicas = string.gsub(info, 'state=online', '')
	return string.match(info, 'master_replid:(%w+)') or '', replicas
end

-- clock is Store.clock.
local function clock(s, server)
	local now = server + s[SHIFT]
	if now < s[TIME] then
		s[SHIFT] = s[SHIFT] + s[TIME] - now
		now = s[TIME]
		s[LEARNS] = now + s[LEASE]
	elseif now > s[TIME] + 2 * s[EVERY] then
		s[LEARNS] = now + s[LEASE]
	end
	s[TIME] = now
	return now
end

-- paid is Store.paid.
local function paid(s, i)
	if s[TOTAL + i] == 0 then
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
			s[LEVEL + i] = rate
			return rest
		end
		if rest / wanting <= level then
			break
		end
		level = rest / wanting
	end
	s[LEVEL + i] = level
	return 0
end

local function fair_rate(s, m, i, demand1, demand2)
	local demand = i == 1 and demand1 or demand2
	return min(min(demand, floor(m[WEIGHT] * s[LEVEL + i])) + floor(m[WEIGHT] * s[SPARE + i]), s[TOTAL + i])
end

-- fair is Store.fair for number i of the four. demand1 and demand2 are rates.
local function fair(s, m, i, demand1, demand2)
	if i > 2 then
		local rate = fair_rate(s, m, paid(s, i - 2), demand1, demand2)
		return min(floor(s[LEAST + i - 2] + s[BURST + i - 2] * rate), s[TOTAL + i])
	end
	return fair_rate(s, m, i, demand1, demand2)
end

-- curbs is Store.curbs.
local function curbs(s, present, free)
	for i = 1, 4 do
		local keeps, beyond = 0, 0
		for _, m in ipairs(present) do
			local keep = min(m[HOLDS + i], m[RESCUE + i])
			keeps = keeps + keep
			beyond = beyond + max(fair(s, m, i, m[DEMAND + 1], m[DEMAND + 2]) - keep, 0)
		end
		s[CURB + i] = min(max(free[i] - keeps, 0) / max(beyond, 1), 1)
	end
end

-- survey is Store.survey. mine is the calling host, which is not in the hash
-- yet.
local function survey(s, now, key, name, mine, set)
	local id, replicas = server()
	if id ~= s[SERVER] then
		s[SERVER], s[LEARNS] = id, now + s[LEASE]
	end
	s[TICK], s[REPLICAS] = now, replicas
	s[COUNT], s[LATE], s[SMALLEST] = 0, 0, ''
	for i = 1, 4 do
		s[SUM + i], s[RESCUES + i] = 0, 0
	end
	local reserved, weight, weights, least, part = {0, 0, 0, 0}, 0, 0, 0, 0
	local smallest, smallest_name, same = nil, '', true
	local present = {}
	local fields = redis.call('HGETALL', key)
	fields[#fields + 1], fields[#fields + 2] = name, mine
	for n = 1, #fields, 2 do
		local field, m = fields[n], fields[n + 1]
		if m ~= mine then
			m = field ~= name and string.byte(field) == 64 and host_name(field) and sound(unpack_host, m, now)
		end
		if not m and field ~= name and field ~= '=' and field ~= '+' then
			-- Nobody knows what the host of a damaged record holds. It reports that with its next call.
			redis.call('HDEL', key, field)
			s[LEARNS] = now + s[LEASE]
		elseif m then
			s[COUNT] = s[COUNT] + 1
			local late = now - m[SEEN] >= 3 * s[EVERY]
			for i = 1, 4 do
				local holds = most_held(s, m, i)
				s[SUM + i] = s[SUM + i] + holds
				if m ~= mine then -- the caller adds its own
					s[RESCUES + i] = s[RESCUES + i] + m[RESCUE + i]
				end
				if late then
					reserved[i] = reserved[i] + holds
				end
			end
			weights = weights + m[WEIGHT]
			if late then
				s[LATE] = s[LATE] + 1
			else
				present[#present + 1] = m
				weight = weight + m[WEIGHT]
				least = max(least, m[FLOOR])
			end
			if not smallest then
				smallest, smallest_name, part = m, field, m[PART]
				for i = 1, 4 do
					s[TOTAL + i] = m[SIZE + i]
				end
			else
				for i = 1, 4 do
					same = same and m[SIZE + i] == smallest[SIZE + i]
					s[TOTAL + i] = min(s[TOTAL + i], m[SIZE + i])
				end
				part = min(part, m[PART])
				local less, i = 0, 1
				while less == 0 and i <= 4 do
					less, i = m[SIZE + i] - smallest[SIZE + i], i + 1
				end
				if less < 0 or less == 0 and field < smallest_name then
					smallest, smallest_name = m, field
				end
			end
		end
	end
	s[PRESENT] = #present
	if not same then
		s[SMALLEST] = string.sub(smallest_name, 2)
	end
	local free = {}
	for i = 1, 4 do
		s[TOTAL + i] = set and set[i] or s[TOTAL + i]
		free[i] = max(s[TOTAL + i] - reserved[i], 0)
	end
	for i = 1, 2 do
		local reserve = floor(free[i] / 200)
		local rest = fill(s, present, i, free[i] - reserve, weight)
		rest = rest * (#present + 1) / (2 * max(#present, 1))
		s[SPARE + i] = (reserve + rest) / max(weight, 1)
		s[LEAST + i] = min(least, floor(free[i + 2] / (4 * max(#present, 1))))
		s[BURST + i] = (free[i + 2] - #present * s[LEAST + i]) / max(free[paid(s, i)], 1)
	end
	local over = false
	for i = 1, 4 do
		s[SAVED + i] = s[TOTAL + i] * part / MILLION / max(weights, 1)
		s[CURB + i] = 1
		over = over or s[SUM + i] > s[TOTAL + i]
	end
	if over then
		curbs(s, present, free)
	end
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
	local lease = lease_of(interval, deadline)
	local got = redis.call('HMGET', key, '=', '+', name)
	local s, set, m = sound(unpack_state, got[1]), sound(unpack_size, got[2]), nil
	if not s then
		got[3] = false
		s = {now, now, now + lease, 0, interval, deadline, lease, 0, 0, 0, 0}
		for i = 1, 4 do
			s[TOTAL + i] = arg(9 + i)
		end
		for i = SUM + 1, CURB + 4 do
			s[i] = 0
		end
		s[SMALLEST] = ''
		s[SERVER] = server()
	end
	now = clock(s, now)
	if interval ~= s[EVERY] or deadline ~= s[WITHIN] then
		if now - s[TICK] < s[LEASE] then
			return keep(s, {INTERVAL})
		end
		s[EVERY], s[WITHIN], s[LEASE], s[LEARNS] = interval, deadline, lease, now + lease
		s[TICK] = min(s[TICK], now - interval)
	end
	if got[3] then
		m = sound(unpack_host, got[3], now)
		if not m then -- as in survey
			s[LEARNS], s[TICK] = now + s[LEASE], min(s[TICK], now - s[EVERY])
		end
	end
	if not m then
		if s[COUNT] >= MAX_HOSTS then
			return keep(s, {TOO_MANY})
		end
		m = {instance, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
		s[COUNT] = s[COUNT] + 1
	elseif m[INSTANCE] ~= instance then
		if now - m[CALLED] < s[LEASE] then
			return keep(s, {NAME_USED})
		end
		uncount(s, m)
		m = {instance, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
	elseif sequence <= m[SEQUENCE] then
		return keep(s, {STALE})
	else
		uncount(s, m)
	end
	if ARGV[at + 24] == '1' then
		s[COUNT] = max(s[COUNT] - 1, 0)
		redis.call('HDEL', key, name)
		return keep(s, {0, now, s[EPOCH]})
	end
	local before1, before2, first = m[DEMAND + 1], m[DEMAND + 2], m[SEQUENCE] == 0
	m[SEQUENCE], m[CALLED] = sequence, now
	if seen <= now then
		m[SEEN] = max(m[SEEN], seen)
	end
	m[WEIGHT], m[FLOOR], m[PART] = arg(7), arg(8), arg(9)
	for i = 1, 14 do -- size, holds, rescue, demand
		m[SIZE + i] = arg(9 + i)
	end
	local holds = {m[HOLDS + 1], m[HOLDS + 2], m[HOLDS + 3], m[HOLDS + 4]}
	local deaf = now - m[SEEN] >= 3 * s[EVERY]
	if deaf then
		for i = 1, 4 do
			m[HOLDS + i] = max(m[HOLDS + i], m[RESCUE + i])
		end
	end
	add(s, m)
	if not set then
		for i = 1, 4 do
			s[TOTAL + i] = min(s[TOTAL + i], m[SIZE + i])
		end
	end
	local surveying = now - s[TICK] >= floor(s[EVERY] / 2)
	if surveying then
		survey(s, now, key, name, m, set)
		before1, before2 = m[DEMAND + 1], m[DEMAND + 2]
	end
	local want, learning = {}, now < s[LEARNS]
	for i = 1, 4 do
		local free = s[TOTAL + i] - s[SUM + i]
		want[i] = fair(s, m, i, m[DEMAND + 1], m[DEMAND + 2])
		if free < 0 then
			local must, keep = fair(s, m, i, before1, before2), min(holds[i], m[RESCUE + i])
			if must > keep then
				must = keep + floor(s[CURB + i] * (must - keep))
			end
			want[i] = min(want[i], must, holds[i])
		elseif learning or deaf and not first then
			want[i] = min(want[i], holds[i])
		else
			want[i] = min(want[i], m[HOLDS + i] + free)
		end
	end
	local rescue = {}
	for i = 1, 4 do
		rescue[i] = floor(m[WEIGHT] * s[SAVED + i])
		if learning then
			rescue[i] = min(rescue[i], m[RESCUE + i])
		end
		rescue[i] = min(rescue[i], max(s[TOTAL + i] - max(s[RESCUES + i], 0), 0))
		s[SUM + i] = s[SUM + i] - m[HOLDS + i]
		m[HOLDS + i], m[RESCUE + i] = max(m[HOLDS + i], want[i]), max(m[RESCUE + i], rescue[i])
		if deaf then
			m[HOLDS + i] = max(m[HOLDS + i], m[RESCUE + i])
		end
		s[RESCUES + i] = s[RESCUES + i] + m[RESCUE + i]
	end
	add(s, m)
	redis.call('HSET', key, '=', cmsgpack.pack(s), name, cmsgpack.pack(m)) -- the first write: later ones are not refused if memory is full
	if surveying and set then
		redis.call('PERSIST', key)
	elseif surveying then
		redis.call('PEXPIRE', key, DAY)
	end
	return {
		0, now, s[EPOCH], want[1], want[2], want[3], want[4], rescue[1], rescue[2], rescue[3], rescue[4],
		floor(m[WEIGHT] * s[SPARE + 1]), floor(m[WEIGHT] * s[SPARE + 2]), s[TOTAL + 1], s[TOTAL + 2], s[TOTAL + 3], s[TOTAL + 4],
		s[COUNT], min(s[LATE], s[COUNT]), learning and 1 or 0, s[REPLICAS], s[SMALLEST],
	}
end

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local replies = {}
for i, key in ipairs(KEYS) do
	replies[i] = serve(key, (i - 1) * ARGS, now)
end
return replies
