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

// TestLiveTapFor holds that it ends by itself.
func TestLiveTapFor(t *testing.T) {
	p := newTAPPair(t)
	r := p.start("tap", "t0", "--uplink", "v0", "--meter", never, "--for", "300ms")
	r.exits(0)
	matches(t, r.out.String(), `(?s)^t0 egress: moving .*t0 egress: ended\n$`)
	if r.err.String() != "" {
		t.Errorf("stderr %q", &r.err)
	}
}

// TestLiveTapUsage holds that what is wrong ends it, by one line, and leaves
// nothing behind.
func TestLiveTapUsage(t *testing.T) {
	p := newTAPPair(t)
	with := func(args ...string) []string {
		return append([]string{"tap", "t0", "--uplink", "v0", "--meter", never}, args...)
	}
	for _, row := range []struct {
		code    int
		message string
		args    []string
	}{
		{2, "want one TAP device, got 0 arguments: see shaper tap --help", []string{"tap"}},
		{2, "give --uplink IFACE or --peer NAME", []string{"tap", "t0", "--meter", never}},
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
		{2, `a policy is missing.*`, []string{"tap", "t0", "--uplink", "v0"}},
		{2, `.*nothing.*`, []string{"tap", "t0", "--uplink", "v0", "--meter", "nothing rate=1mbit"}},
		{1, `open uplink: there is no interface eth9: use --wait to wait for it`, []string{"tap", "t0", "--uplink", "eth9", "--meter", never}},
		{1, `open tap "v0": a device of this name exists, and is not a TAP device: choose another name`, []string{"tap", "v0", "--uplink", "v0", "--meter", never}},
		{1, `open tap "a23456789012345x": the name has 16 bytes: .*`, []string{"tap", "a23456789012345x", "--uplink", "v0", "--meter", never}},
		{1, `open tap "t0": .*busy.*`, []string{"tap", "t0", "--peer", "t0", "--meter", never}},
	} {
		p.fails(row.code, row.message, row.args...)
		if p.exists("t0") {
			t.Fatalf("%v: t0 is there still", row.args)
		}
	}
	r := p.tap("--uplink", "v0", "--meter", never)
	p.fails(1, `open tap "t0": .*busy: a program holds it: .*`, with()...)
	p.carried(0)
	r.term()
}

// TestLiveTapGone holds that it waits for an uplink that vanished, and goes on
// with counters and tokens when it is back.
func TestLiveTapGone(t *testing.T) {
	p := newTAPPair(t)
	r := p.tap("--uplink", "v0", "--meter", "token-bucket rate=1p/1000s burst=4 count=packets")
	p.near.Inject("t0", packets(1, 100)...)
	p.carried(1)
	for i := range 2 {
		p.near.Delete("v0")
		r.err.await(t, fmt.Sprintf("^(shaper: v0 is gone: waiting for it to come back\n(shaper: v0 is back\n)?){%d}$", i+1))
		p.carried(int64(1 + i))
		p.near.Veth(p.far)
		r.err.await(t, fmt.Sprintf("^(shaper: v0 is gone: .*\nshaper: v0 is back\n){%d}$", i+1))
		s := p.far.Sniff("v0")
		p.near.Inject("t0", packets(1, 100)...)
		if !s.Wait(1, patience) {
			t.Error("it does not go on")
		}
		if got := p.carried(int64(2 + i)).Classes[0].Meters[0].Buckets[0].Tokens; got != int64(2-i) {
			t.Errorf("%d tokens: want %d", got, 2-i)
		}
	}
	p.near.Delete("v0")
	r.err.await(t, "(?s)back.*back.*gone: .*\n$")
	r.term()
	p = &pair{t: t, near: p.near, far: p.far}
	p.near.Veth(p.far)
	r = p.tap("--uplink", "v0", "--meter", never)
	p.near.Delete("t0")
	r.exits(1)
	matches(t, r.err.String(), "^shaper: t0: the device is gone\n$")
	p.near.Delete("v0")
	r = p.start("tap", "t0", "--uplink", "v0", "--wait", "--meter", never)
	r.err.await(t, "^shaper: there is no interface v0 yet: waiting for it to appear\n$")
	r.term()
	r = p.start("tap", "t0", "--uplink", "v0", "--wait", "--meter", never)
	r.err.await(t, "waiting")
	p.near.Veth(p.far)
	r.out.await(t, "moving frames to and from v0")
	r.term()
}

