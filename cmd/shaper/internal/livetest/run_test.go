package livetest

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestLiveDetachOneDirection checks that a run of both directions continues if one of them is
// detached.
func TestLiveDetachOneDirection(t *testing.T) {
	skipInVM(t)
	p := newPair(t)
	r := p.runShaper("--both", "--meter", unlimitedMeter)
	p.wantExit(0, "detach", "v0", "--direction", "egress")
	r.err.awaitMatch(t, "v0 egress: detached by .* with shaper detach")
	if now := p.attachedDirections(); !slices.Equal(now, []string{"ingress"}) {
		t.Errorf("attached are %v: want ingress", now)
	}
	p.wantExit(0, "reload", "v0")
	p.wantExit(0, "detach", "v0")
	if code := r.waitForExit(); code != 0 {
		t.Errorf("exit %d, stderr %q", code, r.err.String())
	}
	p.wantNothingLeft()
}

// TestLiveWaitConfirm checks that --wait and --confirm can be combined.
func TestLiveWaitConfirm(t *testing.T) {
	skipInVM(t)
	p := newPair(t)
	r := p.startShaper("run", "w0", "--wait", "--confirm", "1s", "--meter", unlimitedMeter)
	r.err.awaitMatch(t, "waiting for it to appear")
	p.near.VethNamed("w0", p.far, "w0")
	r.out.awaitMatch(t, "w0 egress: attached by")
	if code := r.waitForExit(); code != 1 ||
		!strings.Contains(r.err.String(), "not confirmed in time: rolled back") {
		t.Errorf("exit %d, stderr %q", code, r.err.String())
	}
	p.wantNothingLeft()
}

// TestLiveSecondRun checks that each direction of an interface can have one shaper only.
func TestLiveSecondRun(t *testing.T) {
	skipInVM(t)
	p := newPair(t)
	r := p.runShaper("--meter", unlimitedMeter)
	before := p.deviceState()
	for _, hook := range []string{"auto", "tc"} {
		p.wantError(1, fmt.Sprintf("v0 egress is already shaped by process %d: .*", r.cmd.Process.Pid), "run",
			"v0", "--hook", hook, "--meter", unlimitedMeter)
	}
	p.wantError(1, fmt.Sprintf("v0 egress is already shaped by process %d: .*", r.cmd.Process.Pid), "run",
		"v0", "--direction", "both", "--meter", unlimitedMeter)
	p.wantState(before)
	r.stopBySIGTERM()
}

// TestLiveDetachedByAnother checks that run ends when another process detaches it, also just
// after another process has reloaded it.
func TestLiveDetachedByAnother(t *testing.T) {
	t.Parallel()
	for _, m := range placements {
		t.Run(m.hook+"-"+m.direction, func(t *testing.T) {
			m.skipIfUnsupported(t)
			p := newPair(t)
			before := p.deviceState()
			r := p.runShaper(m.flags("--meter", unlimitedMeter)...)
			p.wantExit(0, "reload")
			p.wantExit(0, "detach")
			if code := r.waitForExit(); code != 0 ||
				!regexp.MustCompile("^shaper: v0 "+m.direction+
					": reloaded by .+ with shaper reload, policy .*\nshaper: v0 "+m.direction+
					": detached by .+ with shaper detach\n$").MatchString(r.err.String()) {
				t.Errorf("exit %d, stderr %q: want 0, and who reloaded and detached it", code, &r.err)
			}
			p.wantState(before)
		})
	}
}

