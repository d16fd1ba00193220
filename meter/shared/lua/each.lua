-- Decides about each key by itself. The keys share the parameters of one limit; each has an
-- amount and a unit of its own.
local a, b, c = ARGV[1] + 0, ARGV[2] + 0, ARGV[3] + 0
local reply = {us}
for i = 1, #KEYS do
  local taken, x, y, z = decide(KEYS[i], true, ARGV[2 * i + 2] + 0, ARGV[2 * i + 3] + 0, a, b, c)
  local n = #reply
  reply[n + 1], reply[n + 2], reply[n + 3], reply[n + 4] = taken, x, y, z
end
return reply
