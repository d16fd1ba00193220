package livetest

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
)

// TestLiveKilled checks that the interface is unchanged after shaper and its child processes
// were killed.
func TestLiveKilled(t *testing.T) {
	t.Parallel()
	for _, m := range placements {
		for _, gso := range []string{"", "9000"} {
			t.Run(m.hook+"-"+m.direction+"-"+gso, func(t *testing.T) {
				m.skipIfUnsupported(t)
				p := newPair(t)
				before := p.deviceState()
				args := m.flags("--meter", unlimitedMeter)
				if gso != "" {
					skipInVM(t)
					args = append(args, "--gso-limit", gso)
				}
				r := p.runShaper(args...)
				if now := p.deviceState(); now == before || gso != "" && !strings.Contains(now, "gso 9000") {
					t.Errorf("attached to v0: %s: want more", now)
				}
				r.killAndWait()
				p.awaitState(before)
				p.wantError(1, "no shaper is attached: .*", "stats")
				r = p.runShaper(args...)
				r.stopBySIGTERM()
				p.wantState(before)
			})
		}
	}
}

// TestLiveKilledBoth is TestLiveKilled for both directions of one process.
func TestLiveKilledBoth(t *testing.T) {
	skipInVM(t)
	p := newPair(t)
	before := p.deviceState()
	r := p.runShaper("--hook", "tc", "--direction", "both", "--meter", unlimitedMeter)
	r.out.awaitMatch(t, "v0 ingress: attached")
	r.killAndWait()
	p.awaitState(before)
}

// TestLiveKilledTwo checks that the first of two shapers of an interface to end leaves the
// other one intact, and that nothing is left after the second.
func TestLiveKilledTwo(t *testing.T) {
	t.Parallel()
	skipInVM(t)
	for _, killed := range []bool{false, true} {
		t.Run(fmt.Sprintf("killed=%v", killed), func(t *testing.T) {
			p := newPair(t)
			before := p.deviceState()
			first := p.runShaper("--hook", "tc", "--meter", unlimitedMeter)
			second := p.runShaper("--hook", "tc", "--direction", "ingress", "--meter", unlimitedMeter)
			both := p.deviceState()
			end := (*process).stopBySIGTERM
			if killed {
				end = (*process).killAndWait
			}
			end(first)
			eventually(t, func() error {
				if now := p.deviceState(); now == both {
					return fmt.Errorf("still attached to v0: %s", now)
				}
				return nil
			})
			if s := p.stats(); s.Direction != "ingress" || !s.Attached {
				t.Errorf("left: %+v: want ingress, attached", s)
			}
			end(second)
			p.awaitState(before)
		})
	}
}

// TestLivePinned checks that a pinned shaper continues after its process ends in any way. stats
// must find it, run must take it over, and detach must remove it.
func TestLivePinned(t *testing.T) {
	t.Parallel()
	for _, m := range placements {
		for _, killed := range []bool{false, true} {
			if !killed && m != placements[0] {
				continue // the way of ending does not depend on the hook
			}
			t.Run(fmt.Sprintf("%s-%s-killed=%v", m.hook, m.direction, killed), func(t *testing.T) {
				m.skipIfUnsupported(t)
				if !killed {
					skipInVM(t)
				}
				p := newPair(t)
				from, to := p.senderAndReceiver(m)
				_, at := p.addresses(m, false)
				before := p.deviceState()
				in := listenUDP(t, to, at)
				meter := []string{"--meter", "token-bucket rate=1B/1000s burst=1000"}
				r := p.runShaper(m.flags(append(meter, "--pin")...)...)
				if killed {
					r.killAndWait()
				} else {
					r.stopBySIGTERM()
					r.out.awaitMatch(t, "still attached; shaper detach v0 removes it")
				}
				sendUDP(t, newSender(t, from, at, 0, 0), 7, 200)
				if got := len(in.receiveAll()); got != 5 {
					t.Errorf("%d packets passed: want 5", got)
				}
				s := p.stats()
				if c := s.classNamed(t, "all"); !s.Attached || !s.Pinned || s.State != "attached, pinned" ||
					c.packetCount != (packetCount{7, 1400}) {
					t.Errorf("stats %+v: want it attached, pinned, with 7 packets", s)
				}
				p.wantExit(0, "reload", "--meter", "token-bucket rate=1B/1000s burst=800")
				r = p.runShaper(m.flags(meter...)...)
				r.out.awaitMatch(t, "class all: kept")
				s = p.stats()
				if c := s.classNamed(t, "all"); s.Pinned || c.packetCount != (packetCount{7, 1400}) ||
					c.Meters[0].Buckets[0].Tokens != 0 {
					t.Errorf("stats %+v after it was taken over: want 7 packets, no tokens", s)
				}
				r.stopBySIGTERM()
				p.wantState(before)
				if !killed {
					return
				}
				p.runShaper(m.flags(append(meter, "--pin", "--gso-limit", "9000")...)...).killAndWait()
				out, _ := p.wantExit(0, "detach")
				if out != "v0 "+m.direction+": detached\n" {
					t.Errorf("detach prints %q", out)
				}
				p.wantState(before)
			})
		}
	}
}

