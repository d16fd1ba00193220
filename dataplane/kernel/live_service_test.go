package kernel_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

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

// manager stands for a service manager: it hears what a service notifies it of.
type manager struct {
	t    *testing.T
	conn *net.UnixConn
}

// newManager listens at a path, or at an abstract address in the namespace of
// the commands.
func (p *pair) newManager(address string) *manager {
	p.t.Helper()
	m := &manager{t: p.t}
	var err error
	p.near.Do(func() { m.conn, err = net.ListenUnixgram("unixgram", &net.UnixAddr{Name: address, Net: "unixgram"}) })
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { m.conn.Close() })
	return m
}

// wants wants the next datagram to match a pattern.
func (m *manager) wants(pattern string) (matches []string) {
	m.t.Helper()
	b := make([]byte, 4096)
	if err := m.conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
		m.t.Fatal(err)
	}
	n, err := m.conn.Read(b)
	if err != nil {
		m.t.Fatalf("%v: want %q", err, pattern)
	}
	matches = regexp.MustCompile("^" + pattern + "$").FindStringSubmatch(string(b[:n]))
	if matches == nil {
		m.t.Fatalf("notification %q: want %q", b[:n], pattern)
	}
	return matches
}

// service starts a command as a service of the manager.
func (p *pair) service(address string, args ...string) *process {
	cmd := p.command(args...)
	cmd.Env = append(os.Environ(), "NOTIFY_SOCKET="+address)
	return p.startCmd(cmd)
}

// microseconds is the time in microseconds.
func microseconds(t *testing.T) int64 {
	t.Helper()
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		t.Fatal(err)
	}
	return now.Nano() / 1000
}

// TestLiveNotify holds what a service manager is notified of, by a socket with a
// path and by an abstract one.
func TestLiveNotify(t *testing.T) {
	hereOnly(t)
	for name, address := range map[string]string{"path": filepath.Join(t.TempDir(), "notify"), "abstract": "@shaper-notify-test"} {
		t.Run(name, func(t *testing.T) {
			p := newPair(t)
			m := p.newManager(address)
			path := file(t, "classes: [{name: a}]")
			r := p.service(address, "run", "v0", "--hook", "tc", "--direction", "both", "--policy", path)
			m.wants("READY=1\nSTATUS=shaping v0 both")
			environ, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", guardOf(t, r)))
			if err != nil || strings.Contains(string(environ), "NOTIFY_SOCKET=") {
				t.Errorf("the guard has NOTIFY_SOCKET: %q, %v", environ, err)
			}
			for policy, status := range map[string]string{
				"classes: [{name: b}]":  "",
				"classes: [{name: b},,": "; the last reload failed: " + regexp.QuoteMeta(path) + ":1:.*",
			} {
				rewrite(t, path, policy)
				before := microseconds(t)
				r.signal(syscall.SIGHUP)
				var at int64
				fmt.Sscan(m.wants(`RELOADING=1\nMONOTONIC_USEC=(\d+)`)[1], &at)
				m.wants("READY=1\nSTATUS=shaping v0 both" + status)
				if after := microseconds(t); at < before || at > after {
					t.Errorf("reloading at %d: want %d to %d", at, before, after)
				}
			}
			p.near.Delete("v0")
			m.wants("READY=1\nSTATUS=waiting for v0")
			p.near.Veth(p.far)
			m.wants("READY=1\nSTATUS=shaping v0 both")
			r.term()
			m.wants("STOPPING=1")
			p.near.Delete("v0")
			r = p.service(address, "run", "v0", "--wait", "--meter", never)
			m.wants("READY=1\nSTATUS=waiting for v0")
			p.near.Veth(p.far)
			m.wants("READY=1\nSTATUS=shaping v0 egress")
			r.term()
		})
	}
}

// TestLiveNotifyFailed holds that a service with a bad policy never reports that
// it is ready, and that one whose manager does not listen still shapes.
func TestLiveNotifyFailed(t *testing.T) {
	hereOnly(t)
	p := newPair(t)
	address := filepath.Join(t.TempDir(), "notify")
	m := p.newManager(address)
	if code := p.service(address, "run", "v0", "--policy", file(t, "classes: {")).wait(); code != 2 {
		t.Errorf("exit %d: want 2", code)
	}
	if err := m.conn.SetReadDeadline(time.Now()); err != nil {
		t.Fatal(err)
	}
	if n, err := m.conn.Read(make([]byte, 100)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("%d bytes were sent, %v: want nothing", n, err)
	}
	for _, address := range []string{address + "-closed", "relative", "@", "vsock:2:1"} {
		r := p.service(address, "run", "v0", "--meter", never)
		r.attached()
		r.term()
	}
}

// TestLiveGuardDies holds that run starts another guard if its own dies, which has
// the same instructions, and leaves no zombie.
func TestLiveGuardDies(t *testing.T) {
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
