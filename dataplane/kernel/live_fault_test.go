package kernel_test

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// TestLiveKilled holds that an interface is as it was after shaper is killed,
// with its children.
func TestLiveKilled(t *testing.T) {
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

// TestLiveSecondRun holds that an interface has one shaper a direction.
func TestLiveSecondRun(t *testing.T) {
	hereOnly(t)
	p := newPair(t)
	r := p.run("--meter", never)
	before := p.attached()
	for _, hook := range []string{"auto", "tc"} {
		p.fails(1, fmt.Sprintf("v0 egress is shaped by process %d already: .*", r.cmd.Process.Pid), "run", "v0", "--hook", hook, "--meter", never)
	}
	p.fails(1, fmt.Sprintf("v0 egress is shaped by process %d already: .*", r.cmd.Process.Pid), "run", "v0", "--direction", "both", "--meter", never)
	p.unchanged(before)
	r.term()
}

// TestLiveDetached holds that run ends when another process detaches it.
func TestLiveDetached(t *testing.T) {
	for _, m := range methods {
		t.Run(m.hook+"-"+m.direction, func(t *testing.T) {
			m.need(t)
			p := newPair(t)
			before := p.attached()
			r := p.run(m.args("--meter", never)...)
			p.do(0, "detach")
			if code := r.wait(); code != 0 || r.err.String() != "shaper: v0 "+m.direction+": detached by another process\n" {
				t.Errorf("exit %d, stderr %q: want 0 and that it was detached", code, &r.err)
			}
			p.unchanged(before)
		})
	}
}

// TestLiveInterfaceGone holds that run waits for an interface that vanished
// and shapes it when it is back.
func TestLiveInterfaceGone(t *testing.T) {
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

// TestLiveRefusals holds that what cannot be is said in one line, and nothing
// is attached.
func TestLiveRefusals(t *testing.T) {
	hereOnly(t)
	p := newPair(t)
	before := p.attached()
	p.fails(1, "there is no interface v7: use --wait to wait for it", "run", "v7", "--meter", never)
	for _, command := range []string{"detach", "stats", "reload", "confirm"} {
		p.fails(1, "there is no interface v7", command, "v7")
	}
	p.fails(2, "--hook xdp sees only arriving packets: .*", "run", "v0", "--hook", "xdp", "--meter", never)
	p.fails(2, "a policy is missing: .*", "run", "v0")
	p.fails(2, `--meter:1:\d+: .*`, "run", "v0", "--meter", "token-bucket rate=1kbps burst=1")

	var many strings.Builder
	many.WriteString("classes:\n")
	for i := range 1025 {
		fmt.Fprintf(&many, "  - {name: c%d, match: {sport: %d, proto: udp}}\n", i, i+1)
	}
	for name, c := range map[string]struct {
		policy, want string
		args         []string
	}{
		"many":      {many.String(), `:\d+:\d+: .*1025 .*1024 .*`, nil},
		"xdp queue": {"classes:\n  - name: a\n    red: {queue: q}\nqueues: {q: {rate: 1mbit, limit: 10ms}}", `:3:\d+: .*queue.*`, []string{"--hook", "xdp", "--direction", "ingress"}},
		"link wred": {"classes:\n  - name: a\n    red: {queue: q}\nlinks: {l: {rate: 1mbit}}\nqueues: {q: {link: l, limit: 1s, codel: true}}", `:5:\d+: codel is not done .*`, nil},
		"xdp mark":  {"classes:\n  - name: a\n    green: {mark: 7}", `:3:\d+: .*mark.*`, []string{"--hook", "xdp", "--direction", "ingress"}},
		"xdp match": {"classes:\n  - name: a\n    match: {mark: 7}", `:3:\d+: .*mark.*`, []string{"--hook", "xdp", "--direction", "ingress"}},
		"log":       {"classes:\n  - name: a\n    meter: {type: sliding-log, limit: 10kB, window: 1s}", `:3:\d+: type sliding-log has more state .*`, nil},
		"idle keys": {"classes:\n  - name: a\n    meter: {type: token-bucket, rate: 1mbit, burst: 9000, per: src, evict: idle}", `:3:\d+: evict .*`, nil},
	} {
		path := file(t, c.policy)
		t.Log(name)
		p.fails(2, path+c.want, append([]string{"run", "v0", "--policy", path}, c.args...)...)
	}
	p.unchanged(before)
}

// TestLiveManyClasses holds that as many classes as there may be are shaped,
// and reloaded.
func TestLiveManyClasses(t *testing.T) {
	hereOnly(t)
	p := newPair(t)
	var many strings.Builder
	many.WriteString("classes:\n")
	for i := range 1024 {
		fmt.Fprintf(&many, "  - {name: c%d, match: {src: %v}, meter: {type: trtcm, cir: 8mbit, cbs: 9000, pir: 9mbit, pbs: 9000}}\n", i,
			netip.AddrFrom4([4]byte{10, 0, byte((1023 - i) >> 8), byte(1023 - i)}))
	}
	r := p.run("--policy", file(t, many.String()))
	_, at := p.addresses(methods[0], false)
	listen(t, p.far, at)
	send(t, sender(t, p.near, at, 0, 0), 3, 100)
	p.do(0, "reload")
	s := p.stats()
	if c := s.class(t, "c1022"); c.count != (count{3, 300}) || len(s.Classes) != 1025 {
		t.Errorf("counted %+v in %d classes: want 3 packets", c.count, len(s.Classes))
	}
	r.term()
}

// TestLiveForeign holds that programs of others before and behind ours still
// see the packets that pass, and stay when ours goes.
func TestLiveForeign(t *testing.T) {
	for _, m := range methods {
		if m.hook == "xdp" {
			continue
		}
		t.Run(m.hook+"-"+m.direction, func(t *testing.T) {
			m.need(t)
			p := newPair(t)
			from, to := p.sides(m)
			_, at := p.addresses(m, false)
			filter := newForeign(t, ebpf.SchedCLS, -1, 0)
			filter.filter(p.near, m.direction)
			others := []*foreign{filter}
			if haveTCX() {
				tcx := newForeign(t, ebpf.SchedCLS, -1, 0)
				tcx.tcx(p.near, m.direction, link.Tail())
				others = append(others, tcx)
			}
			before := p.attached()
			r := p.run(m.args("--meter", ladder)...)
			for range 2 {
				in := listen(t, to, at)
				was := []uint64{}
				for _, f := range others {
					was = append(was, f.packets())
				}
				all := p.attached()
				send(t, sender(t, from, at, 0, 0), 8, 100)
				got := uint64(len(in.take()))
				in.conn.Close()
				for i, f := range others {
					// A tcx program runs before all filters.
					want := got
					if m.hook == "tc" && i == 1 {
						want = 8
					}
					if seen := f.packets() - was[i]; seen != want {
						t.Errorf("the foreign program %d saw %d packets: want %d\n%s", i, seen, want, all)
					}
				}
				if r == nil {
					break
				}
				if got != 5 {
					t.Errorf("%d packets passed: want 5", got)
				}
				r.term()
				p.unchanged(before)
				r = nil
				// Once more without ours: all pass.
			}
		})
	}
}

// TestLiveForeignFirst holds that what a foreign program in front drops or
// takes is not metered.
func TestLiveForeignFirst(t *testing.T) {
	m := method{"tcx", "egress"}
	m.need(t)
	p := newPair(t)
	_, at := p.addresses(m, false)
	r := p.run(m.args("--meter", never)...)
	newForeign(t, ebpf.SchedCLS, 2, 0).tcx(p.near, m.direction, link.Head())
	in := listen(t, p.far, at)
	send(t, sender(t, p.near, at, 0, 0), 3, 100)
	s := p.stats()
	if got := s.sum(); len(in.take()) != 0 || got != (count{}) {
		t.Errorf("counted %+v: want nothing", got)
	}
	r.term()
}

// TestLiveForeignXDP holds that an XDP program of somebody else is left alone.
func TestLiveForeignXDP(t *testing.T) {
	p := newPair(t)
	f := newForeign(t, ebpf.XDP, 2, 0)
	index := p.near.Index("v0")
	p.near.Do(func() {
		l, err := link.AttachXDP(link.XDPOptions{Program: f.program, Interface: index})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
	})
	before := p.attached()
	p.fails(1, "interface v0 has an XDP program already, and takes one: use --hook tc", "run", "v0", "--hook", "xdp", "--direction", "ingress", "--meter", never)
	p.unchanged(before)
	at := []byte{10, 0, 0, 1}
	in := listen(t, p.near, at)
	send(t, sender(t, p.far, at, 0, 0), 3, 100)
	if got := len(in.take()); got != 3 || f.packets() != 3 {
		t.Errorf("%d packets came, the program saw %d: want 3", got, f.packets())
	}
	r := p.run("--hook", "tc", "--direction", "ingress", "--meter", never)
	r.term()
	p.unchanged(before)
}

// TestLiveForeignNetlinkXDP is the same for one attached without a link, as ip
// does.
func TestLiveForeignNetlinkXDP(t *testing.T) {
	for _, flags := range []int{0, unix.XDP_FLAGS_SKB_MODE} {
		t.Run(fmt.Sprint(flags), func(t *testing.T) {
			p := newPair(t)
			f := newForeign(t, ebpf.XDP, 2, 0)
			p.near.Do(func() {
				l, err := netlink.LinkByName("v0")
				if err == nil {
					err = netlink.LinkSetXdpFdWithFlags(l, f.program.FD(), flags)
				}
				if err != nil {
					t.Fatal(err)
				}
			})
			before := p.attached()
			p.fails(1, "interface v0 has an XDP program already, .*", "run", "v0", "--hook", "xdp", "--direction", "ingress", "--meter", never)
			p.unchanged(before)
		})
	}
}

// TestLiveClsactStays holds that a clsact qdisc that was there before stays.
func TestLiveClsactStays(t *testing.T) {
	hereOnly(t)
	for _, killed := range []bool{false, true} {
		t.Run(fmt.Sprintf("killed=%v", killed), func(t *testing.T) {
			p := newPair(t)
			index := p.near.Index("v0")
			p.near.Do(func() {
				if err := netlink.QdiscAdd(clsact(index)); err != nil {
					t.Fatal(err)
				}
			})
			before := p.attached()
			r := p.run("--hook", "tc", "--meter", never)
			if killed {
				r.kill()
			} else {
				r.term()
			}
			p.soonUnchanged(before)
		})
	}
}

// TestLiveForeignUsesOurClsact holds that a qdisc that we made stays when
// somebody else has a filter there by now.
func TestLiveForeignUsesOurClsact(t *testing.T) {
	hereOnly(t)
	p := newPair(t)
	r := p.run("--hook", "tc", "--meter", never)
	newForeign(t, ebpf.SchedCLS, -1, 0).filter(p.near, "ingress")
	r.term()
	if now := p.attached(); !strings.Contains(now, "foreign") || strings.Contains(now, "shaper") {
		t.Errorf("at v0 is %s: want the foreign filter only", now)
	}
}

// privileges that a user may have.
var privileges = map[string]struct {
	uid     uint32
	caps    []uintptr
	missing string // what run says is missing
}{
	"nobody":          {65534, nil, "CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON are missing: "},
	"root without":    {0, nil, "CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON are missing: "},
	"root with":       {0, needed, ""},
	"nobody with":     {65534, needed, ""}, // only /run/shaper
	"root no perfmon": {0, needed[:2], "CAP_PERFMON is missing: "},
	"root net_admin":  {0, needed[:1], "CAP_BPF and CAP_PERFMON are missing: "},
	"root bpf":        {0, needed[1:], "CAP_NET_ADMIN is missing: "},
}

var needed = []uintptr{unix.CAP_NET_ADMIN, unix.CAP_BPF, unix.CAP_PERFMON}

// as makes a command run with some privileges and no more.
func (p *pair) as(who string, args ...string) *process {
	p.t.Helper()
	with := privileges[who]
	cmd := p.command(args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: with.uid, Gid: with.uid}}
	if with.uid != 0 {
		cmd.SysProcAttr.AmbientCaps = with.caps
	}
	var r *process
	threadWith(func() {
		if with.uid == 0 {
			for c := uintptr(0); c <= unix.CAP_LAST_CAP; c++ {
				keep := c == unix.CAP_SETGID || c == unix.CAP_SETUID
				for _, k := range with.caps {
					keep = keep || c == k
				}
				if !keep {
					_ = unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0) // this kernel may not know it
				}
			}
		}
		r = p.startCmd(cmd)
	})
	return r
}