// TestLiveWithoutBpffs checks that without bpffs only a tc filter can be pinned.
func TestLiveWithoutBpffs(t *testing.T) {
	p := newPair(t)
	p.withMounts("umount /sys/fs/bpf")
	before := p.deviceState()
	p.wantError(1, "bpffs, .*, is not mounted: mount -t bpf -o mode=0700 bpf /sys/fs/bpf, or use --hook tc",
		"run", "v0", "--pin", "--hook", "tcx", "--meter", unlimitedMeter)
	p.wantError(1, "bpffs, .*", "run", "v0", "--pin", "--hook", "xdp", "--direction", "ingress", "--meter",
		unlimitedMeter)
	p.wantState(before)
	r := p.runShaper("--pin", "--meter", unlimitedMeter)
	r.out.awaitMatch(t, "attached by tc,")
	r.killAndWait()
	if s := p.stats(); s.Hook != "tc" || !s.Attached {
		t.Errorf("stats %+v: want tc, attached", s)
	}
	p.wantExit(0, "detach", "v0")
	p.wantState(before)
}

// TestLiveInterfaceGone checks that run waits for an interface that was deleted and shapes it
// again when it is back.
func TestLiveInterfaceGone(t *testing.T) {
	t.Parallel()
	for _, m := range placements {
		t.Run(m.hook+"-"+m.direction, func(t *testing.T) {
			m.skipIfUnsupported(t)
			p := newPair(t)
			r := p.runShaper(m.flags("--meter", ladderMeter)...)
			for range 2 {
				// a new v0 is down at first
				r.err.awaitMatch(t, `^(shaper: v0 is gone \(.*\): waiting for it to come back\n|`+
					`shaper: v0 \w+: (no longer: )?interface v0 is down\n)*$`)
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
				from, to := p.senderAndReceiver(m)
				_, at := p.addresses(m, false)
				in := listenUDP(t, to, at)
				sendUDP(t, newSender(t, from, at, 0, 0), 8, 100)
				if got := len(in.receiveAll()); got != 5 {
					t.Errorf("%d packets arrived: want 5", got)
				}
				in.conn.Close()
			}
			r.stopBySIGTERM()
		})
	}
}

// TestLiveGuardDies checks that run replaces a guard that died, with the same instructions, and
// leaves no zombie.
func TestLiveGuardDies(t *testing.T) {
	t.Parallel()
	skipInVM(t)
	for _, end := range []string{"kill", "term"} {
		t.Run(end, func(t *testing.T) {
			p := newPair(t)
			before := p.deviceState()
			path := writePolicy(t, "classes: [{name: a}]")
			r := p.runShaper("--hook", "tc", "--gso-limit", "9000", "--policy", path)
			guard := guardOf(t, r)
			for range 2 {
				if err := syscall.Kill(guard, syscall.SIGKILL); err != nil {
					t.Fatal(err)
				}
				eventually(t, func() error {
					now := childrenOf(t, r.cmd.Process.Pid)
					if len(now) != 1 || now[0] == guard {
						return fmt.Errorf("children %v: want only a guard other than %d", now, guard)
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
			r.reloadBySIGHUP()
			if end == "kill" {
				r.killAndWait()
			} else {
				r.stopBySIGTERM()
			}
			p.awaitState(before)
			eventually(t, func() error { // its parent, run or init, reaps it
				if line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", guard)); err == nil &&
					len(line) > 0 {
					return fmt.Errorf("the guard still runs: %q", line)
				}
				return nil
			})
		})
	}
}
