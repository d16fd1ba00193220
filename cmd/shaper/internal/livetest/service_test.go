package livetest

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

// manager is a service manager. It receives the notifications of a service.
type manager struct {
	t    *testing.T
	conn *net.UnixConn
}

// newManager listens on a path, or on an abstract address in the namespace of the commands.
func (p *pair) newManager(address string) *manager {
	p.t.Helper()
	m := &manager{t: p.t}
	var err error
	p.near.Do(func() {
		m.conn, err = net.ListenUnixgram("unixgram", &net.UnixAddr{Name: address, Net: "unixgram"})
	})
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { m.conn.Close() })
	return m
}

// wantNotification waits for the next datagram, which must match a pattern.
func (m *manager) wantNotification(pattern string) (matches []string) {
	m.t.Helper()
	b := make([]byte, 4096)
	if err := m.conn.SetReadDeadline(time.Now().Add(waitLimit)); err != nil {
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

// startService starts a command as a service of the manager.
func (p *pair) startService(address string, args ...string) *process {
	cmd := p.shaperCommand(args...)
	cmd.Env = append(os.Environ(), "NOTIFY_SOCKET="+address)
	return p.startCommand(cmd)
}

// monotonicMicroseconds returns the monotonic time, µs.
func monotonicMicroseconds(t *testing.T) int64 {
	t.Helper()
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		t.Fatal(err)
	}
	return now.Nano() / 1000
}

// TestLiveNotify checks the notifications of a service manager, over a socket with a path and
// over an abstract one.
func TestLiveNotify(t *testing.T) {
	t.Parallel()
	skipInVM(t)
	for name, address := range map[string]string{
		"path": filepath.Join(t.TempDir(), "notify"), "abstract": "@shaper-notify-test",
	} {
		t.Run(name, func(t *testing.T) {
			p := newPair(t)
			m := p.newManager(address)
			path := writePolicy(t, "classes: [{name: a}]")
			r := p.startService(address, "run", "v0", "--hook", "tc", "--direction", "both", "--policy", path)
			m.wantNotification("READY=1\nSTATUS=shaping v0 both")
			environ, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", guardOf(t, r)))
			if err != nil || strings.Contains(string(environ), "NOTIFY_SOCKET=") {
				t.Errorf("the guard has NOTIFY_SOCKET: %q, %v", environ, err)
			}
			for policy, status := range map[string]string{
				"classes: [{name: b}]":  "",
				"classes: [{name: b},,": "; the last reload failed: " + regexp.QuoteMeta(path) + ":1:.*",
			} {
				rewriteFile(t, path, policy)
				before := monotonicMicroseconds(t)
				r.sendSignal(syscall.SIGHUP)
				var at int64
				fmt.Sscan(m.wantNotification(`RELOADING=1\nMONOTONIC_USEC=(\d+)`)[1], &at)
				m.wantNotification("READY=1\nSTATUS=shaping v0 both" + status)
				if after := monotonicMicroseconds(t); at < before || at > after {
					t.Errorf("reloading at %d: want %d to %d", at, before, after)
				}
			}
			p.near.Delete("v0")
			m.wantNotification("READY=1\nSTATUS=waiting for v0")
			p.near.Veth(p.far)
			m.wantNotification("READY=1\nSTATUS=shaping v0 both")
			r.stopBySIGTERM()
			m.wantNotification("STOPPING=1")
			p.near.Delete("v0")
			r = p.startService(address, "run", "v0", "--wait", "--meter", unlimitedMeter)
			m.wantNotification("READY=1\nSTATUS=waiting for v0")
			p.near.Veth(p.far)
			m.wantNotification("READY=1\nSTATUS=shaping v0 egress")
			r.stopBySIGTERM()
		})
	}
}

// TestLiveNotifyFailed checks that a service with an invalid policy never reports that it is
// ready, and that shaper shapes even if the manager does not listen.
func TestLiveNotifyFailed(t *testing.T) {
	skipInVM(t)
	p := newPair(t)
	address := filepath.Join(t.TempDir(), "notify")
	m := p.newManager(address)
	if code := p.startService(address, "run", "v0", "--policy",
		writePolicy(t, "classes: {")).waitForExit(); code != 2 {
		t.Errorf("exit %d: want 2", code)
	}
	if err := m.conn.SetReadDeadline(time.Now()); err != nil {
		t.Fatal(err)
	}
	if n, err := m.conn.Read(make([]byte, 100)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("%d bytes were sent, %v: want nothing", n, err)
	}
	for _, address := range []string{address + "-closed", "relative", "@", "vsock:2:1"} {
		r := p.startService(address, "run", "v0", "--meter", unlimitedMeter)
		r.awaitAttached()
		r.stopBySIGTERM()
	}
}
