package kernel

import (
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/hook"
	"github.com/a-seed-32e5a53f/shaper/dataplane/nettest"
)

// events makes n changes that netlink announces, of a device that is not
// watched.
func events(t *testing.T, n int) {
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

// TestWatch holds that a change of a watched device is announced, that many are
// one, and that those of other devices are not.
func TestWatch(t *testing.T) {
	n := nettest.New(t)
	n.Run("ip", "link", "add", "d0", "type", "ifb") // without a carrier that comes and goes
	n.Do(func() {
		w, err := Watch()
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close()
		w.Add(&Shaper{About: About{Place: hook.Place{Index: n.Index("d0")}}})
		announced := func() bool {
			select {
			case <-w.C:
				return true
			case <-time.After(20 * time.Second):
				return false
			}
		}
		events(t, 300)
		select {
		case <-w.C:
			t.Error("changes of lo were announced")
		default:
		}
		for what, args := range map[string][]string{
			"qdisc":  {"tc", "qdisc", "replace", "dev", "d0", "root", "handle", "9:", "pfifo"},
			"clsact": {"tc", "qdisc", "add", "dev", "d0", "clsact"},
			"link":   {"ip", "link", "set", "d0", "up"},
		} {
			n.Run(args[0], args[1:]...)
			if !announced() {
				t.Errorf("%s: %v was not announced", what, args)
			}
		}
	})
}

// TestWatchLost holds that after lost notifications it is time to look.
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
		events(t, 100)
		go w.run()
		select {
		case <-w.C:
		case <-time.After(20 * time.Second):
			t.Error("lost notifications were not announced")
		}
	})
}
