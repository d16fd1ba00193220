package livetest

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// wantMetrics waits until a process exports values of v0's egress, by name without shaper_. -1 means none.
func (p *pair) wantMetrics(r *process, want map[string]float64) {
	p.t.Helper()
	eventually(p.t, func() error {
		all := p.scrapeMetrics(r)
		got := map[string]float64{}
		for name := range want {
			v, ok := all["shaper_"+name+`{direction="egress",interface="v0"}`]
			if got[name] = v; !ok {
				got[name] = -1
			}
		}
		if !maps.Equal(got, want) {
			return fmt.Errorf("got %v, want %v", got, want)
		}
		return nil
	})
}

// metricBetween waits until a value is a time between two times.
func (p *pair) metricBetween(r *process, name string, from, to time.Time) {
	p.t.Helper()
	eventually(p.t, func() error {
		at, ok := p.scrapeMetrics(r)["shaper_"+name+`{direction="egress",interface="v0"}`]
		if low, high := float64(from.Unix()), float64(to.Unix()+1); !ok || at < low || at > high {
			return fmt.Errorf("%s is %f (%v), want from %f to %f", name, at, ok, low, high)
		}
		return nil
	})
}

// TestLiveMetricsReload checks the metrics of reloads: one that fails is shown until a policy is loaded, by
// any process, and one that waits for its confirmation shows when it rolls back.
func TestLiveMetricsReload(t *testing.T) {
	skipInVM(t)
	p := newPair(t)
	policy := writePolicy(t, "classes: [{name: a}]")
	begin := time.Now()
	r := p.runShaper("--metrics", ":0", "--policy", policy)
	p.wantMetrics(r, map[string]float64{
		"last_reload_successful": 1, "unconfirmed": 0, "rollback_timestamp_seconds": -1,
	})
	p.metricBetween(r, "policy_loaded_timestamp_seconds", begin, time.Now())

	rewriteFile(t, policy, "classes: [{name: a, meter: {}}]")
	r.sendSignal(syscall.SIGHUP)
	p.wantMetrics(r, map[string]float64{"last_reload_successful": 0})
	another := time.Now()
	p.wantExit(0, "reload", "v0", "--policy", writePolicy(t, "classes: [{name: b}]"))
	p.wantMetrics(r, map[string]float64{"last_reload_successful": 1})
	p.metricBetween(r, "policy_loaded_timestamp_seconds", another, time.Now())

	r.sendSignal(syscall.SIGHUP)
	p.wantMetrics(r, map[string]float64{"last_reload_successful": 0})
	rewriteFile(t, policy, "classes: [{name: c}]")
	r.reloadBySIGHUP()
	p.wantMetrics(r, map[string]float64{"last_reload_successful": 1})

	before := time.Now()
	next := writePolicy(t, "classes: [{name: d}]")
	trial := p.startShaper("reload", "v0", "--policy", next, "--confirm", "10min")
	p.wantMetrics(r, map[string]float64{"unconfirmed": 1})
	p.metricBetween(r, "rollback_timestamp_seconds", before.Add(10*time.Minute), time.Now().Add(10*time.Minute))
	p.wantExit(0, "confirm", "v0")
	p.wantMetrics(r, map[string]float64{"unconfirmed": 0, "rollback_timestamp_seconds": -1})
	trial.wantExit(0)
	r.stopBySIGTERM()
}

// TestLiveMetricsChanges checks the time of the oldest change, also of changes by other processes.
func TestLiveMetricsChanges(t *testing.T) {
	skipInVM(t)
	p := newPair(t)
	policy, _ := writeMetricsTable(t)
	state := filepath.Join(t.TempDir(), "state")
	r := p.runShaper("--metrics", ":0", "--policy", policy, "--state", state)
	p.wantMetrics(r, map[string]float64{
		"oldest_change_timestamp_seconds": -1, "state_saved": 1, "changes_work": 1,
	})
	before := time.Now()
	p.wantExit(0, "set", "v0", "customer", "a", "plan=two")
	first := time.Now()
	p.metricBetween(r, "oldest_change_timestamp_seconds", before, first)
	time.Sleep(time.Until(first.Add(2 * time.Second))) // the next change is later in whole seconds
	p.wantExit(0, "set", "v0", "customer", "b", "off")
	p.metricBetween(r, "oldest_change_timestamp_seconds", before, first)
	later := time.Now()
	p.wantExit(0, "set", "v0", "customer", "a", "reset")
	p.metricBetween(r, "oldest_change_timestamp_seconds", first.Add(time.Second), later)
	p.wantExit(0, "set", "v0", "customer", "b", "reset")
	p.wantMetrics(r, map[string]float64{"oldest_change_timestamp_seconds": -1})
	r.stopBySIGTERM()
}

// TestLiveMetricsUnsaved checks that state which cannot be saved is shown, and that it works again.
func TestLiveMetricsUnsaved(t *testing.T) {
	skipInVM(t)
	p := newPair(t)
	policy, _ := writeMetricsTable(t)
	state := filepath.Join(t.TempDir(), "state")
	if err := os.Mkdir(state, 0o700); err != nil {
		t.Fatal(err)
	}
	// The quotas cannot be written where a directory is.
	blocked := filepath.Join(state, "v0-egress.customers")
	if err := os.MkdirAll(filepath.Join(blocked, "x"), 0o700); err != nil {
		t.Fatal(err)
	}
	r := p.runShaper("--metrics", ":0", "--policy", policy, "--state", state)
	p.wantMetrics(r, map[string]float64{"state_saved": 0, "changes_work": 0})
	if err := os.RemoveAll(blocked); err != nil {
		t.Fatal(err)
	}
	p.wantMetrics(r, map[string]float64{"state_saved": 1, "changes_work": 1})
	r.stopBySIGTERM()
	if !strings.Contains(r.err.String(), "work again") {
		t.Errorf("stderr %q: want that the state works again", &r.err)
	}
}