// TestLiveErrors checks that errors are one line, and that nothing is attached then.
func TestLiveErrors(t *testing.T) {
	skipInVM(t)
	p := newPair(t)
	before := p.deviceState()
	p.wantError(1, "there is no interface v7: use --wait to wait for it", "run", "v7", "--meter",
		unlimitedMeter)
	for _, command := range []string{"detach", "stats", "reload", "confirm"} {
		p.wantError(1, "there is no interface v7", command, "v7")
	}
	p.wantError(2, "--hook xdp sees only arriving packets: .*", "run", "v0", "--hook", "xdp", "--meter",
		unlimitedMeter)
	p.wantError(2, "a policy is missing: .*", "run", "v0")
	p.wantError(2, `--meter:1:\d+: .*`, "run", "v0", "--meter", "token-bucket rate=1kbps burst=1")

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
		"xdp queue": {"classes:\n  - name: a\n    red: {queue: q}\nqueues: {q: {rate: 1mbit, limit: 10ms, fair: false}}", `:3:\d+: .*queue.*`, []string{"--hook", "xdp", "--direction", "ingress"}},
		"link wred": {"classes:\n  - name: a\n    red: {queue: q}\nlinks: {l: {rate: 1mbit}}\nqueues: {q: {link: l, limit: 1s, codel: true}}", `:5:\d+: codel is not supported in a queue of a link .*`, nil},
		"xdp mark":  {"classes:\n  - name: a\n    green: {mark: 7}", `:3:\d+: .*mark.*`, []string{"--hook", "xdp", "--direction", "ingress"}},
		"xdp match": {"classes:\n  - name: a\n    match: {mark: 7}", `:3:\d+: .*mark.*`, []string{"--hook", "xdp", "--direction", "ingress"}},
		"log":       {"classes:\n  - name: a\n    meter: {type: sliding-log, limit: 10kB, window: 1s}", `:3:\d+: type sliding-log cannot run in the kernel: .*`, nil},
		"idle keys": {"classes:\n  - name: a\n    meter: {type: token-bucket, rate: 1mbit, burst: 9000, per: src, evict: idle}", `:3:\d+: evict .*`, nil},
	} {
		path := writePolicy(t, c.policy)
		t.Log(name)
		p.wantError(2, path+c.want, append([]string{"run", "v0", "--policy", path}, c.args...)...)
	}
	p.wantState(before)
}

// TestLiveManyClasses attaches and reloads the maximum number of classes.
func TestLiveManyClasses(t *testing.T) {
	skipInVM(t)
	p := newPair(t)
	var many strings.Builder
	many.WriteString("classes:\n")
	for i := range 1024 {
		fmt.Fprintf(&many,
			"  - {name: c%d, match: {src: %v}, meter: {type: trtcm, cir: 8mbit, cbs: 9000, pir: 9mbit, pbs: 9000}}\n",
			i,
			netip.AddrFrom4([4]byte{10, 0, byte((1023 - i) >> 8), byte(1023 - i)}))
	}
	r := p.runShaper("--policy", writePolicy(t, many.String()))
	_, at := p.addresses(placements[0], false)
	listenUDP(t, p.far, at)
	sendUDP(t, newSender(t, p.near, at, 0, 0), 3, 100)
	p.wantExit(0, "reload")
	s := p.stats()
	if c := s.classNamed(t, "c1022"); c.packetCount != (packetCount{3, 300}) || len(s.Classes) != 1025 {
		t.Errorf("counted %+v in %d classes: want 3 packets", c.packetCount, len(s.Classes))
	}
	r.stopBySIGTERM()
}

// TestLiveNoTCX checks a kernel before 6.6: --hook tcx is an error, and the default is a tc
// filter.
func TestLiveNoTCX(t *testing.T) {
	if haveTCX() {
		t.Skip("this kernel has TCX: make vm tests one without")
	}
	p := newPair(t)
	before := p.deviceState()
	p.wantError(1, `TCX needs kernel 6.6 or newer: use --hook tc`, "run", "v0", "--hook", "tcx", "--meter",
		"token-bucket rate=1gbit burst=1MiB")
	p.wantState(before)
	r := p.runShaper("--meter", "token-bucket rate=1gbit burst=1MiB")
	r.out.awaitMatch(t, `attached by tc, `)
	r.stopBySIGTERM()
	p.wantState(before)
}

// TestLiveDryRun checks that a dry run counts, and changes no packet.
func TestLiveDryRun(t *testing.T) {
	t.Parallel()
	skipInVM(t)
	for _, m := range placements {
		t.Run(m.hook+"-"+m.direction, func(t *testing.T) {
			m.skipIfUnsupported(t)
			p := newPair(t)
			from, to := p.senderAndReceiver(m)
			_, at := p.addresses(m, false)
			r := p.runShaper(m.flags("--dry-run", "--meter", ladderMeter, "--green", "dscp=af11", "--yellow",
				"ecn=ce", "--red", "drop")...)
			r.out.awaitMatch(t, "dry run: packets are counted, not changed")
			in := listenUDP(t, to, at)
			sendUDP(t, newSender(t, from, at, af21|2, 0), 8, 100)
			got := in.receiveAll()
			for _, d := range got {
				if d.tos != af21|2 {
					t.Errorf("TOS %#x: want %#x as sent", d.tos, af21|2)
				}
			}
			if len(got) != 8 {
				t.Errorf("%d packets arrived: want 8", len(got))
			}
			s := p.stats()
			c := s.classNamed(t, "all")
			if !s.DryRun || c.Green.packetCount != (packetCount{3, 300}) ||
				c.Yellow.packetCount != (packetCount{2, 200}) || c.Red.packetCount != (packetCount{3, 300}) ||
				c.Dropped != c.Red.packetCount {
				t.Errorf("counted %+v: want 3, 2, 3 packets, and the red ones dropped", c)
			}
			r.stopBySIGTERM()
		})
	}
}

