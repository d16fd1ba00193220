package livetest

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"github.com/cilium/ebpf"
)

// TestLiveKeysTakenOver checks that keys stay with a pinned shaper when commands use it and
// when a process takes it over.
func TestLiveKeysTakenOver(t *testing.T) {
	t.Parallel()
	for _, hook := range []string{"tcx", "tc"} {
		t.Run(hook, func(t *testing.T) {
			placement{hook, ""}.skipIfUnsupported(t)
			p := newPair(t)
			before := p.deviceState()
			m := placement{hook, "egress"}
			_, at := p.addresses(m, false)
			path := writePolicy(t, keyedPolicy("burst: 1000, per: dscp, keys: 9"))
			p.runShaper("--hook", hook, "--pin", "--policy", path).stopBySIGTERM()
			table := p.onlyKeyTable()
			in := listenUDP(t, p.far, at)
			a, b := newSender(t, p.near, at, af11, 0), newSender(t, p.near, at, af12, 0)
			if got := countPassed(t, a, in, 4); got != 4 {
				t.Errorf("%d packets passed: want 4", got)
			}
			r := p.runShaper("--hook", hook, "--policy", path)
			if now := p.onlyKeyTable(); now != table {
				t.Errorf("table %d became %d", table, now)
			}
			if x, y := countPassed(t, a, in, 3), countPassed(t, b, in, 3); x != 1 || y != 3 {
				t.Errorf("%d and %d packets passed: want 1 and 3", x, y)
			}
			rewriteFile(t, path, keyedPolicy("burst: 1200, per: dscp, keys: 9"))
			p.wantExit(0, "reload", "v0")
			if x, y := countPassed(t, a, in, 3), countPassed(t, b, in, 3); x != 0 || y != 2 {
				t.Errorf("%d and %d packets passed after another burst: want 0 and 2", x, y)
			}
			p.awaitFreed(table)
			table = p.onlyKeyTable()
			r.sendSignal(syscall.SIGTERM)
			if code := r.waitForExit(); code != 0 {
				t.Errorf("exit %d: stderr %q", code, &r.err)
			}
			if p.deviceState() != before {
				p.wantExit(0, "detach")
			}
			p.wantState(before)
			p.awaitFreed(table)
		})
	}
}

// TestLiveKeysConfirm checks that a rollback deletes the keys of the new policy and restores
// those of the previous policy.
func TestLiveKeysConfirm(t *testing.T) {
	skipInVM(t)
	p := newPair(t)
	path := writePolicy(t, keyedPolicy("burst: 1000, per: dscp, keys: 9"))
	r := p.runShaper("--policy", path)
	_, at := p.addresses(placement{"tcx", "egress"}, false)
	in := listenUDP(t, p.far, at)
	a, b := newSender(t, p.near, at, af11, 0), newSender(t, p.near, at, af12, 0)
	if got := countPassed(t, a, in, 5); got != 5 {
		t.Errorf("%d packets passed: want 5", got)
	}
	first := p.onlyKeyTable()
	other := writePolicy(t, keyedPolicy("burst: 600, per: dscp, keys: 9"))
	w := p.startShaper("reload", "--confirm", "30s", "--policy", other)
	w.out.awaitMatch(t, "waiting")
	second := p.onlyKeyTable()
	if x, y := countPassed(t, a, in, 1), countPassed(t, b, in, 4); x != 0 || y != 3 {
		t.Errorf("%d and %d packets passed: want 0 and 3", x, y)
	}
	if code := w.waitForExit(); code != 1 {
		t.Errorf("exit %d: want 1", code)
	}
	if x, y := countPassed(t, a, in, 1), countPassed(t, b, in, 1); x != 0 || y != 0 {
		t.Errorf("%d and %d packets passed of what was before: want none, as they had nothing left", x, y)
	}
	if got := countPassed(t, newSender(t, p.near, at, af21, 0), in, 6); got != 5 {
		t.Errorf("%d packets of a new key passed: want 5", got)
	}
	p.awaitFreed(first, second)
	r.stopBySIGTERM()
}

