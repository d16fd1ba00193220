package livetest

import (
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"
)

// TestLiveKeysReload holds what becomes of keys when the policy changes: with the
// same meter they stay where they are, with another rate or burst they keep what
// they have, cut to the burst, and with other keys they begin anew.
func TestLiveKeysReload(t *testing.T) {
	t.Parallel()
	hereOnly(t)
	for _, m := range []method{{"tcx", "egress"}, {"tc", "ingress"}, {"xdp", "ingress"}} {
		t.Run(m.hook+"-"+m.direction, func(t *testing.T) {
			m.need(t)
			if m.hook == "xdp" {
				hereOnly(t)
			}
			p := newPair(t)
			from, to := p.sides(m)
			_, at := p.addresses(m, false)
			path := file(t, keyedPolicy("burst: 1000, per: dscp, keys: 100"))
			r := p.run(m.args("--policy", path)...)
			in := listen(t, to, at)
			a, b, c, d := sender(t, from, at, af11, 0), sender(t, from, at, af12, 0), sender(t, from, at, af21, 0), sender(t, from, at, 0, 0)
			if x, y := passes(t, a, in, 3), passes(t, b, in, 1); x != 3 || y != 1 {
				t.Fatalf("%d and %d packets passed: want 3 and 1", x, y)
			}
			table := p.table()
			change := func(what, policy string, kept bool) {
				t.Helper()
				rewrite(t, path, policy)
				p.do(0, "reload", "v0")
				now := p.table()
				if kept != (now == table) {
					t.Errorf("%s: table %d became %d", what, table, now)
				}
				if now != table {
					p.freed(table)
				}
				table = now
			}
			wants := func(what string, conn *net.UDPConn, n int) {
				t.Helper()
				if got := passes(t, conn, in, n+1); got != n {
					t.Errorf("%s: %d packets passed: want %d", what, got, n)
				}
			}
			change("another class", keyedPolicy("burst: 1000, per: dscp, keys: 100")+"  - {name: z}\n", true)
			wants("400 bytes kept", a, 2)
			change("smaller burst", keyedPolicy("burst: 600, per: dscp, keys: 100"), false)
			wants("0 bytes carried", a, 0)
			wants("800 bytes cut", b, 3)
			wants("new key", c, 3)
			if m != methods[0] {
				r.term()
				p.freed(table)
				return
			}
			change("larger burst", keyedPolicy("burst: 2000, per: dscp, keys: 100"), false)
			wants("0 bytes carried", b, 0)
			change("more keys", keyedPolicy("burst: 2000, per: dscp, keys: 200"), false)
			wants("0 bytes carried", c, 0)
			change("windows", strings.Replace(keyedPolicy("limit: 1000, window: 8784h, per: dscp, keys: 200"), "token-bucket, rate: 1B/1000s", "fixed-window", 1), false)
			wants("0 bytes carried to a window", a, 0)
			wants("new key of a window", d, 5)
			change("and back", keyedPolicy("burst: 800, per: dscp, keys: 200"), false)
			wants("0 bytes carried from a window", d, 0)
			change("new: empty", keyedPolicy("burst: 800, per: dscp, keys: 200, new: empty"), false)
			wants("new key begins empty", b, 0)
			change("other keys", keyedPolicy("burst: 800, per: src, keys: 200"), false)
			wants("one source", b, 4)
			wants("the same source", c, 0)
			r.term()
			p.freed(table)
		})
	}
}

// TestLiveKeysLeak reloads again and again: all tables but the last are freed,
// and that one with the shaper.
func TestLiveKeysLeak(t *testing.T) {
	hereOnly(t)
	p := newPair(t)
	before := p.attached()
	policy := func(i int) string { // that is verified quickly
		return fmt.Sprintf(`
classes:
  - {name: a, match: {dscp: af11}, meter: {type: gcra, rate: %dmbit, burst: 9000, per: dscp, keys: 1000}}
  - {name: b%d, meter: {type: sliding-counter, limit: %dMB, window: 1s, per: vlan, keys: 10, then: all}}
meters:
  all: {type: token-bucket, rate: 1gbit, burst: 9000, color: aware}
`, 1+i%2, i/5, 1+i/5%3)
	}
	path := file(t, policy(0))
	m := method{"xdp", "ingress"} // its programs are the smallest
	r := p.run(m.args("--policy", path)...)
	_, at := p.addresses(m, false)
	conn := sender(t, p.far, at, af11, 0)
	seen := map[ebpf.MapID]bool{}
	for i := 1; i <= 20; i++ {
		send(t, conn, 2, 200)
		rewrite(t, path, policy(i))
		r.signal(syscall.SIGHUP)
		eventually(t, func() error {
			if n := strings.Count(r.out.String(), "reloaded"); n != i {
				return fmt.Errorf("reloaded %d times: want %d: stderr %q", n, i, &r.err)
			}
			return nil
		})
		if i%4 > 1 {
			continue // to look takes longer than to reload
		}
		tables := p.tables()
		if len(tables) != 2 {
			t.Fatalf("tables %v after %d reloads: want 2", tables, i)
		}
		for _, id := range tables {
			seen[id] = true
		}
	}
	last := slices.Collect(maps.Values(p.tables()))
	for _, id := range last {
		delete(seen, id)
	}
	if len(seen) < 8 {
		t.Errorf("only %d tables came and went", len(seen))
	}
	p.freed(slices.Collect(maps.Keys(seen))...)
	r.term()
	p.freed(last...)
	p.unchanged(before)
}