// TestLiveBoth checks that each direction has its own meters.
func TestLiveBoth(t *testing.T) {
	t.Parallel()
	skipInVM(t)
	for _, hook := range []string{"tcx", "tc"} {
		t.Run(hook, func(t *testing.T) {
			placement{hook, ""}.skipIfUnsupported(t)
			p := newPair(t)
			before := p.deviceState()
			r := p.runShaper("--hook", hook, "--direction", "both", "--meter", ladderMeter)
			r.out.awaitMatch(t, "v0 egress: attached by "+hook)
			r.out.awaitMatch(t, "v0 ingress: attached by "+hook)
			for _, direction := range []string{"egress", "ingress"} {
				m := placement{hook, direction}
				from, to := p.senderAndReceiver(m)
				_, at := p.addresses(m, false)
				in := listenUDP(t, to, at)
				sendUDP(t, newSender(t, from, at, 0, 0), 8, 100)
				if got := len(in.receiveAll()); got != 5 {
					t.Errorf("%s: %d packets arrived: want 5", direction, got)
				}
			}
			for _, direction := range []string{"egress", "ingress"} {
				s := p.stats("v0", "--direction", direction)
				if c := s.classNamed(t, "all"); c.Packets != 8 || c.Dropped.Packets != 3 {
					t.Errorf("%s: counted %+v: want 8 packets, 3 dropped", direction, c)
				}
			}
			r.stopBySIGTERM()
			p.wantState(before)
		})
	}
}

// TestLiveFor checks that --for ends a run, with or without --pin.
func TestLiveFor(t *testing.T) {
	t.Parallel()
	skipInVM(t)
	for _, hook := range []string{"tcx", "tc"} {
		t.Run(hook, func(t *testing.T) {
			placement{hook, ""}.skipIfUnsupported(t)
			p := newPair(t)
			before := p.deviceState()
			for _, pin := range []string{"--pin=false", "--pin"} {
				begin := time.Now()
				r := p.runShaper("--hook", hook, "--for", "500ms", pin, "--meter", unlimitedMeter)
				if code := r.waitForExit(); code != 0 || time.Since(begin) < 500*time.Millisecond {
					t.Errorf("%s: exit %d after %v: want 0 after 500ms; stderr %q", pin, code,
						time.Since(begin), &r.err)
				}
				p.wantState(before)
			}
		})
	}
}

// TestLiveStoppedTerminal checks that --for and SIGTERM detach in time if nothing reads the
// output of shaper.
func TestLiveStoppedTerminal(t *testing.T) {
	t.Parallel()
	skipInVM(t)
	var policy strings.Builder
	policy.WriteString("classes:\n")
	for i := range 1000 {
		fmt.Fprintf(&policy, "- {name: class-%d-with-a-long-name-for-the-table, match: {sport: %d}}\n", i,
			i+1)
	}
	path := writePolicy(t, policy.String())
	for _, how := range []string{"--for", "TERM"} {
		t.Run(how, func(t *testing.T) {
			p := newPair(t)
			before := p.deviceState()
			read, write, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer read.Close()
			fillPipe(t, write)
			args := []string{"run", "v0", "--policy", path}
			if how == "--for" {
				args = append(args, "--for", "30s")
			}
			cmd := p.shaperCommand(args...)
			cmd.Stdout, cmd.Stderr = write, write
			p.near.Start(cmd)
			write.Close()
			eventually(t, func() error {
				if p.deviceState() == before {
					return fmt.Errorf("nothing is attached")
				}
				return nil
			})
			if how == "TERM" {
				if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
					t.Fatal(err)
				}
			} else {
				t.Logf("detached %v after its deadline", p.detachLateness(p.expiryOfOnly()))
			}
			eventually(t, func() error {
				if now := p.deviceState(); now != before {
					return fmt.Errorf("still attached to v0:\n%s", now)
				}
				return nil
			})
		})
	}
}

