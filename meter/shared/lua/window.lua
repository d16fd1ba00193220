-- Fixed window. The state is the number of its window since 1970 and what was taken in it.
--
-- As many whole units as fit are taken, up to n. Replies the window and what had been
-- taken in it before.
local function decide(key, take, n, unit, limit, window)
  local at, used = math.floor(us / window), 0
  local back = false
  local state = call('GET', key)
  if state then
    local last, count = string.match(state, '(%d+) (%d+)')
    if last - at == 0 or last - at == 1 then -- 1: the clock went back a little
      at, used = last + 0, count + 0
    elseif last - at > 1 then -- or far: what was taken counts now
      back, used = true, count + 0
    end
  end
  local fits = math.max(limit - used, 0)
  if fits < n then
    n = fits - fits % unit
  end
  local added = take and n or 0
  if back or added > 0 then
    call('SET', key, string.format('%d %d', at, used + added), 'PX', math.floor(((at + 1) * window - us) / 1000) + 2)
  end
  return n, at, used
end
