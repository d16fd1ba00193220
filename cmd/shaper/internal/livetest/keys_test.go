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

	"github.com/a-seed-32e5a53f/shaper/dataplane/nettest"
)

// TestLiveKeysReload checks the keys after a reload. With the same meter the table stays. With
// another rate or burst the tokens are kept, at most the burst. With other keys all meters are
// new.
func TestLiveKeysReload(t *testing.T) {
	t.Parallel()
	skipInVM(t)
	for _, m := range []placement{{"tcx", "egress"}, {"tc", "ingress"}, {"xdp", "ingress"}} {
		t.Run(m.hook+"-"+m.direction, func(t *testing.T) {
			m.skipIfUnsupported(t)
			if m.hook == "xdp" {
				skipInVM(t)
			}
			p := newPair(t)
			from, to := p.senderAndReceiver(m)
			_, at := p.addresses(m, false)
			path := writePolicy(t, keyedPolicy("burst: 1000, per: dscp, keys: 100"))
			r := p.runShaper(m.flags("--policy", path)...)
			in := listenUDP(t, to, at)
			a, b, c, d := newSender(t, from, at, af11, 0), newSender(t, from, at, af12, 0),
				newSender(t, from, at, af21, 0), newSender(t, from, at, 0, 0)
			if x, y := countPassed(t, a, in, 3), countPassed(t, b, in, 1); x != 3 || y != 1 {
				t.Fatalf("%d and %d packets passed: want 3 and 1", x, y)
			}
			table := p.onlyKeyTable()
			change := func(what, policy string, kept bool) {
				t.Helper()
				rewriteFile(t, path, policy)
				p.wantExit(0, "reload", "v0")
				now := p.onlyKeyTable()
				if kept != (now == table) {
					t.Errorf("%s: table %d became %d", what, table, now)
				}
				if now != table {
					p.awaitFreed(table)
				}
				table = now
			}
			wants := func(what string, conn *net.UDPConn, n int) {
				t.Helper()
				if got := countPassed(t, conn, in, n+1); got != n {
					t.Errorf("%s: %d packets passed: want %d", what, got, n)
				}
			}
			change("another class", keyedPolicy("burst: 1000, per: dscp, keys: 100")+"  - {name: z}\n", true)
			wants("400 bytes kept", a, 2)
			change("smaller burst", keyedPolicy("burst: 600, per: dscp, keys: 100"), false)
			wants("0 bytes carried", a, 0)
			wants("800 bytes cut", b, 3)
			wants("new key", c, 3)
			if m != placements[0] {
				r.stopBySIGTERM()
				p.awaitFreed(table)
				return
			}
			change("larger burst", keyedPolicy("burst: 2000, per: dscp, keys: 100"), false)
			wants("0 bytes carried", b, 0)
			change("more keys", keyedPolicy("burst: 2000, per: dscp, keys: 200"), false)
			wants("0 bytes carried", c, 0)
			change("windows", strings.Replace(keyedPolicy("limit: 1000, window: 8784h, per: dscp, keys: 200"),
				"token-bucket, rate: 1B/1000s", "fixed-window", 1), false)
			wants("0 bytes carried to a window", a, 0)
			wants("new key of a window", d, 5)
			change("and back", keyedPolicy("burst: 800, per: dscp, keys: 200"), false)
			wants("0 bytes carried from a window", d, 0)
			change("new: empty", keyedPolicy("burst: 800, per: dscp, keys: 200, new: empty"), false)
			wants("new key begins empty", b, 0)
			change("other keys", keyedPolicy("burst: 800, per: src, keys: 200"), false)
			wants("one source", b, 4)
			wants("the same source", c, 0)
			r.stopBySIGTERM()
			p.awaitFreed(table)
		})
	}
}

// TestLiveKeysLeak reloads many times. All tables but the last must be freed, and the last one
// when the shaper ends.
func TestLiveKeysLeak(t *testing.T) {
	skipInVM(t)
	p := newPair(t)
	before := p.deviceState()
	policy := func(i int) string { // quickly verified
		return fmt.Sprintf(`
classes:
  - {name: a, match: {dscp: af11}, meter: {type: gcra, rate: %dmbit, burst: 9000, per: dscp, keys: 1000}}
  - {name: b%d, meter: {type: sliding-counter, limit: %dMB, window: 1s, per: vlan, keys: 10, then: all}}
meters:
  all: {type: token-bucket, rate: 1gbit, burst: 9000, color: aware}
`, 1+i%2, i/5, 1+i/5%3)
	}
	path := writePolicy(t, policy(0))
	m := placement{"xdp", "ingress"} // has the smallest programs
	r := p.runShaper(m.flags("--policy", path)...)
	_, at := p.addresses(m, false)
	conn := newSender(t, p.far, at, af11, 0)
	seen := map[ebpf.MapID]bool{}
	for i := 1; i <= 12; i++ {
		sendUDP(t, conn, 2, 200)
		rewriteFile(t, path, policy(i))
		r.reloadBySIGHUP()
		if i%4 > 1 {
			continue // listing the tables takes longer than a reload
		}
		tables := p.keyTables()
		if len(tables) != 2 {
			t.Fatalf("tables %v after %d reloads: want 2", tables, i)
		}
		for _, id := range tables {
			seen[id] = true
		}
	}
	last := slices.Collect(maps.Values(p.keyTables()))
	for _, id := range last {
		delete(seen, id)
	}
	if len(seen) < 6 {
		t.Errorf("only %d tables were replaced", len(seen))
	}
	p.awaitFreed(slices.Collect(maps.Keys(seen))...)
	r.stopBySIGTERM()
	p.awaitFreed(last...)
	p.wantState(before)
}

