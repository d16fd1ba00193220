package livetest

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// TestLiveQueueRestoresQdisc checks that the previous root qdisc is restored however shaper
// ends.
func TestLiveQueueRestoresQdisc(t *testing.T) {
	t.Parallel()
	skipInVM(t)
	ends := map[string][]string{ // every end with one qdisc, every qdisc with some ends
		"nothing": {"term", "kill"},
		"pfifo":   {"kill", "detach"},
		"htb":     {"term", "kill", "detach", "reload", "gso"},
		"tbf":     {"term", "reload"},
	}
	for name, lines := range map[string][]string{
		"nothing": nil,
		"pfifo":   {"qdisc add dev v0 root handle 7: pfifo limit 123"},
		"htb": {
			"qdisc add dev v0 root handle 1: htb default 20",
			"class add dev v0 parent 1: classid 1:1 htb rate 100mbit",
			"class add dev v0 parent 1:1 classid 1:10 htb rate 10mbit ceil 90mbit prio 1",
			"class add dev v0 parent 1:1 classid 1:20 htb rate 80mbit",
			"qdisc add dev v0 parent 1:10 handle 10: pfifo limit 17",
		},
		"tbf": {"qdisc add dev v0 root handle 9: tbf rate 100mbit burst 20000 limit 30000"},
	} {
		for _, how := range ends[name] {
			t.Run(name+"-"+how, func(t *testing.T) {
				p := newQueuePair(t)
				for _, line := range lines {
					p.near.Run("tc", strings.Fields(line)...)
				}
				before, qdiscs := p.deviceState(), p.qdiscState()
				args := []string{"--policy", writePolicy(t, fmt.Sprintf(slowQueue, "50ms"))}
				if how == "gso" {
					args = append(args, "--gso-limit", "9000")
				}
				r := p.runShaper(args...)
				if now := p.qdiscState(); !strings.Contains(now, "qdisc htb 5ade: root") ||
					len(p.journals()) != 1 {
					t.Errorf("tc lists\n%s, journals %v", now, p.journals())
				}
				switch how {
				case "term", "gso":
					if how == "gso" && !strings.Contains(p.deviceState(), "gso 9000") {
						t.Errorf("attached to v0: %s", p.deviceState())
					}
					r.stopBySIGTERM()
				case "kill":
					r.killAndWait()
				case "detach":
					p.wantExit(0, "detach")
					r.waitForExit()
				case "reload":
					p.wantExit(0, "reload", "--meter", unlimitedMeter)
					if now := p.qdiscState(); now != qdiscs {
						t.Errorf("tc lists\n%s\nwant\n%s", now, qdiscs)
					}
					r.stopBySIGTERM()
				}
				p.awaitClean(before, qdiscs)
			})
		}
	}
	t.Run("filters", func(t *testing.T) {
		p := newQueuePair(t)
		for _, line := range []string{
			"qdisc add dev v0 root handle 1: htb", "class add dev v0 parent 1: classid 1:1 htb rate 100mbit",
			"filter add dev v0 parent 1: protocol ip u32 match u32 0 0 flowid 1:1",
		} {
			p.near.Run("tc", strings.Fields(line)...)
		}
		before, qdiscs := p.deviceState(), p.qdiscState()
		policy := writePolicy(t, fmt.Sprintf(slowQueue, "50ms"))
		why := "interface v0 has the qdisc htb 1:0, but its filters could not be restored: remove it first: tc qdisc del dev v0 root"
		p.wantError(1, why, "run", "v0", "--policy", policy)
		p.awaitClean(before, qdiscs)
		r := p.runShaper("--meter", unlimitedMeter)
		with := p.deviceState()
		p.wantError(1, why, "reload", "--policy", policy)
		p.awaitClean(with, qdiscs)
		if s := p.stats(); !s.Attached || s.Pacer != "" {
			t.Errorf("status %+v after a rejected reload", s)
		}
		r.stopBySIGTERM()
		p.awaitClean(before, qdiscs)
	})
}

