-- The first part of all scripts of budgets.
--
-- A budget is a hash with values packed by cmsgpack: '=' is its state, '+' the
-- size set by an operator, '@NAME' a host. Amounts are four numbers: the rates
-- of both buckets, then their bursts.

local floor, min, max = math.floor, math.min, math.max
local ARGS, MAX_HOSTS, ROUNDS, MILLION, DAY = 24, 4096, 16, 1000000, 86400000

-- Refusals, in the order of lease.Refusal.
local NAME_USED, INTERVAL, TOO_MANY, STALE = 1, 2, 3, 4

-- Indexes of a host's fields. A field of several numbers starts one after its
-- index.
local INSTANCE, SEQUENCE, SEEN, CALLED, WEIGHT, FLOOR, PART = 1, 2, 3, 4, 5, 6, 7
local SIZE, HOLDS, RESCUE, DEMAND = 7, 11, 15, 19

-- Indexes of a budget's fields, those of lease.Store in order, and its lease().
local EPOCH, TIME, LEARNS, TICK, EVERY, WITHIN, LEASE, PRESENT, LATE, COUNT, REPLICAS = 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11
local TOTAL, SUM, LEVEL, SPARE, LEAST, BURST, SAVED = 11, 15, 19, 21, 23, 25, 27
local SMALLEST, SERVER, SHIFT, RESCUES, CURB = 32, 33, 34, 34, 38

-- Whoever can write to one budget can write anything. A record that these scripts cannot have
-- written counts as missing. LIMIT is lease.MaxRate and lease.MaxBurst. Times are at most LATEST,
-- so that sums with them are exact.
local LIMIT, EXACT, LATEST = 1099511627776, 9007199254740992, 4503599627370496

-- all reports whether fields first to last of a record are numbers between least and most. It
-- raises an error if one is no number.
local function all(t, first, last, least, most)
	for i = first, last do
		if not (t[i] >= least and t[i] <= most) then -- also if it is NaN
			return false
		end
	end
	return true
end

local function text(v)
	return type(v) == 'string' and #v <= 128
end

local function lease_of(interval, deadline)
	return 3 * interval + 2 * deadline + floor(interval / 4)
end

-- sound returns the record that check unpacks, or nil if there is none, or check rejects it or
-- raises an error.
local function sound(check, packed, now)
	local ok, record = pcall(check, packed, now)
	return ok and record or nil
end

local function unpack_state(packed)
	local s = cmsgpack.unpack(packed)
	local good = #s == CURB + 4 and all(s, EPOCH, EPOCH, 0, s[TIME]) and all(s, TIME, TIME, 0, LATEST)
		and all(s, EVERY, EVERY, 1000, 60000000) and all(s, WITHIN, WITHIN, 100, s[EVERY]) and s[LEASE] == lease_of(s[EVERY], s[WITHIN])
		and all(s, LEARNS, LEARNS, 0, s[TIME] + s[LEASE]) and all(s, TICK, TICK, -EXACT, s[TIME])
		and all(s, PRESENT, COUNT, 0, MAX_HOSTS) and all(s, REPLICAS, REPLICAS, -1, EXACT)
		and all(s, TOTAL + 1, TOTAL + 4, 0, LIMIT) and all(s, SUM + 1, SUM + 4, -EXACT, EXACT)
		and all(s, LEVEL + 1, SAVED + 4, 0, LIMIT) and text(s[SMALLEST]) and text(s[SERVER])
		and all(s, SHIFT, SHIFT, 0, EXACT) and all(s, RESCUES + 1, RESCUES + 4, -EXACT, EXACT) and all(s, CURB + 1, CURB + 4, 0, 1)
	return good and s
end

local function unpack_host(packed, now)
	local m = cmsgpack.unpack(packed)
	local good = #m == DEMAND + 2 and all(m, INSTANCE, SEQUENCE, 0, EXACT) and all(m, SEEN, CALLED, 0, now)
		and all(m, WEIGHT, WEIGHT, 1, 1000) and all(m, FLOOR, FLOOR, 0, LIMIT) and all(m, PART, PART, 0, MILLION)
		and all(m, SIZE + 1, DEMAND + 2, 0, LIMIT)
	return good and m
end

local function unpack_size(packed)
	local size = cmsgpack.unpack(packed)
	return #size == 4 and all(size, 1, 4, 0, LIMIT) and size
end

-- host_name returns the name of a host from its field, or nil.
local function host_name(field)
	return #field <= 129 and string.match(field, '^@([%w._:@-]+)$')
end

-- most_held is Store.mostHeld for number i of the four.
local function most_held(s, m, i)
	if m[CALLED] >= s[TICK] or s[TICK] - m[SEEN] < 3 * s[EVERY] then
		return m[HOLDS + i]
	elseif s[TICK] - m[CALLED] >= s[LEASE] then
		return m[RESCUE + i]
	end
	return max(m[HOLDS + i], m[RESCUE + i])
end

local function add(s, m)
	for i = 1, 4 do
		s[SUM + i] = s[SUM + i] + m[HOLDS + i]
	end
end

-- uncount is Store.uncount.
local function uncount(s, m)
	for i = 1, 4 do
		s[SUM + i] = s[SUM + i] - most_held(s, m, i)
		s[RESCUES + i] = s[RESCUES + i] - m[RESCUE + i]
	end
end

