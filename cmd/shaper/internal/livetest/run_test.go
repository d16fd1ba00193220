package livetest

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestLiveDetachOneDirection holds that a run of both directions goes on with the
// one that is left.
func TestLiveDetachOneDirection(t *testing.T) {
	hereOnly(t)
	p := newPair(t)
	r := p.run("--both", "--meter", never)
	p.do(0, "detach", "v0", "--direction", "egress")
	r.err.await(t, "v0 egress: detached by another process")
	if now := p.directions(); !slices.Equal(now, []string{"ingress"}) {
		t.Errorf("attached are %v: want ingress", now)
	}
	p.do(0, "reload", "v0")
	p.do(0, "detach", "v0")
	if code := r.wait(); code != 0 {
		t.Errorf("exit %d, stderr %q", code, r.err.String())
	}
	p.nothing()
}

// TestLiveWaitConfirm holds that a policy that waited for its interface is rolled
// back like any other.
func TestLiveWaitConfirm(t *testing.T) {
	hereOnly(t)
	p := newPair(t)
	r := p.start("run", "w0", "--wait", "--confirm", "1s", "--meter", never)
	r.err.await(t, "waiting for it to appear")
	p.near.VethNamed("w0", p.far, "w0")
	r.out.await(t, "w0 egress: attached by")
	if code := r.wait(); code != 1 || !strings.Contains(r.err.String(), "not confirmed in time: rolled back") {
		t.Errorf("exit %d, stderr %q", code, r.err.String())
	}
	p.nothing()
}

// TestLiveSecondRun holds that an interface has one shaper a direction.
func TestLiveSecondRun(t *testing.T) {
	hereOnly(t)
	p := newPair(t)
	r := p.run("--meter", never)
	before := p.attached()
	for _, hook := range []string{"auto", "tc"} {
		p.fails(1, fmt.Sprintf("v0 egress is already shaped by process %d: .*", r.cmd.Process.Pid), "run", "v0", "--hook", hook, "--meter", never)
	}
	p.fails(1, fmt.Sprintf("v0 egress is already shaped by process %d: .*", r.cmd.Process.Pid), "run", "v0", "--direction", "both", "--meter", never)
	p.unchanged(before)
	r.term()
}

