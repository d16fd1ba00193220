package livetest

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestLiveQueueBefore holds that what stood at the root comes back, whichever
// way shaper ends.
func TestLiveQueueBefore(t *testing.T) {
	t.Parallel()
	hereOnly(t)
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
		for _, how := range []string{"term", "kill", "detach", "reload", "gso"} {
			t.Run(name+"-"+how, func(t *testing.T) {
				p := newQueuePair(t)
				for _, line := range lines {
					p.near.Run("tc", strings.Fields(line)...)
				}
				before, qdiscs := p.attached(), p.qdiscs()
				args := []string{"--policy", file(t, fmt.Sprintf(slowQueue, "50ms"))}
				if how == "gso" {
					args = append(args, "--gso-limit", "9000")
				}
				r := p.run(args...)
				if now := p.qdiscs(); !strings.Contains(now, "qdisc htb 5ade: root") || len(p.notes()) != 1 {
					t.Errorf("tc says\n%s, notes %v", now, p.notes())
				}
				switch how {
				case "term", "gso":
					if how == "gso" && !strings.Contains(p.attached(), "gso 9000") {
						t.Errorf("at v0 is %s", p.attached())
					}
					r.term()
				case "kill":
					r.kill()
				case "detach":
					p.do(0, "detach")
					r.wait()
				case "reload":
					p.do(0, "reload", "--meter", never)
					if now := p.qdiscs(); now != qdiscs {
						t.Errorf("tc says\n%s\nwant\n%s", now, qdiscs)
					}
					r.term()
				}
				p.clean(before, qdiscs)
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
		before, qdiscs := p.attached(), p.qdiscs()
		policy := file(t, fmt.Sprintf(slowQueue, "50ms"))
		why := "interface v0 has the qdisc htb 1:0, but its filters could not be restored: remove it first: tc qdisc del dev v0 root"
		p.fails(1, why, "run", "v0", "--policy", policy)
		p.clean(before, qdiscs)
		r := p.run("--meter", never)
		with := p.attached()
		p.fails(1, why, "reload", "--policy", policy)
		p.clean(with, qdiscs)
		if s := p.stats(); !s.Attached || s.Pacer != "" {
			t.Errorf("status %+v after a reload that was refused", s)
		}
		r.term()
		p.clean(before, qdiscs)
	})
}

// TestLiveQueueKilled holds that the guard cleans up after its process, and the
// next command after both.
func TestLiveQueueKilled(t *testing.T) {
	t.Parallel()
	for _, m := range methods {
		if m.hook == "xdp" {
			continue
		}
		for _, how := range []string{"guard", "run", "run without queues", "detach", "other detach"} {
			t.Run(m.hook+"-"+m.direction+"-"+how, func(t *testing.T) {
				m.need(t)
				if how != "guard" && how != "run" || m.direction == "egress" {
					hereOnly(t)
				}
				p := newQueuePair(t)
				from, to := p.sides(m)
				_, at := p.addresses(m, false)
				before, qdiscs := p.attached(), p.qdiscs()
				policy := file(t, fmt.Sprintf(slowQueue, "50ms"))
				r := p.run(m.args("--policy", policy)...)
				send(t, sender(t, from, at, 0, 0), 30, 1000)
				if how == "guard" {
					r.kill()
					p.clean(before, qdiscs)
					return
				}
				r.killBoth()
				if now := p.qdiscs(); now == qdiscs || len(p.notes()) != 1 {
					t.Errorf("tc says\n%s\nnotes %v: want something left", now, p.notes())
				}
				switch how {
				case "run":
					r := p.run(m.args("--policy", policy)...)
					if p.stats().Pacer == "" || len(p.notes()) != 1 {
						t.Error("queues do not wait")
					}
					in := listen(t, to, at)
					send(t, sender(t, from, at, 0, 0), 10, 1000)
					if n := len(in.take()); n != 10 {
						t.Errorf("%d packets arrived: want 10", n)
					}
					r.term()
				case "run without queues":
					r := p.run(m.args("--meter", never)...)
					if m.hook != "tc" && len(p.notes()) != 0 || strings.Contains(p.qdiscs(), "5ade:") { // that of tc is for clsact
						t.Errorf("tc says\n%s\nnotes %v", p.qdiscs(), p.notes())
					}
					r.term()
				case "detach":
					p.do(0, "detach", "v0")
				case "other detach":
					p.do(0, "detach", "v0", "--direction", m.direction)
				}
				p.clean(before, qdiscs)
				p.fails(1, "v0 is not shaped: .*", "detach", "v0")
			})
		}
	}
}

// TestLiveQueueKilledAfterReload holds that the guard knows of queues that a
// reload brought, and of those that it took away.
func TestLiveQueueKilledAfterReload(t *testing.T) {
	t.Parallel()
	hereOnly(t)
	with, without := fmt.Sprintf(slowQueue, "50ms"), "classes: [{name: a}]"
	for _, hook := range []string{"tcx", "tc"} {
		for _, by := range []string{"SIGHUP", "reload"} {
			for i, order := range [][2]string{{without, with}, {with, without}} {
				t.Run(fmt.Sprint(hook, "-", by, "-", i), func(t *testing.T) {
					p := newQueuePair(t)
					before, qdiscs := p.attached(), p.qdiscs()
					path := file(t, order[0])
					r := p.run("--hook", hook, "--policy", path)
					rewrite(t, path, order[1])
					if by == "SIGHUP" {
						r.signal(syscall.SIGHUP)
						r.out.await(t, "reloaded")
					} else {
						p.do(0, "reload")
					}
					time.Sleep(500 * time.Millisecond) // run looks by then
					if (p.stats().Pacer == "") != (order[1] == without) {
						t.Errorf("status %+v", p.stats())
					}
					r.kill()
					p.clean(before, qdiscs)
				})
			}
		}
	}
}

// TestLiveQueuePinned holds that queues go on when a process ends, and are taken
// over.
func TestLiveQueuePinned(t *testing.T) {
	t.Parallel()
	for _, m := range methods {
		if m.hook == "xdp" {
			continue
		}
		for _, how := range []string{"term", "kill", "background"} {
			t.Run(m.hook+"-"+m.direction+"-"+how, func(t *testing.T) {
				m.need(t)
				if how != "kill" || m.direction == "egress" {
					hereOnly(t)
				}
				p := newQueuePair(t)
				p.withBpffs()
				from, to := p.sides(m)
				_, at := p.addresses(m, false)
				before, qdiscs := p.attached(), p.qdiscs()
				path := file(t, "classes: [{name: a, green: {queue: q}}]\nqueues: {q: {rate: 1mbit, limit: 40p}}")
				switch how {
				case "term":
					p.run(m.args("--pin", "--policy", path)...).term()
				case "kill":
					p.run(m.args("--pin", "--policy", path)...).kill()
				case "background":
					p.do(0, append([]string{"run", "v0", "--background", "--policy", path}, m.args()...)...)
				}
				time.Sleep(100 * time.Millisecond)
				in := listen(t, to, at)
				got := gathered(in, func() { send(t, sender(t, from, at, 0, 0), 100, 1500) })[0]
				s := p.stats()
				if c := s.Classes[0]; !s.Pinned || got < 41 || got == 100 || c.Queued.Packets != got || c.Dropped.Packets != 100-got {
					t.Errorf("%d arrived, status %+v: want 41 or a few more", got, s)
				}
				// Taken over, with another rate, and with the counters.
				rewrite(t, path, "classes: [{name: a, green: {queue: q}}]\nqueues: {q: {rate: 100mbit, limit: 100p}}")
				r := p.run(m.args("--policy", path)...)
				send(t, sender(t, from, at, 0, 0), 100, 1500)
				if n := len(in.take()); n != 100 {
					t.Errorf("%d arrived: want all", n)
				}
				if s := p.stats(); s.Pinned || s.Classes[0].Packets != 200 {
					t.Errorf("status %+v: want 200 packets", s)
				}
				r.term()
				p.clean(before, qdiscs)

				p.run(m.args("--pin", "--policy", path)...).kill()
				p.do(0, "detach")
				p.clean(before, qdiscs)
			})
		}
	}
}

// TestLiveQueueTakesOver holds that a policy of another kind takes the place of
// one that was left.
func TestLiveQueueTakesOver(t *testing.T) {
	t.Parallel()
	hereOnly(t)
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
			t.Run(direction+"-"+name, func(t *testing.T) {
				m := method{"tcx", direction}
				p := newQueuePair(t)
				from, to := p.sides(m)
				_, at := p.addresses(m, false)
				p.withBpffs()
				before, qdiscs := p.attached(), p.qdiscs()
				args := func(list []string) []string {
					return append([]string{"--direction", direction, "--policy", file(t, list[0])}, list[1:]...)
				}
				p.run(append(args(test.first), "--pin")...).term()
				r := p.run(args(test.second)...)
				s := p.stats()
				if !s.Attached || (s.Pacer != "") != test.waits {
					t.Fatalf("status %+v: want it attached; queues %v", s, test.waits)
				}
				in := listen(t, to, at)
				n := s.Classes[0].Packets
				send(t, sender(t, from, at, 0, 0), 10, 1000)
				if got := len(in.take()); got != 10 {
					t.Errorf("%d packets arrived: want 10", got)
				}
				if s := p.stats(); s.Classes[0].Packets != n+10 {
					t.Errorf("counted %+v: want 10 more than %d", s.Classes[0], n)
				}
				if r.ended() {
					t.Errorf("it ended: %q, stderr %q", &r.out, &r.err)
				} else {
					r.term()
				}
				p.clean(before, qdiscs)
			})
		}
	}
}

