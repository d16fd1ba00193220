package lease_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// TestSpin makes spin visit all states of lease.pml, a model of the protocol.
// It must find no violation, except in each variant that breaks a rule. It depends on the model
// alone, so with all faults, which takes most of the time, it runs with SHAPER_DEEP=1.
func TestSpin(t *testing.T) {
	t.Parallel()
	model, err := filepath.Abs("lease.pml")
	if err != nil {
		t.Fatal(err)
	}
	for _, program := range []string{"spin", "gcc"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("%s is missing: apt-get install spin gcc", program)
		}
	}
	for _, tt := range []struct {
		name, define string
		states       int // minimum number of visited states, if there is no violation
	}{
		{"all faults", "", 2_000_000},
		{"a host keeps some unused capacity", "SPARE=1 SILENCE", 400_000},
		{"found: rescue share and full use", "FAULTS=1 REACH", 0},
		{"found: Grow is 0", "FAULTS=1 GROW=0", 0},
		{"found: Grow is short by half an interval", "FAULTS=2 GROW=8", 0},
		{"found: LATE is half an interval longer", "FAULTS=2 LATE=7", 0},
		{"found: a host without replies is not late", "FAULTS=1 NOTDEAF", 0},
		{"found: no host gives back", "FAULTS=1 OVERCOMMIT", 0},
		{"found: released capacity is free at once", "FAULTS=1 ATONCE", 0},
		{"found: silent hosts are expected to give back", "SPARE=1 SILENCE NOCURB", 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if tt.define == "" && os.Getenv("SHAPER_DEEP") == "" {
				t.Skip("takes long and depends on lease.pml alone: make deep")
			}
			dir := t.TempDir()
			run := func(name string, args ...string) string {
				cmd := exec.Command(name, args...)
				cmd.Dir = dir
				out, err := cmd.CombinedOutput()
				if err != nil {
					t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
				}
				return string(out)
			}
			args := []string{"-a"}
			for _, d := range strings.Fields(tt.define) {
				args = append(args, "-D"+d)
			}
			run("spin", append(args, model)...)
			optimize := "-O0"
			if tt.states > 0 {
				optimize = "-O2"
			}
			run("gcc", optimize, "-w", "-DSAFETY", "-o", "pan", "pan.c")
			out := run("./pan", "-m10000")
			if found := strings.Contains(out,
				"assertion violated"); found != strings.HasPrefix(tt.name, "found") {
				t.Errorf("got violation found: %t\n%s", found, out)
			}
			n := regexp.MustCompile(`(?m)^ *([0-9]+) states, stored`).FindStringSubmatch(out)
			if n == nil || strings.Contains(out, "max search depth") {
				t.Fatalf("the search was incomplete\n%s", out)
			}
			states, _ := strconv.Atoi(n[1])
			if states < tt.states {
				t.Errorf("got %d states, want %d", states, tt.states)
			}
			t.Logf("%s states", n[1])
		})
	}
}
