package livetest

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
)

// TestLiveKilled holds that an interface is as it was after shaper is killed,
// with its children.
func TestLiveKilled(t *testing.T) {
	t.Parallel()
	for _, m := range methods {
		for _, gso := range []string{"", "9000"} {
			t.Run(m.hook+"-"+m.direction+"-"+gso, func(t *testing.T) {
				m.need(t)
				p := newPair(t)
				before := p.attached()
				args := m.args("--meter", never)
				if gso != "" {
					hereOnly(t)
					args = append(args, "--gso-limit", gso)
				}
				r := p.run(args...)
				if now := p.attached(); now == before || gso != "" && !strings.Contains(now, "gso 9000") {
					t.Errorf("at v0 is %s: want more", now)
				}
				r.kill()
				p.soonUnchanged(before)
				p.fails(1, "no shaper is attached: .*", "stats")
				r = p.run(args...)
				r.term()
				p.unchanged(before)
			})
		}
	}
}

// TestLiveKilledBoth is the same for both directions at once.
func TestLiveKilledBoth(t *testing.T) {
	hereOnly(t)
	p := newPair(t)
	before := p.attached()
	r := p.run("--hook", "tc", "--direction", "both", "--meter", never)
	r.out.await(t, "v0 ingress: attached")
	r.kill()
	p.soonUnchanged(before)
}

// TestLiveKilledTwo holds that two shapers of an interface each leave what is
// the other's, and the last one leaves nothing.
func TestLiveKilledTwo(t *testing.T) {
	t.Parallel()
	hereOnly(t)
	for _, killed := range []bool{false, true} {
		t.Run(fmt.Sprintf("killed=%v", killed), func(t *testing.T) {
			p := newPair(t)
			before := p.attached()
			first := p.run("--hook", "tc", "--meter", never)
			second := p.run("--hook", "tc", "--direction", "ingress", "--meter", never)
			both := p.attached()
			end := (*process).term
			if killed {
				end = (*process).kill
			}
			end(first)
			eventually(t, func() error {
				if now := p.attached(); now == both {
					return fmt.Errorf("still at v0: %s", now)
				}
				return nil
			})
			if s := p.stats(); s.Direction != "ingress" || !s.Attached {
				t.Errorf("left is %+v: want ingress, attached", s)
			}
			end(second)
			p.soonUnchanged(before)
		})
	}
}

// TestLivePinned holds that a pinned shaper goes on when its process ends,
// however it does: stats find it, run takes it over, and detach ends it.
func TestLivePinned(t *testing.T) {
	t.Parallel()
	for _, m := range methods {
		for _, killed := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s-%s-killed=%v", m.hook, m.direction, killed), func(t *testing.T) {
				m.need(t)
				if !killed {
					hereOnly(t)
				}
				p := newPair(t)
				p.withBpffs()
				from, to := p.sides(m)
				_, at := p.addresses(m, false)
				before := p.attached()
				in := listen(t, to, at)
				meter := []string{"--meter", "token-bucket rate=1B/1000s burst=1000"}
				r := p.run(m.args(append(meter, "--pin")...)...)
				if killed {
					r.kill()
				} else {
					r.term()
					r.out.await(t, "still attached; shaper detach v0 removes it")
				}
				send(t, sender(t, from, at, 0, 0), 7, 200)
				if got := len(in.take()); got != 5 {
					t.Errorf("%d packets passed: want 5", got)
				}
				s := p.stats()
				if c := s.class(t, "all"); !s.Attached || !s.Pinned || s.State != "attached, pinned" || c.count != (count{7, 1400}) {
					t.Errorf("stats %+v: want it attached, pinned, with 7 packets", s)
				}
				p.do(0, "reload", "--meter", "token-bucket rate=1B/1000s burst=800")
				r = p.run(m.args(meter...)...)
				r.out.await(t, "class all: kept")
				s = p.stats()
				if c := s.class(t, "all"); s.Pinned || c.count != (count{7, 1400}) || c.Meters[0].Buckets[0].Tokens != 0 {
					t.Errorf("stats %+v after it was taken over: want 7 packets, no tokens", s)
				}
				r.term()
				p.unchanged(before)

				p.run(m.args(append(meter, "--pin", "--gso-limit", "9000")...)...).kill()
				out, _ := p.do(0, "detach")
				if out != "v0 "+m.direction+": detached\n" {
					t.Errorf("detach says %q", out)
				}
				p.unchanged(before)
			})
		}
	}
}

