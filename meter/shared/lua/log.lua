-- Sliding log. The state is a list of entries, each a time in µs and the total of all that
-- was ever taken up to it, modulo 2^52. The first entry is out of view: what is in view is
-- the last total less the first.
--
-- As many whole units as fit are taken, up to n. Replies what was taken, what remains, the
-- µs until the rest fits, or -1 if it never does, and the µs until the log is empty.
local function decide(key, take, n, unit, limit, window, entries)
  local wrap = 4503599627370496
  local function entry(i)
    local at, total = string.match(call('LINDEX', key, i), '(%d+) (%d+)')
    return at + 0, total + 0
  end
  -- find returns the first entry from an index on for which ok holds, which stays so.
  local function find(from, to, ok)
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

  local size, first, last, total, now = call('LLEN', key), 0, 0, 0, us
  if size > 0 then
    last, total = entry(-1)
    if last - us > window then -- the clock went back by more than a window
      local _, begin = entry(0)
      local used = (total - begin) % wrap
      call('DEL', key)
      call('RPUSH', key, '0 0', string.format('%d %d', us, used))
      call('PEXPIRE', key, math.floor(window / 1000) + 2)
      size, last, total = 2, us, used
    end
    now = math.max(us, last)
    if size > 1 and entry(1) <= now - window then
      local gone = find(2, size, function(at) return at > now - window end) - 1
      call('LTRIM', key, gone, -1)
      size = size - gone
    end
    local _, begin = entry(0)
    first = begin
  end
  local used = (total - first) % wrap
  local fits = math.max(limit - used, 0)
  if size > entries and last ~= now then
    fits = 0
  end
  local wanted = n
  if fits < n then
    n = fits - fits % unit
  end
  local taken = n
  if not take then
    n = 0
  end
  if n > 0 then
    total = (total + n) % wrap
    local added = string.format('%d %d', now, total)
    if size == 0 then
      call('RPUSH', key, '0 0', added)
      size = 2
    elseif last == now then
      call('LSET', key, -1, added)
    else
      call('RPUSH', key, added)
      size = size + 1
    end
    last, used = now, used + n
    call('PEXPIRE', key, math.floor((now - us + window) / 1000) + 2)
  end

  local remains, retry, reset = math.max(limit - used, 0), 0, 0
  if size > entries and last ~= now then
    remains = 0
  end
  if size > 1 and used > 0 then
    reset = last + window - us
  end
  local rest = wanted - n
  if rest > limit then
    retry = -1
  elseif rest > remains then
    -- The entry with which enough goes out of view, and one at least.
    local i = find(1, size - 1, function(_, sum) return (sum - first) % wrap >= used + rest - limit end)
    retry = entry(i) + window - us
  end
  return taken, remains, retry, reset
end
