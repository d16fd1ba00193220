-- Fixed window. The state is the number of the window since 1970 and the amount taken in it.
--
-- Replies the same two.
local at, used = math.floor(us / window), 0
local back = false
local state = call('GET', key)
if state then
  local last, count = string.match(state, '(%d+) (%d+)')
  if last - at == 0 or last - at == 1 then -- 1: the clock went back a little
    at, used = last + 0, count + 0
  elseif last - at > 1 then -- far: count it in the current window
    back, used = true, count + 0
  end
end
local fits = math.max(limit - used, 0)
if n > fits then
  n = fits - fits % (unit or n)
end
local added = take and n or 0
if added > 0 or back then
  call('SET', key, string.format('%d %d', at, used + added), 'PX', string.format('%d', ((at + 1) * window - us) / 1000 + 2))
end
local reply = string.format('%d %d', at, used)
