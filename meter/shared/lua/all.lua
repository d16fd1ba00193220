-- Takes from every key, or from none. Each has six arguments: its kind, the amount, the unit,
-- and the three parameters of its limit.
local function pass(take)
  local reply, all = {us}, true
  for i = 1, #KEYS do
    local at = 6 * i - 5
    local n = ARGV[at + 1] + 0
    local taken, x, y, z = kinds[ARGV[at]](KEYS[i], take, n, ARGV[at + 2] + 0, ARGV[at + 3] + 0, ARGV[at + 4] + 0, ARGV[at + 5] + 0)
    local n = #reply
    all = all and taken == ARGV[at + 1] + 0
    reply[n + 1], reply[n + 2], reply[n + 3], reply[n + 4] = taken, x, y, z
  end
  return reply, all
end
local reply, all = pass(false)
if all then
  reply = pass(true)
end
return reply
