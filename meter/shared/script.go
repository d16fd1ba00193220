package shared

import (
	_ "embed"
	"fmt"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"
)

// A script consists of time.lua, one algorithm or all of them, and a frame around it.
var (
	//go:embed lua/time.lua
	timeLua string
	//go:embed lua/bucket.lua
	bucketLua string
	//go:embed lua/window.lua
	windowLua string
	//go:embed lua/counter.lua
	counterLua string
	//go:embed lua/log.lua
	logLua string
	//go:embed lua/all.lua
	allLua string
)

// oneLua decides about one key. A function around the algorithm would cost a tenth of the
// time. Arguments: three parameters of the limit, n, and optionally a unit.
const oneLua = `
local key, take, %s, n, unit = KEYS[1], true, ARGV[1] + 0, ARGV[2] + 0, ARGV[3] + 0, ARGV[4] + 0, ARGV[5]
%s
return time[1] .. ' ' .. time[2] .. ' ' .. reply
`

// eachLua decides about each key independently. Arguments: three parameters of the limit, an n
// for each key, and optionally a unit.
const eachLua = `
local take, %s, unit = true, ARGV[1] + 0, ARGV[2] + 0, ARGV[3] + 0, ARGV[#KEYS + 4]
local replies = {time[1], time[2]}
for i, key in ipairs(KEYS) do
local n = ARGV[i + 3] + 0
%s
replies[i + 2] = reply
end
return table.concat(replies, ' ')
`

// functionLua makes an algorithm a function, for all.lua.
const functionLua = `
kinds['%d'] = function(key, take, n, %s)
local unit
%s
return reply, n
end
`

// kind is an algorithm.
type kind int

const (
	bucketKind kind = iota
	windowKind
	counterKind
	logKind
	kinds
)

// algorithms describes the kinds.
var algorithms = [kinds]struct {
	lua     string
	params  string // names of the limit's parameters
	replies int    // numbers in the reply per key
}{
	{bucketLua, "burst, per, cycle", 1},
	{windowLua, "limit, window, _", 2},
	{counterLua, "limit, window, split", 3},
	{logLua, "limit, window, entries", 4},
}

// scripts are the scripts of a Backend.
type scripts struct {
	one  [kinds]*redis.Script
	each [kinds]*redis.Script
	all  *redis.Script
}

// live returns the scripts. Programs that use no server do not make them.
var live = sync.OnceValue(func() *scripts { return makeScripts(strings.NewReplacer()) })

// makeScripts makes the scripts and applies a replacer to their text.
func makeScripts(change *strings.Replacer) *scripts {
	s := new(scripts)
	script := func(lua string) *redis.Script { return redis.NewScript(change.Replace(timeLua + lua)) }
	all := "local kinds = {}"
	for k, a := range algorithms {
		s.one[k] = script(fmt.Sprintf(oneLua, a.params, a.lua))
		s.each[k] = script(fmt.Sprintf(eachLua, a.params, a.lua))
		all += fmt.Sprintf(functionLua, k, a.params, a.lua)
	}
	s.all = script(all + allLua)
	return s
}