// TestLiveTapDrain holds that what waits at the end leaves, for as long as it
// may, and that the rest is told.
func TestLiveTapDrain(t *testing.T) {
	t.Parallel()
	for drain, least := range map[string]int{"20s": 15, "250ms": 2, "0s": 0} {
		t.Run(drain, func(t *testing.T) {
			p := newTAPPair(t)
			r := p.tap("--uplink", "v0", "--policy", file(t, slow), "--drain", drain)
			s := p.far.Sniff("v0")
			p.near.Inject("t0", packets(15, 1000)...)
			eventually(t, func() error {
				if out, _ := p.do(0, "stats", "--json"); !strings.Contains(out, `"packets":15,`) {
					return errors.New(out)
				}
				return nil
			})
			r.term()
			frames := s.Stop()
			lost := 15 - len(frames)
			if len(frames) < least || least < 15 && lost == 0 {
				t.Errorf("%d packets came, want %d or more", len(frames), least)
			}
			if text := fmt.Sprintf("t0 egress: lost %d packets still queued at the end\n", lost); lost > 0 != strings.Contains(r.out.String(), text) {
				t.Errorf("%q: %d are lost", &r.out, lost)
			}
			for i := 1; i < len(frames); i++ { // none early
				if gap := frames[i].Time - frames[0].Time; gap < int64(i)*int64(100*time.Millisecond)-int64(50*time.Millisecond) {
					t.Errorf("packet %d came %d ns after the first", i, gap)
				}
			}
		})
	}
}

// TestLiveTapKilled holds that nothing is left of one that is killed.
func TestLiveTapKilled(t *testing.T) {
	p := newTAPPair(t)
	for range 2 {
		r := p.tap("--uplink", "v0", "--policy", file(t, slow), "--queues", "2")
		p.near.Inject("t0", packets(15, 1000)...)
		r.signal(syscall.SIGKILL)
		r.exits(-1)
		if p.exists("t0") {
			t.Error("t0 is there still")
		}
		out, _ := p.do(0, "status")
		if out != "no shaper is attached in this network namespace\n" {
			t.Errorf("status %q", out)
		}
	}
}

// TestLiveTapUnprivileged holds that others than root are told what they need.
func TestLiveTapUnprivileged(t *testing.T) {
	p := newTAPPair(t)
	cmd := p.command("tap", "t0", "--uplink", "v0", "--meter", never)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	r := p.startCmd(cmd)
	r.exits(1)
	// Of some machines /dev/net/tun is open to all, of others to root.
	r.failed(`open tap "t0": .*: run as root, or with CAP_NET_ADMIN( and access to it)?`)
	if p.exists("t0") {
		t.Error("t0 is there")
	}
}

// TestLiveTapForeign holds that other users can neither control it nor pretend
// to be one.
func TestLiveTapForeign(t *testing.T) {
	p := newTAPPair(t)
	r := p.tap("--uplink", "v0", "--meter", never)
	for _, uid := range []int{nobody, 0} {
		conn := p.dial("t0", uid)
		_ = conn.SetDeadline(time.Now().Add(patience))
		client := rpc.NewClient(conn)
		var list []struct{ About struct{ Interface string } }
		err := client.Call("control.Take", struct{}{}, &list)
		if (err == nil) != (uid == 0) || (len(list) == 1) != (uid == 0) {
			t.Errorf("user %d gets %+v, %v", uid, list, err)
		}
		if uid != 0 {
			if err := client.Call("control.End", struct{}{}, &struct{}{}); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("user %d ends it: %v", uid, err)
			}
			p.carried(0)
		}
		client.Close()
	}
	r.term()

	var fake net.Listener
	if err := p.asUser(nobody, func() (err error) {
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
	out, _ := p.do(0, "status")
	if out != "no shaper is attached in this network namespace\n" {
		t.Errorf("status %q", out)
	}
	if err := <-asked; err != nil {
		t.Errorf("it was asked: %v", err)
	}
	fake.Close()
}
