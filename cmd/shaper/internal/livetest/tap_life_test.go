package livetest

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/rpc"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestLiveTapFor checks that --for ends shaper tap.
func TestLiveTapFor(t *testing.T) {
	p := newTAPPair(t)
	r := p.startShaper("tap", "t0", "--uplink", "v0", "--meter", unlimitedMeter, "--for", "300ms")
	r.wantExit(0)
	wantMatch(t, r.out.String(), `(?s)^t0 egress: moving .*t0 egress: ended\n$`)
	if r.err.String() != "" {
		t.Errorf("stderr %q", &r.err)
	}
}

// TestLiveTapUsage checks that errors are one line, and that no device is left.
func TestLiveTapUsage(t *testing.T) {
	p := newTAPPair(t)
	with := func(args ...string) []string {
		return append([]string{"tap", "t0", "--uplink", "v0", "--meter", unlimitedMeter}, args...)
	}
	for _, row := range []struct {
		code    int
		message string
		args    []string
	}{
		{2, "want one TAP device, got 0 arguments: see shaper tap --help", []string{"tap"}},
		{2, "give --uplink IFACE or --peer NAME", []string{"tap", "t0", "--meter", unlimitedMeter}},
		{2, "give --uplink IFACE or --peer NAME, not both", with("--peer", "t1")},
		{2, "--queues 0: want 1 to 256", with("--queues", "0")},
		{2, "--queues 257: want 1 to 256", with("--queues", "257")},
		{2, "--mtu 67: want 68 to 65521 bytes", with("--mtu", "67")},
		{2, "--mtu 65522: .*", with("--mtu", "65522")},
		{2, `--memory "0": .*`, with("--memory", "0")},
		{2, `--memory "1k": .*`, with("--memory", "1k")},
		{2, `.*--for.*`, with("--for", "-1s")},
		{2, `.*--drain.*`, with("--drain", "-1s")},
		{2, `.*egress, ingress or both.*`, with("--direction", "up")},
		{2, `--metrics "9090": .*`, with("--metrics", "9090")},
		{2, `--metrics-customers needs --metrics`, with("--metrics-customers", "5")},
		{2, `a policy is missing.*`, []string{"tap", "t0", "--uplink", "v0"}},
		{2, `.*nothing.*`, []string{"tap", "t0", "--uplink", "v0", "--meter", "nothing rate=1mbit"}},
		{1, `open uplink: there is no interface eth9: use --wait to wait for it`, []string{"tap", "t0", "--uplink", "eth9", "--meter", unlimitedMeter}},
		{1, `open tap "v0": a device of this name exists, and is not a TAP device: choose another name`, []string{"tap", "v0", "--uplink", "v0", "--meter", unlimitedMeter}},
		{1, `open tap "a23456789012345x": the name has 16 bytes: .*`, []string{"tap", "a23456789012345x", "--uplink", "v0", "--meter", unlimitedMeter}},
		{1, `open tap "t0": .*busy.*`, []string{"tap", "t0", "--peer", "t0", "--meter", unlimitedMeter}},
	} {
		p.wantError(row.code, row.message, row.args...)
		if p.deviceExists("t0") {
			t.Fatalf("%v: t0 still exists", row.args)
		}
	}
	r := p.startTap("--uplink", "v0", "--meter", unlimitedMeter)
	p.wantError(1, `open tap "t0": .*busy: a program holds it: .*`, with()...)
	p.awaitCounted(0)
	r.stopBySIGTERM()
}

// TestLiveTapUplinkGone checks that shaper tap waits for a deleted uplink, and continues with
// its counters and tokens when it is back.
func TestLiveTapUplinkGone(t *testing.T) {
	p := newTAPPair(t)
	r := p.startTap("--uplink", "v0", "--meter", "token-bucket rate=1p/1000s burst=4 count=packets")
	p.near.Inject("t0", ipv4Frames(1, 100)...)
	p.awaitCounted(1)
	for i := range 2 {
		p.near.Delete("v0")
		r.err.awaitMatch(t, fmt.Sprintf(
			"^(shaper: v0 is gone: waiting for it to come back\n(shaper: v0 is back\n)?){%d}$", i+1))
		p.awaitCounted(int64(1 + i))
		p.near.Veth(p.far)
		r.err.awaitMatch(t, fmt.Sprintf("^(shaper: v0 is gone: .*\nshaper: v0 is back\n){%d}$", i+1))
		s := p.far.Sniff("v0")
		p.near.Inject("t0", ipv4Frames(1, 100)...)
		if !s.Wait(1, waitLimit) {
			t.Error("no frame passes after the uplink is back")
		}
		if got := p.awaitCounted(int64(2 + i)).Classes[0].Meters[0].Buckets[0].Tokens; got != int64(2-i) {
			t.Errorf("%d tokens: want %d", got, 2-i)
		}
	}
	p.near.Delete("v0")
	r.err.awaitMatch(t, "(?s)back.*back.*gone: .*\n$")
	r.stopBySIGTERM()
	p = &pair{t: t, near: p.near, far: p.far}
	p.near.Veth(p.far)
	r = p.startTap("--uplink", "v0", "--meter", unlimitedMeter)
	p.near.Delete("t0")
	r.wantExit(1)
	wantMatch(t, r.err.String(), "^shaper: t0: the device is gone\n$")
	p.near.Delete("v0")
	r = p.startShaper("tap", "t0", "--uplink", "v0", "--wait", "--meter", unlimitedMeter)
	r.err.awaitMatch(t, "^shaper: there is no interface v0 yet: waiting for it to appear\n$")
	r.stopBySIGTERM()
	r = p.startShaper("tap", "t0", "--uplink", "v0", "--wait", "--meter", unlimitedMeter)
	r.err.awaitMatch(t, "waiting")
	p.near.Veth(p.far)
	r.out.awaitMatch(t, "moving frames to and from v0")
	r.stopBySIGTERM()
}

