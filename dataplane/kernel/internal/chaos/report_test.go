//go:build linux && amd64

package chaos

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// report collects the results of attempts.
type report struct {
	mu      sync.Mutex
	classes map[string]*tally // by class of fault
	kinds   map[string]int    // number of attempts by kind of problem
	failed  []string          // descriptions of failed attempts
	begun   map[*attempt]bool // attempts in progress
	late    time.Duration     // longest time until an end or a quota was in force
}

// tally counts the attempts of a class.
type tally struct {
	made, missed, wrong int
	took                time.Duration
}

// begin records the start of an attempt.
func (r *report) begin(a *attempt) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.begun == nil {
		r.begun = map[*attempt]bool{}
	}
	r.begun[a] = true
}

// add records the end of an attempt.
func (r *report) add(t *testing.T, a *attempt) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.begun, a)
	if r.classes == nil {
		r.classes, r.kinds = map[string]*tally{}, map[string]int{}
	}
	c := r.classes[a.f.class()]
	if c == nil {
		c = &tally{}
		r.classes[a.f.class()] = c
	}
	c.made++
	c.took += a.took
	r.late = max(r.late, a.late)
	if !a.hit && a.f.kind != "none" {
		c.missed++
	}
	if len(a.problems) == 0 {
		return
	}
	c.wrong++
	kinds := map[string]bool{}
	for _, p := range a.problems {
		kind, _, _ := strings.Cut(p, ":")
		kinds[kind] = true
	}
	for kind := range kinds {
		r.kinds[kind]++
	}
	text := fmt.Sprintf("SHAPER_CHAOS_ONLY='%s': %s", a.name(), strings.Join(a.problems, "; "))
	r.failed = append(r.failed, text)
	t.Log(text)
}

// print fails the test for each failed attempt, and logs a summary.
func (r *report) print(t *testing.T) {
	t.Helper()
	slices.Sort(r.failed)
	for a := range r.begun {
		t.Errorf("%s: the attempt did not end", a.name())
	}
	for _, text := range r.failed {
		t.Error(text)
	}
	made := 0
	for _, class := range slices.Sorted(maps.Keys(r.classes)) {
		c := r.classes[class]
		made += c.made
		t.Logf("%-24s %5d cases, %4d failed, %4d did not reach the fault, %v each", class, c.made, c.wrong,
			c.missed,
			(c.took / time.Duration(c.made)).Round(time.Millisecond))
	}
	for _, kind := range slices.Sorted(maps.Keys(r.kinds)) {
		t.Logf("%-24s in %d cases", kind, r.kinds[kind])
	}
	t.Logf("ends of changes and quotas were seen in force after at most %v", r.late.Round(time.Millisecond))
	t.Logf("%d cases, %d failed", made, len(r.failed))
}