// TestLiveQueueKilled checks that the guard cleans up after its process, and the next command
// after both.
func TestLiveQueueKilled(t *testing.T) {
	t.Parallel()
	for _, m := range placements {
		if m.hook == "xdp" {
			continue
		}
		how := []string{"guard", "run"}
		if m == placements[0] || m.hook == "tc" && m.direction == "ingress" {
			how = append(how, "run without queues", "detach", "other detach")
		}
		for _, how := range how {
			t.Run(m.hook+"-"+m.direction+"-"+how, func(t *testing.T) {
				m.skipIfUnsupported(t)
				if how != "guard" && how != "run" || m.direction == "egress" {
					skipInVM(t)
				}
				p := newQueuePair(t)
				from, to := p.senderAndReceiver(m)
				_, at := p.addresses(m, false)
				before, qdiscs := p.deviceState(), p.qdiscState()
				policy := writePolicy(t, fmt.Sprintf(slowQueue, "50ms"))
				r := p.runShaper(m.flags("--policy", policy)...)
				sendUDP(t, newSender(t, from, at, 0, 0), 30, 1000)
				if how == "guard" {
					r.killAndWait()
					p.awaitClean(before, qdiscs)
					return
				}
				r.killWithGuard()
				if now := p.qdiscState(); now == qdiscs || len(p.journals()) != 1 {
					t.Errorf("tc lists\n%s\njournals %v: want both left behind", now, p.journals())
				}
				switch how {
				case "run":
					r := p.runShaper(m.flags("--policy", policy)...)
					if p.stats().Pacer == "" || len(p.journals()) != 1 {
						t.Error("no queue or no journal")
					}
					in := listenUDP(t, to, at)
					sendUDP(t, newSender(t, from, at, 0, 0), 10, 1000)
					if n := len(in.receiveAll()); n != 10 {
						t.Errorf("%d packets arrived: want 10", n)
					}
					r.stopBySIGTERM()
				case "run without queues":
					r := p.runShaper(m.flags("--meter", unlimitedMeter)...)
					// tc has a journal for clsact
					if m.hook != "tc" && len(p.journals()) != 0 || strings.Contains(p.qdiscState(), "5ade:") {
						t.Errorf("tc lists\n%s\njournals %v", p.qdiscState(), p.journals())
					}
					r.stopBySIGTERM()
				case "detach":
					p.wantExit(0, "detach", "v0")
				case "other detach":
					p.wantExit(0, "detach", "v0", "--direction", m.direction)
				}
				p.awaitClean(before, qdiscs)
				p.wantError(1, "v0 is not shaped: .*", "detach", "v0")
			})
		}
	}
}

// TestLiveQueueKilledAfterReload checks that the guard cleans up correctly if a reload added or
// removed queues.
func TestLiveQueueKilledAfterReload(t *testing.T) {
	t.Parallel()
	skipInVM(t)
	with, without := fmt.Sprintf(slowQueue, "50ms"), "classes: [{name: a}]"
	for _, c := range []struct{ hook, by, change string }{
		{"tcx", "SIGHUP", "added"}, {"tcx", "reload", "removed"}, {"tc", "SIGHUP", "removed"}, {"tc", "reload", "added"},
	} {
		t.Run(c.hook+"-"+c.by+"-"+c.change, func(t *testing.T) {
			first, second := without, with
			if c.change == "removed" {
				first, second = with, without
			}
			p := newQueuePair(t)
			before, qdiscs := p.deviceState(), p.qdiscState()
			path := writePolicy(t, first)
			r := p.runShaper("--hook", c.hook, "--policy", path)
			rewriteFile(t, path, second)
			if c.by == "SIGHUP" {
				r.reloadBySIGHUP()
			} else {
				p.wantExit(0, "reload")
			}
			time.Sleep(500 * time.Millisecond) // run has detected the reload
			if (p.stats().Pacer == "") != (second == without) {
				t.Errorf("status %+v", p.stats())
			}
			r.killAndWait()
			p.awaitClean(before, qdiscs)
		})
	}
}

