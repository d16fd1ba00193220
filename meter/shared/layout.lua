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