// TestLiveTapDrain checks that queued packets are sent for the time of --drain, and that the
// rest is reported as lost.
func TestLiveTapDrain(t *testing.T) {
	t.Parallel()
	for drain, test := range map[string]struct{ sent, least int }{
		"20s":   {15, 15},
		"250ms": {400, 1}, // all take 40 s
		"0s":    {400, 0},
	} {
		t.Run(drain, func(t *testing.T) {
			p := newTAPPair(t)
			r := p.startTap("--uplink", "v0", "--policy", writePolicy(t, slowTapQueue), "--drain", drain)
			s := p.far.Sniff("v0")
			begin := time.Now().UnixNano()
			p.near.Inject("t0", ipv4Frames(test.sent, 1000)...)
			eventually(t, func() error {
				if out, _ := p.wantExit(0, "stats", "--json"); !strings.Contains(out,
					fmt.Sprintf(`"packets":%d,`, test.sent)) {
					return errors.New(out)
				}
				return nil
			})
			r.stopBySIGTERM()
			frames := s.Stop()
			lost := test.sent - len(frames)
			if len(frames) < test.least || test.least < test.sent && lost == 0 {
				t.Errorf("%d packets arrived: want %d or more", len(frames), test.least)
			}
			if text := fmt.Sprintf("t0 egress: lost %d packets still queued at the end\n",
				lost); lost > 0 != strings.Contains(r.out.String(), text) {
				t.Errorf("stdout %q: want %d lost packets", &r.out, lost)
			}
			for i, f := range frames { // no packet may be early
				if after := f.Time - begin; after < int64(i)*int64(
					100*time.Millisecond)-int64(50*time.Millisecond) {
					t.Errorf("packet %d arrived %d ns after the start", i, after)
				}
			}
		})
	}
}

// TestLiveTapKilled checks that nothing is left of a killed shaper tap.
func TestLiveTapKilled(t *testing.T) {
	p := newTAPPair(t)
	for range 2 {
		r := p.startTap("--uplink", "v0", "--policy", writePolicy(t, slowTapQueue), "--queues", "2")
		p.near.Inject("t0", ipv4Frames(15, 1000)...)
		r.sendSignal(syscall.SIGKILL)
		r.wantExit(-1)
		if p.deviceExists("t0") {
			t.Error("t0 still exists")
		}
		out, _ := p.wantExit(0, "status")
		if out != "no shaper is attached in this network namespace\n" {
			t.Errorf("status %q", out)
		}
	}
}

// TestLiveTapUnprivileged checks that the error for a user without privilege names the
// capability.
func TestLiveTapUnprivileged(t *testing.T) {
	p := newTAPPair(t)
	cmd := p.shaperCommand("tap", "t0", "--uplink", "v0", "--meter", unlimitedMeter)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobodyUser, Gid: nobodyUser}}
	r := p.startCommand(cmd)
	r.wantExit(1)
	// On some machines all users can open /dev/net/tun, on others only root.
	r.wantErrorLine(`open tap "t0": .*: run as root, or with CAP_NET_ADMIN( and access to it)?`)
	if p.deviceExists("t0") {
		t.Error("t0 exists")
	}
}

// TestLiveTapOtherUsers checks that other users can neither control shaper tap nor impersonate
// it.
func TestLiveTapOtherUsers(t *testing.T) {
	p := newTAPPair(t)
	r := p.startTap("--uplink", "v0", "--meter", unlimitedMeter)
	for _, uid := range []int{nobodyUser, 0} {
		conn := p.dialControl("t0", uid)
		_ = conn.SetDeadline(time.Now().Add(waitLimit))
		client := rpc.NewClient(conn)
		var list []struct{ About struct{ Interface string } }
		err := client.Call("control.Take", struct{}{}, &list)
		if (err == nil) != (uid == 0) || (len(list) == 1) != (uid == 0) {
			t.Errorf("user %d reads %+v, %v", uid, list, err)
		}
		if uid != 0 {
			if err := client.Call("control.End", struct{}{}, &struct{}{}); err == nil ||
				errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("user %d can end it: %v", uid, err)
			}
			p.awaitCounted(0)
		}
		client.Close()
	}
	r.stopBySIGTERM()

	var fake net.Listener
	if err := p.asUser(nobodyUser, func() (err error) {
		fake, err = net.Listen("unix", "@shaper-tap:t0")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	asked := make(chan error, 1)
	go func() {
		conn, err := fake.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		if n, err := conn.Read(make([]byte, 1)); n > 0 || !errors.Is(err, io.EOF) {
			asked <- fmt.Errorf("read %d, %w", n, err)
		}
		close(asked)
	}()
	out, _ := p.wantExit(0, "status")
	if out != "no shaper is attached in this network namespace\n" {
		t.Errorf("status %q", out)
	}
	if err := <-asked; err != nil {
		t.Errorf("shaper talked to the fake: %v", err)
	}
	fake.Close()
}
