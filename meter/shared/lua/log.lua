-- Sliding log. The state is a list of entries, each a time in µs and the sum of all amounts
-- taken until then, modulo 2^52. The first entry is out of view, so the amount in view is the
-- last sum minus the first.
--
-- Replies the amount taken, the amount that remains, the µs until the rest of n fits, -1 for
-- never, and the µs until the log is empty.
local wrap = 4503599627370496
local function entry(i)
  local at, total = string.match(call('LINDEX', key, i), '(%d+) (%d+)')
  return at + 0, total + 0
end
-- first returns the first entry of a range for which ok holds, or the last one. ok holds for all
-- entries after one for which it holds.
local function first(from, to, ok)
  while from < to do
    local middle = math.floor((from + to) / 2)
    if ok(entry(middle)) then
      to = middle
    else
      from = middle + 1
    end
  end
  return from
end

local size, base, last, total, now = call('LLEN', key), 0, 0, 0, us
if size > 0 then
  last, total = entry(-1)
  base = select(2, entry(0))
  if last - us > window then -- the clock went back far: count all at the current time
    call('DEL', key)
    call('RPUSH', key, string.format('0 %d', base), string.format('%d %d', us, total))
    call('PEXPIRE', key, string.format('%d', window / 1000 + 2))
    size, last = 2, us
  end
  now = math.max(us, last)
  if size > 1 and entry(1) <= now - window then
    local out = first(2, size, function(at) return at > now - window end) - 1
    call('LTRIM', key, out, -1)
    size = size - out
    base = select(2, entry(0))
  end
end
local used = (total - base) % wrap
local function remaining()
  if size > entries and last ~= now then
    return 0 -- no entry is left
  end
  return math.max(limit - used, 0)
end
local wanted, fits = n, remaining()
if n > fits then
  n = fits - fits % (unit or n)
end
if take and n > 0 then
  total = (total + n) % wrap
  local added = string.format('%d %d', now, total)
  if size == 0 then
    call('RPUSH', key, '0 0', added)
    size = 2
  elseif size > 1 and last == now then
    call('LSET', key, -1, added)
  else
    call('RPUSH', key, added)
    size = size + 1
  end
  last, used = now, used + n
  call('PEXPIRE', key, string.format('%d', (now - us + window) / 1000 + 2))
end
local rest, retry, reset = wanted - n, 0, 0
if rest > limit then
  retry = -1
elseif rest > remaining() then
  -- The first entry after whose end enough fits. At least one must end, to free an entry.
  retry = entry(first(1, size - 1, function(_, sum) return (sum - base) % wrap >= used + rest - limit end)) + window - us
end
if used > 0 then
  reset = last + window - us
end
local reply = string.format('%d %d %d %d', n, remaining(), retry, reset)
