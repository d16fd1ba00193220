package shared

import (
	_ "embed"
	"fmt"
	"strings"

	"github.com/redis/go-redis/v9"
)

// The scripts are put together from parts: the clock, one algorithm or all of them, and
// what is done with it.
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
	//go:embed lua/one.lua
	oneLua string
	//go:embed lua/each.lua
	eachLua string
	//go:embed lua/all.lua
	allLua string
)

// kind is an algorithm at the store.
type kind int

const (
	bucketKind kind = iota
	windowKind
	counterKind
	logKind
	kinds
)

// algorithms are the parts of the kinds, how they name a limit's parameters, and how many
// numbers they reply.
var algorithms = [kinds]struct {
	lua     string
	params  string
	replies int
}{
	{bucketLua, "burst, per, cycle", 1},
	{windowLua, "limit, window, _", 2},
	{counterLua, "limit, window, split", 3},
	{logLua, "limit, window, entries", 4},
}

// scripts are all that a Store runs.
type scripts struct {
	one  [kinds]*redis.Script // of one key
	each [kinds]*redis.Script
	all  *redis.Script
}

var live = makeScripts(strings.NewReplacer())

// makeScripts makes the scripts, changed by a replacer.
func makeScripts(change *strings.Replacer) *scripts {
	s := new(scripts)
	script := func(lua ...string) *redis.Script {
		return redis.NewScript(change.Replace(timeLua + strings.Join(lua, "")))
	}
	all := "local kinds = {}\n"
	for k, a := range algorithms {
		args := fmt.Sprintf("local key, take, %s, n, unit = KEYS[1], true, ARGV[1] + 0, ARGV[2] + 0, ARGV[3] + 0, ARGV[4] + 0, ARGV[5]\n", a.params)
		function := fmt.Sprintf("function(key, take, n, unit, %s)\n%sreturn reply, n\nend\n", a.params, a.lua)
		s.one[k] = script(args, a.lua, oneLua)
		s.each[k] = script("local decide = ", function, eachLua)
		all += fmt.Sprintf("kinds['%d'] = %s", k, function)
	}
	s.all = script(all, allLua)
	return s
}
