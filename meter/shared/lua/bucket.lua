-- Token bucket and GCRA. The state is one integer, the time at which the bucket will be
-- full. Its unit is a tick of 1/per µs, in which a whole number of ticks pays for a token,
-- so nothing is ever rounded. It is kept modulo a cycle, a power of two of µs that is
-- four times as long as the bucket takes to fill, so that it stays below 2^52.
--
-- cost and unit are in ticks: as many whole units as fit are taken, up to cost. Replies
-- the ticks that the bucket lacked before.
local function decide(key, take, cost, unit, burst, per, cycle)
  local now = us % cycle * per
  local lacks = call('GET', key)
  lacks = lacks and (lacks - now) % (cycle * per) or 0
  if lacks * 2 > cycle * per then
    lacks = 0 -- the time is over
  end
  local back = lacks > burst -- the clock went back: the bucket refills from now on
  if back then
    lacks = burst
  end
  local fits = burst - lacks
  if fits < cost then
    cost = fits - fits % unit
  end
  if back or take and cost > 0 then
    local full = lacks + cost
    call('SET', key, string.format('%d', (now + full) % (cycle * per)), 'PX', math.floor(full / per / 1000) + 2)
  end
  return cost, lacks
end