// TestLiveKeysPrivileges checks that changing the rate of keys needs no more privileges than
// shaper run.
func TestLiveKeysPrivileges(t *testing.T) {
	skipInVM(t)
	p := newPair(t)
	dir, err := os.MkdirTemp("", "shaper-live") // readable for all, unlike t.TempDir
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "policy.yaml")
	rewriteFile(t, path, keyedPolicy("burst: 1000, per: dscp, keys: 9"))
	r := p.startAs("root with", "run", "v0", "--policy", path)
	r.awaitAttached()
	_, at := p.addresses(placement{"tcx", "egress"}, false)
	in := listenUDP(t, p.far, at)
	a := newSender(t, p.near, at, af11, 0)
	if got := countPassed(t, a, in, 4); got != 4 {
		t.Errorf("%d packets passed: want 4", got)
	}
	table := p.onlyKeyTable()
	rewriteFile(t, path, keyedPolicy("burst: 600, per: dscp, keys: 9"))
	r.reloadBySIGHUP()
	if now := p.onlyKeyTable(); now == table {
		t.Errorf("the table is the same")
	}
	if got := countPassed(t, a, in, 4); got > 3 {
		t.Errorf("%d packets passed: want at most a new burst", got)
	}
	r.stopBySIGTERM()
}

// programMaps calls visit with each map of the only shaper's program, its ID and its name.
func (p *pair) programMaps(visit func(m *ebpf.Map, id ebpf.MapID, name string)) {
	p.t.Helper()
	program, err := ebpf.NewProgramFromID(ebpf.ProgramID(p.stats().ProgramID))
	if err != nil {
		p.t.Fatal(err)
	}
	defer program.Close()
	info, err := program.Info()
	if err != nil {
		p.t.Fatal(err)
	}
	ids, _ := info.MapIDs()
	for _, id := range ids {
		m, err := ebpf.NewMapFromID(id)
		if err != nil {
			p.t.Fatal(err)
		}
		info, err := m.Info()
		if err != nil {
			p.t.Fatal(err)
		}
		visit(m, id, info.Name)
		m.Close()
	}
}

// keyTables returns the key tables of the only shaper by slot.
func (p *pair) keyTables() map[uint32]ebpf.MapID {
	p.t.Helper()
	out := map[uint32]ebpf.MapID{}
	p.programMaps(func(m *ebpf.Map, _ ebpf.MapID, _ string) {
		if m.Type() != ebpf.ArrayOfMaps {
			return
		}
		for slot := range m.MaxEntries() {
			var table ebpf.MapID
			if err := m.Lookup(slot, &table); err == nil {
				out[slot] = table
			} else if !errors.Is(err, ebpf.ErrKeyNotExist) {
				p.t.Fatal(err)
			}
		}
	})
	return out
}

// onlyKeyTable returns the only key table of the only shaper.
func (p *pair) onlyKeyTable() ebpf.MapID {
	p.t.Helper()
	all := slices.Collect(maps.Values(p.keyTables()))
	if len(all) != 1 {
		p.t.Fatalf("tables %v: want one", all)
	}
	return all[0]
}

// awaitFreed waits until the kernel has freed key tables.
func (p *pair) awaitFreed(ids ...ebpf.MapID) {
	p.t.Helper()
	eventually(p.t, func() error {
		for _, id := range ids {
			if m, err := ebpf.NewMapFromID(id); err == nil {
				m.Close()
				return fmt.Errorf("table %d is still there", id)
			}
		}
		return nil
	})
}

// keyedPolicy is a policy with one class that has a meter for each key.
func keyedPolicy(meter string) string {
	return "classes:\n  - {name: a, meter: {type: token-bucket, rate: 1B/1000s, " + meter + "}}\n"
}
