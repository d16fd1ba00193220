package main

import (
	"bufio"
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane/nettest"
)

// slowInit are the packages whose variables and init functions may take long, which every start
// of every command pays, with the reason. Those of gopacket/layers took 4 ms.
var slowInit = map[string]string{
	reference: "the calls between processes are in gob, and a new format would cut off processes that run already",
}

const (
	// No package may take longer than twice the time of this one, whose tables are the largest of
	// the standard library's: 0.15 ms on one machine, 0.8 ms on another with slow page faults.
	reference = "encoding/gob"
	// A package that takes that long allocates that often, or that many bytes. gopacket/layers
	// allocated 8 MB.
	manyAllocs, manyBytes = 300, 64 << 10
	// No package with fewer allocations needs a row in slowInit.
	fewAllocs = 100
)

// initCost is what the init of a package costs.
type initCost struct {
	time          time.Duration
	bytes, allocs int
}

// initTrace runs the command and returns the costs of all packages.
func initTrace(t *testing.T, command string) map[string]initCost {
	t.Helper()
	cmd := exec.Command(command, "version")
	cmd.Env = append(os.Environ(), "GODEBUG=inittrace=1")
	var trace bytes.Buffer
	cmd.Stderr = &trace
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	costs := map[string]initCost{}
	for lines := bufio.NewScanner(&trace); lines.Scan(); {
		// init encoding/gob @1.2 ms, 0.15 ms clock, 27408 bytes, 367 allocs
		f := strings.Fields(lines.Text())
		if len(f) < 10 || f[0] != "init" || f[5] != "ms" {
			continue
		}
		ms, err1 := strconv.ParseFloat(f[4], 64)
		size, err2 := strconv.Atoi(f[7])
		allocs, err3 := strconv.Atoi(f[9])
		if err := errors.Join(err1, err2, err3); err != nil {
			t.Fatal(lines.Text(), err)
		}
		costs[f[1]] = initCost{time.Duration(ms * float64(time.Millisecond)), size, allocs}
	}
	if len(costs) < 100 {
		t.Fatalf("the trace has %d packages", len(costs))
	}
	return costs
}

func buildForInit(t *testing.T) string {
	t.Helper()
	command := filepath.Join(t.TempDir(), "shaper")
	if out, err := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", command,
		".").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return command
}

// TestInit checks which packages allocate much in every start of the command.
func TestInit(t *testing.T) {
	costs := initTrace(t, buildForInit(t))
	for name, c := range costs {
		if (c.allocs > manyAllocs || c.bytes > manyBytes) && slowInit[name] == "" {
			t.Errorf("the init of %s allocates %d times, %d bytes, in every start: make its tables when they are used, or give the reason here",
				name, c.allocs, c.bytes)
		}
	}
	for name := range slowInit {
		if c := costs[name]; c.allocs < fewAllocs {
			t.Errorf("the init of %s allocates %d times: it needs no reason any more", name, c.allocs)
		}
	}
}

// TestQuietInit checks which packages take long in every start of the command, compared with the
// reference. The shortest of many starts counts, because other load makes them longer.
func TestQuietInit(t *testing.T) {
	nettest.Quiet(t)
	command := buildForInit(t)
	shortest := map[string]time.Duration{}
	slow := func() (names []string) {
		long := 2 * shortest[reference]
		for name, d := range shortest {
			everywhere := strings.HasPrefix(name, "internal/") // in every Go program
			if d > long && slowInit[name] == "" && !everywhere {
				names = append(names, name)
			}
		}
		return names
	}
	for run := 0; run < 10 || run < 100 && len(slow()) > 0; run++ {
		for name, c := range initTrace(t, command) {
			if before, ok := shortest[name]; !ok || c.time < before {
				shortest[name] = c.time
			}
		}
	}
	for _, name := range slow() {
		t.Errorf("the init of %s takes %v in every start, that of %s %v: make its tables when they are used, or give the reason here",
			name, shortest[name], reference, shortest[reference])
	}
}