// TestLivePrivileges holds that three capabilities are enough to run, and that
// without them there is one line that says which.
func TestLivePrivileges(t *testing.T) {
	for who := range privileges {
		if inVM {
			break
		}
		if who == "root with" {
			continue
		}
		t.Run(who, func(t *testing.T) {
			p := newPair(t)
			before := p.attached()
			for _, hook := range []string{"auto", "tc"} {
				r := p.as(who, "run", "v0", "--hook", hook, "--meter", never)
				want := "shaper: operation not permitted: " + privileges[who].missing + "run as root, or with CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON"
				if code := r.wait(); code != 1 || strings.Count(r.err.String(), "\n") != 1 || !strings.HasPrefix(r.err.String(), want) || r.out.String() != "" {
					t.Errorf("%s: exit %d, %q, stderr %q: want 1 and one line, %q", hook, code, &r.out, &r.err, want)
				}
				p.unchanged(before)
			}
			if who == "nobody with" {
				return // it was /run/shaper
			}
			r := p.as(who, "stats")
			if code := r.wait(); code != 1 || strings.Count(r.err.String(), "\n") != 1 || !strings.Contains(r.err.String(), "CAP_") {
				t.Errorf("stats: exit %d, stderr %q: want 1 and one line that names the capabilities", code, &r.err)
			}
		})
	}
	for _, m := range methods {
		t.Run(m.hook+"-"+m.direction, func(t *testing.T) {
			m.need(t)
			p := newPair(t)
			before := p.attached()
			dir, err := os.MkdirTemp("", "shaper-live") // readable for all, unlike t.TempDir
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { os.RemoveAll(dir) })
			if err := os.Chmod(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(dir, "policy.yaml")
			rewrite(t, path, "classes: [{name: a}]")
			r := p.as("root with", append([]string{"run", "v0", "--policy", path, "--metrics", ":0"}, m.args()...)...)
			r.attached()
			from, to := p.sides(m)
			_, at := p.addresses(m, false)
			in := listen(t, to, at)
			send(t, sender(t, from, at, 0, 0), 3, 100)
			if got := len(in.take()); got != 3 {
				t.Errorf("%d packets passed: want 3", got)
			}
			rewrite(t, path, "classes: [{name: a, green: {dscp: af11}}, {name: b}]")
			r.signal(syscall.SIGHUP)
			r.out.await(t, "reloaded")
			send(t, sender(t, from, at, 0, 0), 3, 100)
			if got := in.take(); len(got) != 3 || got[0].tos != af11 {
				t.Errorf("%+v arrived after SIGHUP: want 3 packets marked", got)
			}
			if got := p.scrape(r)[fmt.Sprintf(`shaper_packets_total{class="a",color="green",direction="%s",interface="v0"}`, m.direction)]; got != 6 {
				t.Errorf("metrics count %v packets: want 6", got)
			}
			if c := p.stats(); c.class(t, "a").Packets != 6 {
				t.Errorf("stats count %+v: want 6 packets", c.Classes)
			}
			r.term()
			p.unchanged(before)
			r = p.as("root with", append([]string{"run", "v0", "--policy", path, "--gso-limit", "9000"}, m.args()...)...)
			r.attached()
			r.kill()
			p.soonUnchanged(before)
		})
	}
}

// TestLiveNoTCX holds what a kernel before 6.6 gets: an error where TCX was
// asked for, a filter where it was not.
func TestLiveNoTCX(t *testing.T) {
	if haveTCX() {
		t.Skip("this kernel has TCX: make vm has one without")
	}
	p := newPair(t)
	before := p.attached()
	p.fails(1, `this kernel has no TCX, which begins with 6.6: use --hook tc`, "run", "v0", "--hook", "tcx", "--meter", "token-bucket rate=1gbit burst=1MiB")
	p.unchanged(before)
	r := p.run("--meter", "token-bucket rate=1gbit burst=1MiB")
	r.out.await(t, `attached by tc, `)
	r.term()
	p.unchanged(before)
}