// TestLiveQueuePinned checks that queues continue after the process ends, and can be taken
// over.
func TestLiveQueuePinned(t *testing.T) {
	t.Parallel()
	for _, m := range placements {
		if m.hook == "xdp" {
			continue
		}
		how := []string{"kill"}
		if m == placements[0] || m.hook == "tc" && m.direction == "ingress" {
			how = append(how, "term", "background")
		}
		for _, how := range how {
			t.Run(m.hook+"-"+m.direction+"-"+how, func(t *testing.T) {
				m.skipIfUnsupported(t)
				if how != "kill" || m.direction == "egress" {
					skipInVM(t)
				}
				p := newQueuePair(t)
				from, to := p.senderAndReceiver(m)
				_, at := p.addresses(m, false)
				before, qdiscs := p.deviceState(), p.qdiscState()
				path := writePolicy(t,
					"classes: [{name: a, green: {queue: q}}]\nqueues: {q: {rate: 1mbit, limit: 40p, fair: false}}")
				switch how {
				case "term":
					p.runShaper(m.flags("--pin", "--policy", path)...).stopBySIGTERM()
				case "kill":
					p.runShaper(m.flags("--pin", "--policy", path)...).killAndWait()
				case "background":
					p.wantExit(0,
						append([]string{"run", "v0", "--background", "--policy", path}, m.flags()...)...)
				}
				time.Sleep(100 * time.Millisecond)
				in := listenUDP(t, to, at)
				var took time.Duration
				got := receivedDuring(in, func() {
					begin := time.Now()
					sendUDP(t, newSender(t, from, at, 0, 0), 100, 1500)
					took = time.Since(begin)
				})[0]
				s := p.stats()
				most := 42 + int64(took/(12*time.Millisecond)) // one leaves every 12 ms
				if c := s.Classes[0]; !s.Pinned || got < 41 || got > most || c.Queued.Packets != got ||
					c.Dropped.Packets != 100-got {
					t.Errorf("%d packets arrived, status %+v: want 41 to %d", got, s, most)
				}
				// A run with another rate takes over, with the counters.
				rewriteFile(t, path,
					"classes: [{name: a, green: {queue: q}}]\nqueues: {q: {rate: 100mbit, limit: 100p, fair: false}}")
				r := p.runShaper(m.flags("--policy", path)...)
				sendUDP(t, newSender(t, from, at, 0, 0), 100, 1500)
				if n := len(in.receiveAll()); n != 100 {
					t.Errorf("%d packets arrived: want all", n)
				}
				if s := p.stats(); s.Pinned || s.Classes[0].Packets != 200 {
					t.Errorf("status %+v: want 200 packets", s)
				}
				r.stopBySIGTERM()
				p.awaitClean(before, qdiscs)
				if how != "kill" {
					return
				}
				p.runShaper(m.flags("--pin", "--policy", path)...).killAndWait()
				p.wantExit(0, "detach")
				p.awaitClean(before, qdiscs)
			})
		}
	}
}

// TestLiveQueueTakesOver checks that a policy with queues can take over a pinned policy without
// queues, and the other way round.
func TestLiveQueueTakesOver(t *testing.T) {
	t.Parallel()
	skipInVM(t)
	with, without := fmt.Sprintf(slowQueue, "50ms"), "classes: [{name: a}]"
	for _, direction := range []string{"egress", "ingress"} {
		for name, test := range map[string]struct {
			first, second []string
			waits         bool
		}{
			"without-with":     {[]string{without}, []string{with}, true},
			"with-without":     {[]string{with}, []string{without}, false},
			"dry-with":         {[]string{with, "--dry-run"}, []string{with}, true},
			"with-dry":         {[]string{with}, []string{with, "--dry-run"}, false},
			"without-dry":      {[]string{without}, []string{with, "--dry-run"}, false},
			"dry-without":      {[]string{with, "--dry-run"}, []string{without}, false},
			"with-without-dry": {[]string{with}, []string{without, "--dry-run"}, false},
		} {
			if direction == "ingress" && !test.waits && name != "with-without" && name != "with-dry" {
				continue // egress covers them
			}
			t.Run(direction+"-"+name, func(t *testing.T) {
				m := placement{"tcx", direction}
				p := newQueuePair(t)
				from, to := p.senderAndReceiver(m)
				_, at := p.addresses(m, false)
				before, qdiscs := p.deviceState(), p.qdiscState()
				args := func(list []string) []string {
					return append([]string{"--direction", direction, "--policy", writePolicy(t, list[0])},
						list[1:]...)
				}
				p.runShaper(append(args(test.first), "--pin")...).stopBySIGTERM()
				r := p.runShaper(args(test.second)...)
				s := p.stats()
				if !s.Attached || (s.Pacer != "") != test.waits {
					t.Fatalf("status %+v: want it attached; queues %v", s, test.waits)
				}
				in := listenUDP(t, to, at)
				n := s.Classes[0].Packets
				sendUDP(t, newSender(t, from, at, 0, 0), 10, 1000)
				if got := len(in.receiveAll()); got != 10 {
					t.Errorf("%d packets arrived: want 10", got)
				}
				if s := p.stats(); s.Classes[0].Packets != n+10 {
					t.Errorf("counted %+v: want 10 more than %d", s.Classes[0], n)
				}
				if r.hasExited() {
					t.Errorf("the process ended: %q, stderr %q", &r.out, &r.err)
				} else {
					r.stopBySIGTERM()
				}
				p.awaitClean(before, qdiscs)
			})
		}
	}
}

