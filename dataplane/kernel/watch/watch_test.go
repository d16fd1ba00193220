package watch

import (
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/hook"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/kerneltest"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/record"
	"github.com/a-seed-32e5a53f/shaper/dataplane/nettest"
)

// changeAlias makes n changes of lo, which is not watched. Netlink sends a notification for each.
func changeAlias(t *testing.T, n int) {
	t.Helper()
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	for i := range n {
		if err := netlink.LinkSetAlias(lo, []string{"a", "b"}[i%2]); err != nil {
			t.Fatal(err)
		}
	}
}

// TestWatch checks that changes of a watched device are announced, and those of other devices are
// not.
func TestWatch(t *testing.T) {
	n := nettest.New(t)
	n.Run("ip", "link", "add", "d0", "type", "ifb") // its carrier never changes
	n.Do(func() {
		w, err := New()
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close()
		w.Add(&kernel.Shaper{About: record.About{Place: hook.Place{Index: n.Index("d0")}}})
		announced := func() bool {
			select {
			case <-w.C:
				return true
			case <-time.After(kerneltest.Patient):
				return false
			}
		}
		changeAlias(t, 300)
		select {
		case <-w.C:
			t.Error("got an announcement of changes of lo, want none")
		default:
		}
		for what, args := range map[string][]string{
			"qdisc":  {"tc", "qdisc", "replace", "dev", "d0", "root", "handle", "9:", "pfifo"},
			"clsact": {"tc", "qdisc", "add", "dev", "d0", "clsact"},
			"link":   {"ip", "link", "set", "d0", "up"},
		} {
			n.Run(args[0], args[1:]...)
			if !announced() {
				t.Errorf("%s: no announcement of %v", what, args)
			}
		}
	})
}

// TestWatchLost checks that lost notifications lead to an announcement.
func TestWatchLost(t *testing.T) {
	n := nettest.New(t)
	n.Do(func() {
		w, err := newWatcher()
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close()
		raw, err := w.socket.SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		if err := raw.Control(func(fd uintptr) {
			err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, 1)
		}); err != nil {
			t.Fatal(err)
		}
		changeAlias(t, 100)
		go w.run()
		select {
		case <-w.C:
		case <-time.After(kerneltest.Patient):
			t.Error("no announcement after lost notifications")
		}
	})
}
