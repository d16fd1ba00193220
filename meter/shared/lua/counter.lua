-- Sliding window counter. The state is the number of the window since 1970, the amount taken in
-- it, and the amount taken in the window before.
--
-- The window before counts by the part of it that is in view, rounded up. That product is
-- computed in two parts, for a multiple of split and for the rest, to stay below 2^52.
--
-- Replies the same three.
local at, used, before = math.floor(us / window), 0, 0
local back = false
local state = call('GET', key)
if state then
  local last, count, prior = string.match(state, '(%d+) (%d+) (%d+)')
  if last - at == 0 or last - at == 1 then -- 1: the clock went back a little
    at, used, before = last + 0, count + 0, prior + 0
  elseif last - at == -1 then
    before = count + 0
  elseif last - at > 1 then -- far: count it in the current window
    back, used, before = true, count + 0, prior + 0
  end
end
local view = math.min((at + 1) * window - us, window)
local low = before % split
local product = (before - low) / split * view
local rest = product % window
local counts = (product - rest) / window * split + math.ceil((rest * split + low * view) / window)
local fits = math.max(limit - used - counts, 0)
if n > fits then
  n = fits - fits % (unit or n)
end
local added = take and n or 0
if added > 0 or back then
  call('SET', key, string.format('%d %d %d', at, used + added, before), 'PX', string.format('%d', ((at + 2) * window - us) / 1000 + 2))
end
local reply = string.format('%d %d %d', at, used, before)