// TestLiveQueueConfirm checks that an unconfirmed policy is rolled back together with its
// qdiscs.
func TestLiveQueueConfirm(t *testing.T) {
	t.Parallel()
	skipInVM(t)
	with, without := fmt.Sprintf(slowQueue, "50ms"), "classes: [{name: a}]"
	slower := strings.Replace(with, "10mbit", "5mbit", 1)
	for _, direction := range []string{"egress", "ingress"} {
		for name, test := range map[string]struct{ before, after []string }{
			"nothing":      {nil, []string{with}},
			"without":      {[]string{without}, []string{with}},
			"with":         {[]string{with}, []string{without}},
			"another rate": {[]string{slower}, []string{with}},
			"dry":          {[]string{with, "--dry-run"}, []string{with}},
			"to dry":       {[]string{with}, []string{with, "--dry-run"}},
		} {
			for _, end := range []string{"time", "kill"} {
				if end == "kill" && name != "nothing" && name != "with" || direction == "ingress" &&
					(name == "without" || name == "another rate") {
					continue
				}
				t.Run(direction+"-"+name+"-"+end, func(t *testing.T) {
					p := newQueuePair(t)
					args := func(list []string) []string {
						return append([]string{"--direction", direction, "--policy", writePolicy(t, list[0])},
							list[1:]...)
					}
					was := shaperStats{}
					clean := p.deviceState()
					cleanQdiscs := p.qdiscState()
					if test.before != nil {
						p.runShaper(append(args(test.before), "--pin")...).stopBySIGTERM()
						was = p.stats()
					}
					qdiscs := p.qdiscState()
					after := append(args(test.after), "--confirm", "1s")
					if end == "kill" {
						after = append(after, "--pin") // otherwise the program ends with its process
					}
					r := p.runShaper(after...)
					if end == "kill" {
						r.killAndWait()
					} else if code := r.waitForExit(); code != 1 ||
						!strings.Contains(r.err.String(), "not confirmed in time: rolled back") {
						t.Errorf("exit %d, stderr %q", code, &r.err)
					}
					eventually(t, func() error {
						if now := p.qdiscState(); maskNumbers(now) != maskNumbers(qdiscs) {
							return fmt.Errorf("tc lists\n%s\nwant\n%s", now, qdiscs)
						}
						if test.before == nil {
							return nil
						}
						// The program is restored after the qdiscs.
						if s := p.status(); len(s) != 1 || s[0].Policy != was.Policy ||
							s[0].Pacer != was.Pacer || !s[0].Attached || !s[0].Pinned {
							return fmt.Errorf("status %+v: want %+v", s, was)
						}
						return nil
					})
					if test.before == nil {
						p.awaitClean(clean, cleanQdiscs)
						return
					}
					p.wantExit(0, "detach")
					p.awaitClean(clean, cleanQdiscs)
				})
			}
		}
	}
}
