-- Takes from all keys or from none. Arguments for each: kind, three parameters and n.
local replies = {time[1], time[2]}
local function pass(take)
  local all = true
  for i, key in ipairs(KEYS) do
    local kind, a, b, c, n = unpack(ARGV, 5 * i - 4, 5 * i)
    local reply, fits = kinds[kind](key, take, n + 0, a + 0, b + 0, c + 0)
    replies[i + 2] = reply
    all = all and fits == n + 0
  end
  return all
end
if pass(false) then
  pass(true)
end
return table.concat(replies, ' ')
