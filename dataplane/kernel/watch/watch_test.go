package watch

import (
	"slices"
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
		c := make(chan struct{}, 1)
		w.Add(&kernel.Shaper{About: record.About{Place: hook.Place{Index: n.Index("d0")}}}, c)
		announced := func() bool {
			select {
			case <-c:
				return true
			case <-time.After(kerneltest.Patient):
				return false
			}
		}
		changeAlias(t, 300)
		select {
		case <-c:
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
		c, unknown := make(chan struct{}, 1), make(chan struct{}, 1)
		w.Add(&kernel.Shaper{}, c)
		w.Links(func(Link) {}, func() { send([]chan<- struct{}{unknown}) })
		changeAlias(t, 100)
		go w.run()
		for what, lost := range map[string]chan struct{}{"changes": c, "links": unknown} {
			select {
			case <-lost:
			case <-time.After(kerneltest.Patient):
				t.Errorf("no announcement of %s after lost notifications", what)
			}
		}
	})
}

// TestWatchLinks follows an interface from its creation to its end. Nothing is sent after Remove.
func TestWatchLinks(t *testing.T) {
	n := nettest.New(t)
	n.Do(func() {
		w, err := New()
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close()
		links := make(chan Link, 1000)
		w.Links(func(l Link) { links <- l }, func() { t.Error("lost notifications") })
		n.Run("ip", "link", "add", "br0", "type", "bridge")
		n.Run("ip", "link", "add", "d0", "type", "veth", "peer", "name", "p0")
		index := n.Index("d0")
		c := make(chan struct{}, 1)
		w.Add(&kernel.Shaper{About: record.About{Index: index}}, c)
		w.Remove(c)
		n.Run("ip", "link", "set", "d0", "master", "br0")
		n.Run("ip", "link", "set", "d0", "nomaster") // it leaves the bridge, not the namespace
		n.Run("ip", "link", "set", "d0", "name", "d1")
		n.Run("ip", "link", "del", "d1")
		var got []Link
		for len(got) == 0 || !got[len(got)-1].Gone {
			select {
			case l := <-links:
				if l.Index == index && (len(got) == 0 || l != got[len(got)-1]) {
					got = append(got, l)
				}
			case <-time.After(kerneltest.Patient):
				t.Fatalf("got %v, and no end", got)
			}
		}
		was, is := Link{Index: index, Name: "d0"}, Link{Index: index, Name: "d1"}
		want := []Link{was, is, {Index: index, Name: "d1", Gone: true}}
		if !slices.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
		select {
		case <-c:
			t.Error("an announcement after Remove")
		default:
		}
	})
}

// FuzzAnnounce reads any messages. A message of the kernel, cut anywhere, is read or refused.
func FuzzAnnounce(f *testing.F) {
	f.Add([]byte("\x28\x00\x00\x00\x10\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00" +
		"\x00\x00\x00\x00\x07\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x07\x00\x03\x00d0\x00\x00"))
	f.Fuzz(func(t *testing.T, b []byte) {
		w := &Watcher{to: map[int32][]chan<- struct{}{}}
		w.Links(func(l Link) {
			if len(l.Name) > len(b) {
				t.Error(l)
			}
		}, func() {})
		w.announce(b)
	})
}
