package livetest

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/cilium/ebpf"
)

// TestLiveKeysTakenOver holds that keys stay with a pinned shaper, for commands
// and for the process that takes it over.
func TestLiveKeysTakenOver(t *testing.T) {
	t.Parallel()
	for _, hook := range []string{"tcx", "tc"} {
		t.Run(hook, func(t *testing.T) {
			method{hook, ""}.need(t)
			p := newPair(t)
			p.withBpffs()
			before := p.attached()
			m := method{hook, "egress"}
			_, at := p.addresses(m, false)
			path := file(t, keyedPolicy("burst: 1000, per: dscp, keys: 9"))
			p.run("--hook", hook, "--pin", "--policy", path).term()
			table := p.table()
			in := listen(t, p.far, at)
			a, b := sender(t, p.near, at, af11, 0), sender(t, p.near, at, af12, 0)
			if got := passes(t, a, in, 4); got != 4 {
				t.Errorf("%d packets passed: want 4", got)
			}
			r := p.run("--hook", hook, "--policy", path)
			if now := p.table(); now != table {
				t.Errorf("table %d became %d", table, now)
			}
			if x, y := passes(t, a, in, 3), passes(t, b, in, 3); x != 1 || y != 3 {
				t.Errorf("%d and %d packets passed: want 1 and 3", x, y)
			}
			rewrite(t, path, keyedPolicy("burst: 1200, per: dscp, keys: 9"))
			p.do(0, "reload", "v0")
			if x, y := passes(t, a, in, 3), passes(t, b, in, 3); x != 0 || y != 2 {
				t.Errorf("%d and %d packets passed after another burst: want 0 and 2", x, y)
			}
			p.freed(table)
			table = p.table()
			r.signal(syscall.SIGTERM)
			if code := r.wait(); code != 0 {
				t.Errorf("exit %d: stderr %q", code, &r.err)
			}
			if p.attached() != before {
				p.do(0, "detach")
			}
			p.unchanged(before)
			p.freed(table)
		})
	}
}

// TestLiveKeysConfirm holds that keys nobody confirms go, and those before come
// back.
func TestLiveKeysConfirm(t *testing.T) {
	hereOnly(t)
	p := newPair(t)
	path := file(t, keyedPolicy("burst: 1000, per: dscp, keys: 9"))
	r := p.run("--policy", path)
	_, at := p.addresses(method{"tcx", "egress"}, false)
	in := listen(t, p.far, at)
	a, b := sender(t, p.near, at, af11, 0), sender(t, p.near, at, af12, 0)
	if got := passes(t, a, in, 5); got != 5 {
		t.Errorf("%d packets passed: want 5", got)
	}
	first := p.table()
	other := file(t, keyedPolicy("burst: 600, per: dscp, keys: 9"))
	w := p.start("reload", "--confirm", "5s", "--policy", other)
	w.out.await(t, "waiting")
	second := p.table()
	if x, y := passes(t, a, in, 1), passes(t, b, in, 4); x != 0 || y != 3 {
		t.Errorf("%d and %d packets passed: want 0 and 3", x, y)
	}
	if code := w.wait(); code != 1 {
		t.Errorf("exit %d: want 1", code)
	}
	if x, y := passes(t, a, in, 1), passes(t, b, in, 1); x != 0 || y != 0 {
		t.Errorf("%d and %d packets passed of what was before: want none, as they had nothing left", x, y)
	}
	if got := passes(t, sender(t, p.near, at, af21, 0), in, 6); got != 5 {
		t.Errorf("%d packets of a new key passed: want 5", got)
	}
	p.freed(first, second)
	r.term()
}

// TestLiveKeysPrivileges holds that what is enough to run is enough to change the
// rate of keys.
func TestLiveKeysPrivileges(t *testing.T) {
	hereOnly(t)
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
	rewrite(t, path, keyedPolicy("burst: 1000, per: dscp, keys: 9"))
	r := p.as("root with", "run", "v0", "--policy", path)
	r.attached()
	_, at := p.addresses(method{"tcx", "egress"}, false)
	in := listen(t, p.far, at)
	a := sender(t, p.near, at, af11, 0)
	if got := passes(t, a, in, 4); got != 4 {
		t.Errorf("%d packets passed: want 4", got)
	}
	table := p.table()
	rewrite(t, path, keyedPolicy("burst: 600, per: dscp, keys: 9"))
	r.signal(syscall.SIGHUP)
	eventually(t, func() error {
		if !strings.Contains(r.out.String(), "reloaded") {
			return fmt.Errorf("not reloaded by a process that has %v: stderr %q", needed, &r.err)
		}
		return nil
	})
	if now := p.table(); now == table {
		t.Errorf("the table is the same")
	}
	if got := passes(t, a, in, 4); got > 3 {
		t.Errorf("%d packets passed: want at most a new burst", got)
	}
	r.term()
}

// tables are those of keys that the only shaper has, by slot.
func (p *pair) tables() map[uint32]ebpf.MapID {
	p.t.Helper()
	out := map[uint32]ebpf.MapID{}
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
		if m.Type() == ebpf.ArrayOfMaps {
			for slot := range m.MaxEntries() {
				var table ebpf.MapID
				if err := m.Lookup(slot, &table); err == nil {
					out[slot] = table
				} else if !errors.Is(err, ebpf.ErrKeyNotExist) {
					p.t.Fatal(err)
				}
			}
		}
		m.Close()
	}
	return out
}

// table is the only one.
func (p *pair) table() ebpf.MapID {
	p.t.Helper()
	all := slices.Collect(maps.Values(p.tables()))
	if len(all) != 1 {
		p.t.Fatalf("tables %v: want one", all)
	}
	return all[0]
}

// freed wants tables gone, as soon as nothing can have them.
func (p *pair) freed(ids ...ebpf.MapID) {
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

// keyedPolicy is one class with a meter for each key.
func keyedPolicy(meter string) string {
	return "classes:\n  - {name: a, meter: {type: token-bucket, rate: 1B/1000s, " + meter + "}}\n"
}