// TestLiveDetached holds that run ends when another process detaches it.
func TestLiveDetached(t *testing.T) {
	t.Parallel()
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
		"many":      {many.String(), `:\d+:\d+: .*1025 exceed .* 1024`, nil},
		"xdp queue": {"classes:\n  - name: a\n    red: {queue: q}\nqueues: {q: {rate: 1mbit, limit: 10ms}}", `:3:\d+: .*queue.*`, []string{"--hook", "xdp", "--direction", "ingress"}},
		"link wred": {"classes:\n  - name: a\n    red: {queue: q}\nlinks: {l: {rate: 1mbit}}\nqueues: {q: {link: l, limit: 1s, codel: true}}", `:5:\d+: codel is not supported .*`, nil},
		"xdp mark":  {"classes:\n  - name: a\n    green: {mark: 7}", `:3:\d+: .*mark.*`, []string{"--hook", "xdp", "--direction", "ingress"}},
		"xdp match": {"classes:\n  - name: a\n    match: {mark: 7}", `:3:\d+: .*mark.*`, []string{"--hook", "xdp", "--direction", "ingress"}},
		"log":       {"classes:\n  - name: a\n    meter: {type: sliding-log, limit: 10kB, window: 1s}", `:3:\d+: type sliding-log cannot run in the kernel: .*`, nil},
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

// TestLiveNoTCX holds what a kernel before 6.6 gets: an error where TCX was
// asked for, a filter where it was not.
func TestLiveNoTCX(t *testing.T) {
	if haveTCX() {
		t.Skip("this kernel has TCX: make vm has one without")
	}
	p := newPair(t)
	before := p.attached()
	p.fails(1, `TCX needs kernel 6.6 or newer: use --hook tc`, "run", "v0", "--hook", "tcx", "--meter", "token-bucket rate=1gbit burst=1MiB")
	p.unchanged(before)
	r := p.run("--meter", "token-bucket rate=1gbit burst=1MiB")
	r.out.await(t, `attached by tc, `)
	r.term()
	p.unchanged(before)
}

// TestLiveDryRun holds that a dry run counts what would happen, and touches no
// packet.
func TestLiveDryRun(t *testing.T) {
	t.Parallel()
	hereOnly(t)
	for _, m := range methods {
		t.Run(m.hook+"-"+m.direction, func(t *testing.T) {
			m.need(t)
			p := newPair(t)
			from, to := p.sides(m)
			_, at := p.addresses(m, false)
			r := p.run(m.args("--dry-run", "--meter", ladder, "--green", "dscp=af11", "--yellow", "ecn=ce", "--red", "drop")...)
			r.out.await(t, "dry run: packets are counted, not changed")
			in := listen(t, to, at)
			send(t, sender(t, from, at, af21|2, 0), 8, 100)
			got := in.take()
			for _, d := range got {
				if d.tos != af21|2 {
					t.Errorf("TOS %#x: want %#x as sent", d.tos, af21|2)
				}
			}
			if len(got) != 8 {
				t.Errorf("%d packets arrived: want 8", len(got))
			}
			s := p.stats()
			c := s.class(t, "all")
			if !s.DryRun || c.Green.count != (count{3, 300}) || c.Yellow.count != (count{2, 200}) || c.Red.count != (count{3, 300}) || c.Dropped != c.Red.count {
				t.Errorf("counted %+v: want 3, 2, 3 packets, and these dropped", c)
			}
			r.term()
		})
	}
}

// TestLiveBoth holds that both directions have meters of their own.
func TestLiveBoth(t *testing.T) {
	t.Parallel()
	hereOnly(t)
	for _, hook := range []string{"tcx", "tc"} {
		t.Run(hook, func(t *testing.T) {
			method{hook, ""}.need(t)
			p := newPair(t)
			before := p.attached()
			r := p.run("--hook", hook, "--direction", "both", "--meter", ladder)
			r.out.await(t, "v0 egress: attached by "+hook)
			r.out.await(t, "v0 ingress: attached by "+hook)
			for _, direction := range []string{"egress", "ingress"} {
				m := method{hook, direction}
				from, to := p.sides(m)
				_, at := p.addresses(m, false)
				in := listen(t, to, at)
				send(t, sender(t, from, at, 0, 0), 8, 100)
				if got := len(in.take()); got != 5 {
					t.Errorf("%s: %d packets arrived: want 5", direction, got)
				}
			}
			for _, direction := range []string{"egress", "ingress"} {
				s := p.stats("v0", "--direction", direction)
				if c := s.class(t, "all"); c.Packets != 8 || c.Dropped.Packets != 3 {
					t.Errorf("%s: counted %+v: want 8 packets, 3 dropped", direction, c)
				}
			}
			r.term()
			p.unchanged(before)
		})
	}
}

// TestLiveFor holds that --for ends it, pinned or not.
func TestLiveFor(t *testing.T) {
	t.Parallel()
	hereOnly(t)
	for _, hook := range []string{"tcx", "tc"} {
		t.Run(hook, func(t *testing.T) {
			method{hook, ""}.need(t)
			p := newPair(t)
			p.withBpffs()
			before := p.attached()
			for _, pin := range []string{"--pin=false", "--pin"} {
				begin := time.Now()
				r := p.run("--hook", hook, "--for", "500ms", pin, "--meter", never)
				if code := r.wait(); code != 0 || time.Since(begin) < 500*time.Millisecond {
					t.Errorf("%s: exit %d after %v: want 0 after 500ms; stderr %q", pin, code, time.Since(begin), &r.err)
				}
				p.unchanged(before)
			}
		})
	}
}

// TestLiveStoppedTerminal holds that --for and SIGTERM detach in time though
// nobody reads what shaper prints.
func TestLiveStoppedTerminal(t *testing.T) {
	t.Parallel()
	hereOnly(t)
	var policy strings.Builder
	policy.WriteString("classes:\n")
	for i := range 1000 {
		fmt.Fprintf(&policy, "- {name: class-%d-with-a-long-name-for-the-table, match: {sport: %d}}\n", i, i+1)
	}
	path := file(t, policy.String())
	for _, how := range []string{"--for", "TERM"} {
		t.Run(how, func(t *testing.T) {
			p := newPair(t)
			before := p.attached()
			read, write, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer read.Close()
			fill(t, write)
			args := []string{"run", "v0", "--policy", path}
			if how == "--for" {
				args = append(args, "--for", "3s")
			}
			cmd := p.command(args...)
			cmd.Stdout, cmd.Stderr = write, write
			p.near.Start(cmd)
			write.Close()
			eventually(t, func() error {
				if p.attached() == before {
					return fmt.Errorf("nothing is attached")
				}
				return nil
			})
			if how == "TERM" {
				if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
					t.Fatal(err)
				}
			} else {
				t.Logf("detached %v after its time", p.lateness())
			}
			eventually(t, func() error {
				if now := p.attached(); now != before {
					return fmt.Errorf("at v0 is still\n%s", now)
				}
				return nil
			})
		})
	}
}

