package livetest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"runtime"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// startTap starts shaper tap t0 and waits until it moves frames.
func (p *pair) startTap(args ...string) *process {
	p.t.Helper()
	return p.startNamedTap("t0", args...)
}

// startNamedTap is startTap with another name.
func (p *pair) startNamedTap(name string, args ...string) *process {
	p.t.Helper()
	r := p.startShaper(append([]string{"tap", name}, args...)...)
	r.awaitPrinted("moving frames to and from")
	return r
}

// wantMatch checks that a text matches a regular expression.
func wantMatch(t *testing.T, text, pattern string) {
	t.Helper()
	if !regexp.MustCompile(pattern).MatchString(text) {
		t.Errorf("%q: want %q", text, pattern)
	}
}

// deviceExists reports whether near has a device.
func (p *pair) deviceExists(name string) (yes bool) {
	p.near.Do(func() {
		_, err := netlink.LinkByName(name)
		yes = err == nil
	})
	return yes
}

// awaitCounted waits until the first class has counted n packets.
func (p *pair) awaitCounted(n int64) shaperStats {
	p.t.Helper()
	var s shaperStats
	eventually(p.t, func() error {
		if s = p.statsList()[0]; s.Classes[0].Packets != n {
			return fmt.Errorf("counted %+v: want %d packets", s, n)
		}
		return nil
	})
	return s
}

// metricsReader returns a function that reads the metrics of a process.
func (p *pair) metricsReader(r *process) func() (string, error) {
	p.t.Helper()
	r.err.awaitMatch(p.t, `metrics at http://.*/metrics\n`)
	address := regexp.MustCompile(`http://(\S+)/metrics`).FindStringSubmatch(r.err.String())
	to, err := net.ResolveTCPAddr("tcp4", address[1])
	if err != nil {
		p.t.Fatal(err)
	}
	if !to.IP.IsLoopback() {
		p.t.Errorf("metrics at %v", to)
	}
	dial := func(context.Context, string, string) (conn net.Conn, err error) {
		p.near.Do(func() { conn, err = net.DialTCP("tcp4", nil, to) })
		return conn, err
	}
	client := http.Client{Timeout: waitLimit, Transport: &http.Transport{DialContext: dial}}
	p.t.Cleanup(client.CloseIdleConnections)
	return func() (string, error) {
		response, err := client.Get(address[0])
		if err != nil {
			return "", err
		}
		defer response.Body.Close()
		body, err := io.ReadAll(response.Body)
		if err == nil && response.StatusCode != http.StatusOK {
			err = fmt.Errorf("%s: %s", response.Status, body)
		}
		return string(body), err
	}
}

// slowTapQueue is a policy with a queue in which a packet of 1000 bytes takes 100 ms.
const slowTapQueue = "queues: {q: {rate: 80kbit, limit: 100s, fair: false}}\nclasses: [{name: all, green: {queue: q}}]\n"

// nobodyUser is a user without privilege.
const nobodyUser = 65534

// asUser runs f as a user, on a thread in near.
func (p *pair) asUser(uid int, f func() error) error {
	result := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		p.near.Do(func() {
			set := func(uid int) error {
				if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, ^uintptr(0), uintptr(uid),
					^uintptr(0)); errno != 0 {
					return errno
				}
				return nil
			}
			err := set(uid)
			if err == nil {
				err = f()
			}
			result <- errors.Join(err, set(0))
		})
	}()
	return <-result
}

// dialControl connects to the control socket as a user.
func (p *pair) dialControl(name string, uid int) (conn net.Conn) {
	p.t.Helper()
	err := p.asUser(uid, func() (err error) {
		conn, err = net.DialUnix("unix", nil, &net.UnixAddr{Name: "@shaper-tap:" + name, Net: "unix"})
		return err
	})
	if err != nil {
		p.t.Fatal(err)
	}
	return conn
}