// TestQuietKeysReloadKeepsBound checks that a reload passes no more than the meter allows plus
// the traffic during the swap of programs, although tables of other meters are created
// meanwhile. A busy machine may take longer for a swap, so it has several attempts, each with a
// full bucket.
func TestQuietKeysReloadKeepsBound(t *testing.T) {
	nettest.Quiet(t)
	skipInVM(t)
	p := newPair(t)
	policy := func(i int) string {
		s := fmt.Sprintf("classes:\n  - {name: a, match: {dscp: 0}, meter: {type: token-bucket, rate: 10MB/s, burst: %d}}\n",
			500_000-i)
		for k := 1; k <= 20; k++ {
			s += fmt.Sprintf("  - {name: c%d, match: {dscp: %[1]d}, meter: {type: gcra, rate: 1mbit, burst: %[2]d, per: dscp}}\n",
				k, 9000+i)
		}
		return s
	}
	path := writePolicy(t, policy(0))
	r := p.runShaper("--policy", path)
	_, at := p.addresses(placement{"tcx", "egress"}, false)
	conn := newSender(t, p.near, at, 0, 0)
	reloads, passed := 0, int64(0)
	eventually(t, func() error {
		time.Sleep(50 * time.Millisecond) // until the bucket is full
		begin, first := time.Now(), reloads
		for reloads < first+3 || strings.Count(r.out.String(), "reloaded") < reloads {
			sendUDP(t, conn, 40, 1000)
			time.Sleep(time.Millisecond)
			if reloads < first+3 && strings.Count(r.out.String(), "reloaded") == reloads &&
				time.Since(begin) > time.Duration(reloads-first+1)*200*time.Millisecond {
				reloads++
				rewriteFile(t, path, policy(reloads))
				r.sendSignal(syscall.SIGHUP)
			}
			if time.Since(begin) > waitLimit {
				t.Fatalf("reloaded %d times: stderr %q", reloads, &r.err)
			}
		}
		took := time.Since(begin).Seconds()
		s := p.stats()
		before := passed
		passed = s.classNamed(t, "a").Green.Bytes
		got, bound := float64(passed-before), 500_000+1e7*(took+0.02*float64(reloads-first))
		t.Logf("%.0f bytes passed in %.3f s: at most %.0f", got, took, bound)
		if got > bound {
			return fmt.Errorf("%.0f bytes passed in %.3f s: want at most %.0f", got, took, bound)
		}
		return nil
	})
	r.stopBySIGTERM()
}

// TestLiveKeysTags checks that the key of a VLAN is the id of the outer tag, in the frame or in
// skb metadata, with any priority.
func TestLiveKeysTags(t *testing.T) {
	t.Parallel()
	skipInVM(t)
	for _, m := range []placement{{"tcx", "egress"}, {"tc", "ingress"}, {"xdp", "ingress"}} {
		t.Run(m.hook+"-"+m.direction, func(t *testing.T) {
			m.skipIfUnsupported(t)
			p := newPair(t)
			from, _ := p.senderAndReceiver(m)
			source := byte(1)
			if m.direction == "ingress" {
				source = 2
			}
			r := p.runShaper(m.flags("--policy", writePolicy(t, `
classes:
  - {name: inner, match: {pcp: 0-6}, meter: tags}
  - {name: high, match: {pcp: 7}, meter: tags}
  - {name: none, meter: tags}
meters:
  tags: {type: token-bucket, rate: 1p/1000s, burst: 3, count: packets, per: vlan, keys: 4}
`))...)
			for range 4 {
				from.Inject("v0",
					taggedFrame(source, 0x8100_a007),              // VLAN 7
					taggedFrame(source, 0x8100_e007),              // VLAN 7, PCP 7
					taggedFrame(source, 0x88a8_0007, 0x8100_0009), // outer tag: VLAN 7
					taggedFrame(source, 0x8100_0009),
					taggedFrame(source))
			}
			var s shaperStats
			eventually(t, func() error {
				s = p.stats()
				if got := s.sumOfClasses().Packets; got < 20 {
					return fmt.Errorf("%d packets were counted: want 20", got)
				}
				return nil
			})
			inner, high, none := s.classNamed(t, "inner"), s.classNamed(t, "high"), s.classNamed(t, "none")
			if inner.Green.Packets+high.Green.Packets != 3+3 || high.Green.Packets != 1 ||
				none.Green.Packets != 3 || none.Packets != 4 {
				t.Errorf("green are %+v, %+v, %+v: want 3 of each VLAN and 3 without", inner, high, none)
			}
			r.stopBySIGTERM()
		})
	}
}
