-- Token bucket and GCRA. The state is one integer: the time at which the bucket will be full,
-- in ticks of 1/per µs. A token costs a whole number of ticks, so nothing is ever rounded.
-- Times are modulo a cycle, a power of two of µs and at least four times the time to fill the
-- bucket, so they stay below 2^53.
--
-- n, unit and burst are in ticks. Replies the ticks that the bucket lacks to be full.
local whole = cycle * per
local now = us % cycle * per
local lacks = call('GET', key)
lacks = lacks and (lacks - now) % whole or 0
local back = false
if lacks > burst then
  -- In the second half of the cycle, the time has passed. In the first half, the clock went
  -- back: the bucket counts as empty now.
  back = lacks * 2 <= whole
  lacks = back and burst or 0
end
local full = lacks + n
if full > burst then
  local fits = burst - lacks
  n = fits - fits % (unit or n)
  full = lacks + n
end
if take and n > 0 or back then
  call('SET', key, string.format('%d', now + full), 'PX', string.format('%d', full / per / 1000 + 2))
end
local reply = string.format('%d', lacks)
