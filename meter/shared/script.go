package shared

import (
	_ "embed"
	"strconv"
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

// replies is how many numbers the script of a kind replies for a key.
var replies = [kinds]int{bucketKind: 2, windowKind: 3, counterKind: 4, logKind: 4}

// scripts are all that a Store runs.
type scripts struct {
	each [kinds]*redis.Script
	all  *redis.Script
}

var live = makeScripts(strings.NewReplacer())

// makeScripts makes the scripts, changed by a replacer.
func makeScripts(change *strings.Replacer) *scripts {
	s := new(scripts)
	parts := [kinds]string{bucketLua, windowLua, counterLua, logLua}
	all := timeLua + "local kinds = {}\n"
	for k, lua := range parts {
		s.each[k] = redis.NewScript(change.Replace(timeLua + lua + eachLua))
		all += "do\n" + lua + "kinds['" + strconv.Itoa(k) + "'] = decide\nend\n"
	}
	s.all = redis.NewScript(change.Replace(all + allLua))
	return s
}