// fillPipe writes to a pipe until it is full.
func fillPipe(t *testing.T, f *os.File) {
	t.Helper()
	fd := int(f.Fd()) // sets the file to blocking mode
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

// TestLiveWait checks that run waits for a missing interface only with --wait, and shapes it
// when it appears.
func TestLiveWait(t *testing.T) {
	skipInVM(t)
	p := newPair(t)
	p.near.Delete("v0")
	p.wantError(1, "there is no interface v0: use --wait to wait for it", "run", "v0", "--meter", ladderMeter)
	for code, args := range map[int][]string{0: nil, 1: {"--background"}} {
		r := p.startShaper(append([]string{"run", "v0", "--wait", "--meter", ladderMeter}, args...)...)
		r.err.awaitMatch(t, "^shaper: there is no interface v0 yet: waiting for it to appear\n$")
		r.sendSignal(syscall.SIGTERM)
		if got := r.waitForExit(); got != code || r.out.String() != "" {
			t.Errorf("%q: exit %d, %q, stderr %q: want %d after SIGTERM", args, got, &r.out, &r.err, code)
		}
	}
	r := p.startShaper("run", "v0", "--wait", "--meter", ladderMeter)
	r.err.awaitMatch(t, "waiting")
	p.near.Veth(p.far)
	r.awaitAttached()
	at := net.IP{10, 0, 0, 2}
	in := listenUDP(t, p.far, at)
	sendUDP(t, newSender(t, p.near, at, 0, 0), 8, 100)
	if got := len(in.receiveAll()); got != 5 {
		t.Errorf("%d packets arrived: want 5", got)
	}
	r.stopBySIGTERM()
	r = p.runShaper("--wait", "--meter", unlimitedMeter) // the interface exists
	r.stopBySIGTERM()
	if r.err.String() != "" {
		t.Errorf("stderr %q", &r.err)
	}
}

// TestLiveWarnings checks that run and reload print the warnings of shaper check for the MTU of
// the interface, and that SIGHUP prints them only if they changed.
func TestLiveWarnings(t *testing.T) {
	skipInVM(t)
	const small = "classes: [{name: a, match: {proto: udp, dport: 9}, meter: {type: gcra, rate: 1mbit, burst: 8999}}]"
	const none = "classes: [{name: a, match: {proto: udp, dport: 9}, meter: {type: gcra, rate: 1mbit, burst: 9000}}]"
	const warned = "burst of 8999 B is below the MTU: a packet of 9000 bytes"
	p := newPair(t)
	p.near.Run("ip", "link", "set", "v0", "mtu", "9000")
	path := writePolicy(t, small)
	r := p.runShaper("--policy", path)
	if list := r.err.awaitWarnings(t, 1); len(list) != 1 ||
		!strings.HasPrefix(list[0], "shaper: warning: "+path+":1:") || !strings.Contains(list[0], warned) {
		t.Fatalf("warnings %q, want that the %s", list, warned)
	}
	for i, test := range []struct {
		text string
		want int // warnings so far
	}{{small, 1}, {none, 1}, {small, 2}, {small, 2}} {
		rewriteFile(t, path, test.text)
		r.sendSignal(syscall.SIGHUP)
		r.out.awaitMatch(t, strings.Repeat(`(?s:v0 egress: reloaded.*)`, i+1))
		if list := r.err.awaitWarnings(t, test.want); len(list) != test.want {
			t.Errorf("after SIGHUP %d: warnings %q, want %d", i+1, list, test.want)
		}
	}
	e := p.startShaper("reload", "v0", "--policy", path)
	if code := e.waitForExit(); code != 0 || len(e.err.warningLines()) != 1 {
		t.Errorf("reload: exit %d, warnings %q, want one", code, e.err.warningLines())
	}
	r.stopBySIGTERM()
	if list := r.err.warningLines(); len(list) != 2 {
		t.Errorf("at the end: warnings %q, want 2", list)
	}
}
