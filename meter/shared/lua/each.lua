-- Each key by itself: all share the parameters of one limit, and have an n and a unit each.
local a, b, c = ARGV[1] + 0, ARGV[2] + 0, ARGV[3] + 0
local replies = {time[1], time[2]}
for i = 1, #KEYS do
  replies[i + 2] = decide(KEYS[i], true, ARGV[2 * i + 2] + 0, ARGV[2 * i + 3] + 0, a, b, c)
end
return table.concat(replies, ' ')
