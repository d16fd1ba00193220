-- Token bucket and GCRA. The state is one integer, the time at which the bucket will be
-- full. Its unit is a tick of 1/per µs, of which a whole number pays for a token, so nothing
-- is ever rounded. It counts modulo a cycle, a power of two of µs that is at least four times
-- as long as the bucket takes to fill, so that it stays below 2^53.
--
-- n, unit and burst are in ticks. Replies the ticks that the bucket lacks.
local whole = cycle * per
local now = us % cycle * per
local lacks = call('GET', key)
lacks = lacks and (lacks - now) % whole or 0
local back = false
if lacks > burst then
  -- In the second half of the cycle the time is over. In the first the clock went back, and
  -- the bucket refills from now on.
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
