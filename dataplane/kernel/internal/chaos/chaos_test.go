//go:build linux && amd64

package chaos

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane/nettest"
)

// command is the path of the tested build of the command.
var command string

// The main thread never enters a world: the kernel reparents children of ended threads to it.
func init() { runtime.LockOSThread() }

// TestMain also runs the tracer and the first process of a world, both of which are this binary.
func TestMain(m *testing.M) {
	if os.Getenv(planVariable) != "" {
		trace(os.Args[1:])
	}
	if os.Getenv(initVariable) != "" {
		if err := initWorld(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	nettest.Isolate()
	os.Exit(runTests(m))
}

// runTests builds the command and runs the tests. It returns the exit code.
func runTests(m *testing.M) int {
	if command = os.Getenv("SHAPER_CHAOS_COMMAND"); command == "" {
		dir, err := os.MkdirTemp("", "shaper-chaos-")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(dir)
		command = filepath.Join(dir, "shaper")
		out, err := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", command,
			"github.com/a-seed-32e5a53f/shaper/cmd/shaper").CombinedOutput()
		if err != nil {
			fmt.Fprintf(os.Stderr, "go build: %v: %s\n", err, out)
			return 1
		}
	}
	return m.Run()
}

// settings are the values of the environment variables.
type settings struct {
	all       bool
	more      bool // the larger sample
	killsOnly bool // leave out the faults at points
	seed      uint64
	only      string        // a regular expression of scenario names, or one case
	budget    time.Duration // 0: unlimited
	kills     int           // number of random kills
	workers   int           // number of parallel cases
}

// setting parses an environment variable.
func setting[T any](t *testing.T, name string, otherwise T, parse func(string) (T, error)) T {
	t.Helper()
	text := os.Getenv("SHAPER_CHAOS_" + name)
	if text == "" {
		return otherwise
	}
	v, err := parse(text)
	if err != nil {
		t.Fatalf("SHAPER_CHAOS_%s: %v", name, err)
	}
	return v
}

func newSettings(t *testing.T) settings {
	t.Helper()
	s := settings{only: os.Getenv("SHAPER_CHAOS_ONLY")}
	switch kind := os.Getenv("SHAPER_CHAOS"); kind {
	case "":
	case "more":
		s.more = true
	case "all":
		s.all = true
	case "kills":
		s.all, s.killsOnly = true, true
	default:
		t.Fatalf("SHAPER_CHAOS=%s: want more, all or kills", kind)
	}
	seed := uint64(1) // a fixed sample: a new failure is caused by a change of the program
	if s.all {
		seed = uint64(time.Now().UnixNano())
	}
	s.seed = setting(t, "SEED", seed,
		func(text string) (uint64, error) { return strconv.ParseUint(text, 10, 64) })
	s.workers = setting(t, "WORKERS", 2*runtime.NumCPU(), strconv.Atoi)
	s.kills = setting(t, "KILLS", map[bool]int{true: 1000, false: 300}[s.all], strconv.Atoi)
	s.budget = setting(t, "BUDGET", 0, time.ParseDuration)
	return s
}

// TestLiveFaults injects faults into the command. After each fault the interface must be untouched
// or shaped, status must be correct, and detach must leave nothing behind.
func TestLiveFaults(t *testing.T) {
	if os.Getenv("SHAPER_VM") != "" {
		t.Skip("too slow in a VM")
	}
	s := newSettings(t)
	possible := false
	t.Run("privilege", func(t *testing.T) {
		newWorld(t)
		possible = true
	})
	if !possible {
		t.Skip("needs privilege to create namespaces: run the tests as root")
	}
	t.Logf("SHAPER_CHAOS_SEED=%d, %d workers", s.seed, s.workers)
	r := &report{}
	random := rand.New(rand.NewPCG(s.seed, 0))
	list := scenarios()
	sample := !s.all && s.only == ""
	var deadline time.Time
	if s.budget > 0 {
		deadline = time.Now().Add(s.budget)
	}
	if sample {
		list = s.sample(random)
	}
	name, text, one := strings.Cut(s.only, "/")
	pattern, err := regexp.Compile(name)
	if err != nil {
		t.Fatalf("SHAPER_CHAOS_ONLY: %v", err)
	}
	list = slices.DeleteFunc(list,
		func(x *scenario) bool { return !pattern.MatchString(x.name) || one && x.name != name })
	if one {
		f, err := parseFault(text)
		if err != nil || len(list) == 0 {
			t.Fatalf("SHAPER_CHAOS_ONLY=%s: %v: %d scenarios", s.only, err, len(list))
		}
		s.run(t, r, []*attempt{{s: list[0], f: f}}, deadline)
		r.print(t)
		return
	}
	var counting []*attempt // without a fault, to count the points
	for _, x := range list {
		counting = append(counting, &attempt{s: x, f: fault{kind: "none"}})
	}
	s.run(t, r, counting, time.Time{})
	counting = slices.DeleteFunc(counting, func(a *attempt) bool {
		if len(a.problems) > 0 {
			t.Logf("%s: no faults injected: it fails without a fault", a.s.name)
		}
		return len(a.problems) > 0
	})
	var faults []*attempt
	for _, c := range counting {
		if !s.killsOnly && c.s.disk == nil {
			faults = append(faults, s.faults(c, random)...)
		}
	}
	if len(counting) > 0 {
		faults = append(faults, s.randomKills(counting, random)...)
	}
	random.Shuffle(len(faults), func(i, j int) { faults[i], faults[j] = faults[j], faults[i] })
	t.Logf("%d scenarios, %d faults to choose from", len(counting), len(faults))
	if sample {
		faults = faults[:min(8*s.sampled(), len(faults))]
	}
	s.run(t, r, faults, deadline)
	r.print(t)
}

// sample returns the scenarios of a sample, half of them with changes in force.
func (s *settings) sample(random *rand.Rand) (out []*scenario) {
	for _, group := range [][]*scenario{plainScenarios(), changedScenarios()} {
		random.Shuffle(len(group), func(i, j int) { group[i], group[j] = group[j], group[i] })
		out = append(out, group[:s.sampled()/2]...)
	}
	return out
}

// sampled returns the number of scenarios in a sample, for each of which it has 8 faults. It does not
// depend on time, so that every machine tests the same sample.
func (s *settings) sampled() int {
	if s.more {
		return 8
	}
	return 2
}

// faults returns the faults at the points of a scenario, with a random error at each point.
func (s *settings) faults(counted *attempt, random *rand.Rand) []*attempt {
	names := slices.Sorted(maps.Keys(faultErrors))
	var list []*attempt
	add := func(kind, point string) {
		list = append(list, &attempt{s: counted.s, f: fault{kind: kind, point: point}})
	}
	for i, point := range counted.points {
		if !selected(point) {
			continue
		}
		if visible.MatchString(point) {
			add(faultKill, point)
			if counted.guarded >= 0 && i >= counted.guarded && !counted.s.orphan {
				add(faultKillAll, point)
			}
		}
		if failing(point) {
			add(names[random.IntN(len(names))], point)
		}
	}
	return list
}

// randomKills returns signals at random moments of random scenarios.
func (s *settings) randomKills(counted []*attempt, random *rand.Rand) []*attempt {
	// An orphan's run is killed anyway, and a broken disk is a fault.
	counted = slices.DeleteFunc(slices.Clone(counted),
		func(c *attempt) bool { return c.s.orphan || c.s.disk != nil })
	if len(counted) == 0 {
		return nil
	}
	var list []*attempt
	for range s.kills {
		c := counted[random.IntN(len(counted))]
		f := fault{kind: "SIGKILL", after: 1 + time.Duration(random.Int64N(int64(c.length)))}
		switch random.IntN(8) {
		case 0:
			f.kind = "SIGTERM"
		case 1:
			f.kind = "SIGINT"
		case 2:
			f.all = true
		}
		list = append(list, &attempt{s: c.s, f: f})
	}
	return list
}

// run runs attempts in several worlds at once until the deadline.
func (s *settings) run(t *testing.T, r *report, list []*attempt, deadline time.Time) {
	t.Helper()
	next := make(chan *attempt)
	go func() {
		defer close(next)
		for _, a := range list {
			if !deadline.IsZero() && time.Now().After(deadline) {
				return
			}
			next <- a
		}
	}()
	var workers sync.WaitGroup
	for range s.workers {
		workers.Go(func() {
			for a := range next {
				t.Run("world", func(t *testing.T) {
					w := newWorld(t)
					for ok := true; ok; a, ok = <-next {
						a.w = w
						r.begin(a)
						clean := a.run()
						r.add(t, a)
						if !clean {
							return
						}
					}
				})
			}
		})
	}
	workers.Wait()
}