// TestLiveKeysReloadKeepsBound holds that a reload gives no more than the meter
// allows, and what passes while programs are swapped, although tables of other
// meters are made meanwhile.
func TestLiveKeysReloadKeepsBound(t *testing.T) {
	hereOnly(t)
	p := newPair(t)
	policy := func(i int) string {
		s := fmt.Sprintf("classes:\n  - {name: a, match: {dscp: 0}, meter: {type: token-bucket, rate: 10MB/s, burst: %d}}\n", 500_000-i)
		for k := 1; k <= 20; k++ {
			s += fmt.Sprintf("  - {name: c%d, match: {dscp: %[1]d}, meter: {type: gcra, rate: 1mbit, burst: %[2]d, per: dscp}}\n", k, 9000+i)
		}
		return s
	}
	path := file(t, policy(0))
	r := p.run("--policy", path)
	_, at := p.addresses(method{"tcx", "egress"}, false)
	conn := sender(t, p.near, at, 0, 0)
	begin := time.Now()
	reloads := 0
	for reloads < 3 || strings.Count(r.out.String(), "reloaded") < reloads {
		send(t, conn, 40, 1000)
		time.Sleep(time.Millisecond)
		if reloads < 3 && strings.Count(r.out.String(), "reloaded") == reloads && time.Since(begin) > time.Duration(reloads+1)*200*time.Millisecond {
			reloads++
			rewrite(t, path, policy(reloads))
			r.signal(syscall.SIGHUP)
		}
		if time.Since(begin) > patience {
			t.Fatalf("reloaded %d times: stderr %q", reloads, &r.err)
		}
	}
	took := time.Since(begin).Seconds()
	s := p.stats()
	got, bound := float64(s.class(t, "a").Green.Bytes), 500_000+1e7*(took+0.02*float64(reloads))
	t.Logf("%.0f bytes passed in %.3f s: at most %.0f", got, took, bound)
	if got > bound {
		t.Errorf("%.0f bytes passed in %.3f s: want at most %.0f", got, took, bound)
	}
	r.term()
}

// TestLiveKeysTags holds that the key of a VLAN is the id of the outer tag,
// whether it is in the frame or beside it, and whatever its priority.
func TestLiveKeysTags(t *testing.T) {
	t.Parallel()
	hereOnly(t)
	for _, m := range []method{{"tcx", "egress"}, {"tc", "ingress"}, {"xdp", "ingress"}} {
		t.Run(m.hook+"-"+m.direction, func(t *testing.T) {
			m.need(t)
			p := newPair(t)
			from, _ := p.sides(m)
			source := byte(1)
			if m.direction == "ingress" {
				source = 2
			}
			r := p.run(m.args("--policy", file(t, `
classes:
  - {name: inner, match: {pcp: 0-6}, meter: tags}
  - {name: high, match: {pcp: 7}, meter: tags}
  - {name: none, meter: tags}
meters:
  tags: {type: token-bucket, rate: 1p/1000s, burst: 3, count: packets, per: vlan, keys: 4}
`))...)
			for range 4 {
				from.Inject("v0",
					tagged(source, 0x8100_a007),              // VLAN 7
					tagged(source, 0x8100_e007),              // the same, of PCP 7
					tagged(source, 0x88a8_0007, 0x8100_0009), // and the outer one
					tagged(source, 0x8100_0009),
					tagged(source))
			}
			var s shaperStats
			eventually(t, func() error {
				s = p.stats()
				if got := s.sum().Packets; got < 20 {
					return fmt.Errorf("%d packets were counted: want 20", got)
				}
				return nil
			})
			inner, high, none := s.class(t, "inner"), s.class(t, "high"), s.class(t, "none")
			if inner.Green.Packets+high.Green.Packets != 3+3 || high.Green.Packets != 1 || none.Green.Packets != 3 || none.Packets != 4 {
				t.Errorf("green are %+v, %+v, %+v: want 3 of each VLAN and 3 without", inner, high, none)
			}
			r.term()
		})
	}
}