// TestLiveWithoutBpffs holds that without bpffs only a tc filter can stay.
func TestLiveWithoutBpffs(t *testing.T) {
	p := newPair(t)
	p.withoutBpffs()
	before := p.attached()
	p.fails(1, "bpffs, .*, is not mounted: mount -t bpf -o mode=0700 bpf /sys/fs/bpf, or use --hook tc", "run", "v0", "--pin", "--hook", "tcx", "--meter", never)
	p.fails(1, "bpffs, .*", "run", "v0", "--pin", "--hook", "xdp", "--direction", "ingress", "--meter", never)
	p.unchanged(before)
	r := p.run("--pin", "--meter", never)
	r.out.await(t, "attached by tc,")
	r.kill()
	if s := p.stats(); s.Hook != "tc" || !s.Attached {
		t.Errorf("stats %+v: want tc, attached", s)
	}
	p.do(0, "detach", "v0")
	p.unchanged(before)
}

// TestLiveInterfaceGone holds that run waits for an interface that vanished
// and shapes it when it is back.
func TestLiveInterfaceGone(t *testing.T) {
	t.Parallel()
	for _, m := range methods {
		t.Run(m.hook+"-"+m.direction, func(t *testing.T) {
			m.need(t)
			p := newPair(t)
			r := p.run(m.args("--meter", ladder)...)
			for range 2 {
				r.err.await(t, `^(shaper: v0 is gone \(.*\): waiting for it to come back\n)*$`)
				attachedBefore := strings.Count(r.out.String(), "attached by")
				gone := strings.Count(r.err.String(), "is gone")
				p.near.Delete("v0")
				eventually(t, func() error {
					if n := strings.Count(r.err.String(), ": waiting for it to come back\n"); n != gone+1 {
						return fmt.Errorf("stderr %q: want that it waits", &r.err)
					}
					return nil
				})
				p.near.Veth(p.far)
				eventually(t, func() error {
					if n := strings.Count(r.out.String(), "attached by"); n != attachedBefore+1 {
						return fmt.Errorf("%q, stderr %q: want it attached again", &r.out, &r.err)
					}
					return nil
				})
				from, to := p.sides(m)
				_, at := p.addresses(m, false)
				in := listen(t, to, at)
				send(t, sender(t, from, at, 0, 0), 8, 100)
				if got := len(in.take()); got != 5 {
					t.Errorf("%d packets arrived: want 5", got)
				}
				in.conn.Close()
			}
			r.term()
		})
	}
}

// TestLiveGuardDies holds that run starts another guard if its own dies, which has
// the same instructions, and leaves no zombie.
func TestLiveGuardDies(t *testing.T) {
	t.Parallel()
	hereOnly(t)
	for _, end := range []string{"kill", "term"} {
		t.Run(end, func(t *testing.T) {
			p := newPair(t)
			before := p.attached()
			path := file(t, "classes: [{name: a}]")
			r := p.run("--hook", "tc", "--gso-limit", "9000", "--policy", path)
			guard := guardOf(t, r)
			for range 2 {
				if err := syscall.Kill(guard, syscall.SIGKILL); err != nil {
					t.Fatal(err)
				}
				eventually(t, func() error {
					now := children(t, r.cmd.Process.Pid)
					if len(now) != 1 || now[0] == guard {
						return fmt.Errorf("children %v: want another guard than %d and nothing else", now, guard)
					}
					return nil
				})
				guard = guardOf(t, r)
			}
			eventually(t, func() error {
				line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", guard))
				comm, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", guard))
				if string(line) != "shaper\x00guard\x00v0\x00" || string(comm) != "shaper\n" {
					return fmt.Errorf("the guard is called %q, %q: want shaper guard v0", comm, line)
				}
				return nil
			})
			r.signal(syscall.SIGHUP)
			r.out.await(t, "reloaded")
			if end == "kill" {
				r.kill()
			} else {
				r.term()
			}
			p.soonUnchanged(before)
			eventually(t, func() error { // it is ours, or init's: either reaps it
				if line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", guard)); err == nil && len(line) > 0 {
					return fmt.Errorf("the guard is there still: %q", line)
				}
				return nil
			})
		})
	}
}