// TestLiveQueueConfirm holds that what nobody confirms goes, with its qdiscs,
// and that what was before comes back.
func TestLiveQueueConfirm(t *testing.T) {
	t.Parallel()
	hereOnly(t)
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
				if end == "kill" && name != "nothing" && name != "with" {
					continue
				}
				t.Run(direction+"-"+name+"-"+end, func(t *testing.T) {
					p := newQueuePair(t)
					p.withBpffs()
					args := func(list []string) []string {
						return append([]string{"--direction", direction, "--policy", file(t, list[0])}, list[1:]...)
					}
					was := shaperStats{}
					clean := p.attached()
					cleanQdiscs := p.qdiscs()
					if test.before != nil {
						p.run(append(args(test.before), "--pin")...).term()
						was = p.stats()
					}
					qdiscs := p.qdiscs()
					after := append(args(test.after), "--confirm", "1s")
					if end == "kill" {
						after = append(after, "--pin") // else its program goes with it
					}
					r := p.run(after...)
					if end == "kill" {
						r.kill()
					} else if code := r.wait(); code != 1 || !strings.Contains(r.err.String(), "not confirmed in time: rolled back") {
						t.Errorf("exit %d, stderr %q", code, &r.err)
					}
					eventually(t, func() error {
						if now := p.qdiscs(); masked(now) != masked(qdiscs) {
							return fmt.Errorf("tc says\n%s\nwant\n%s", now, qdiscs)
						}
						if test.before == nil {
							return nil
						}
						// The program follows.
						if s := p.status(); len(s) != 1 || s[0].Policy != was.Policy || s[0].Pacer != was.Pacer || !s[0].Attached || !s[0].Pinned {
							return fmt.Errorf("status %+v: want %+v", s, was)
						}
						return nil
					})
					if test.before == nil {
						p.clean(clean, cleanQdiscs)
						return
					}
					p.do(0, "detach")
					p.clean(clean, cleanQdiscs)
				})
			}
		}
	}
}