// fill writes to a pipe until it is full.
func fill(t *testing.T, f *os.File) {
	t.Helper()
	fd := int(f.Fd()) // makes it blocking
	if err := unix.SetNonblock(fd, true); err != nil {
		t.Fatal(err)
	}
	var err error
	for err == nil {
		_, err = unix.Write(fd, make([]byte, 4096))
	}
	for err = nil; err == nil; {
		_, err = unix.Write(fd, []byte{'\n'})
	}
	if err := unix.SetNonblock(fd, false); err != nil {
		t.Fatal(err)
	}
}

// TestLiveWait holds that run waits for an interface that is not there yet only
// if it is told to, and shapes it when it appears.
func TestLiveWait(t *testing.T) {
	hereOnly(t)
	p := newPair(t)
	p.near.Delete("v0")
	p.fails(1, "there is no interface v0: use --wait to wait for it", "run", "v0", "--meter", ladder)
	for code, args := range map[int][]string{0: nil, 1: {"--background"}} {
		r := p.start(append([]string{"run", "v0", "--wait", "--meter", ladder}, args...)...)
		r.err.await(t, "^shaper: there is no interface v0 yet: waiting for it to appear\n$")
		r.signal(syscall.SIGTERM)
		if got := r.wait(); got != code || r.out.String() != "" {
			t.Errorf("%q: exit %d, %q, stderr %q: want %d after SIGTERM", args, got, &r.out, &r.err, code)
		}
	}
	r := p.start("run", "v0", "--wait", "--meter", ladder)
	r.err.await(t, "waiting")
	p.near.Veth(p.far)
	r.attached()
	at := net.IP{10, 0, 0, 2}
	in := listen(t, p.far, at)
	send(t, sender(t, p.near, at, 0, 0), 8, 100)
	if got := len(in.take()); got != 5 {
		t.Errorf("%d packets arrived: want 5", got)
	}
	r.term()
	r = p.run("--wait", "--meter", never) // there already
	if r.err.String() != "" {
		t.Errorf("stderr %q", &r.err)
	}
	r.term()
}

// TestLiveWarnings holds that run and reload print what check warns of, for the
// MTU of the interface, and at SIGHUP only where it is not the same as before.
func TestLiveWarnings(t *testing.T) {
	hereOnly(t)
	const small = "classes: [{name: a, match: {proto: udp, dport: 9}, meter: {type: gcra, rate: 1mbit, burst: 8999}}]"
	const none = "classes: [{name: a, match: {proto: udp, dport: 9}, meter: {type: gcra, rate: 1mbit, burst: 9000}}]"
	const warned = "burst of 8999 B is below the MTU: a packet of 9000 bytes"
	p := newPair(t)
	p.near.Run("ip", "link", "set", "v0", "mtu", "9000")
	path := file(t, small)
	r := p.run("--policy", path)
	if list := r.err.warnings(); len(list) != 1 || !strings.HasPrefix(list[0], "shaper: warning: "+path+":1:") || !strings.Contains(list[0], warned) {
		t.Fatalf("warnings %q, want that the %s", list, warned)
	}
	for i, test := range []struct {
		text string
		want int // warnings so far
	}{{small, 1}, {none, 1}, {small, 2}, {small, 2}} {
		rewrite(t, path, test.text)
		r.signal(syscall.SIGHUP)
		r.out.await(t, strings.Repeat(`(?s:v0 egress: reloaded.*)`, i+1))
		if list := r.err.warnings(); len(list) != test.want {
			t.Errorf("after SIGHUP %d: warnings %q, want %d", i+1, list, test.want)
		}
	}
	e := p.start("reload", "v0", "--policy", path)
	if code := e.wait(); code != 0 || len(e.err.warnings()) != 1 {
		t.Errorf("reload: exit %d, warnings %q, want one", code, e.err.warnings())
	}
	r.term()
}
