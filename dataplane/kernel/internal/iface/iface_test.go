package iface

import (
	"errors"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/dataplane/nettest"
)

func TestMain(m *testing.M) {
	nettest.Isolate()
	m.Run()
}

// TestNameOf follows an interface through a rename, a move and its end.
func TestNameOf(t *testing.T) {
	n, far := nettest.New(t), nettest.New(t)
	n.Run("ip", "link", "add", "a0", "type", "veth", "peer", "name", "a1")
	index := n.Index("a0")
	want := func(in *nettest.Namespace, want string) {
		t.Helper()
		in.Do(func() {
			got, err := NameOf(index)
			gone := errors.As(err, new(*NoInterfaceError))
			if got != want || gone != (want == "") || gone != (err != nil) {
				t.Errorf("got %q and error %v, want %q", got, err, want)
			}
		})
	}
	want(n, "a0")
	n.Run("ip", "link", "set", "a0", "name", "of-15-bytes-abc")
	want(n, "of-15-bytes-abc")
	n.Move("of-15-bytes-abc", far)
	want(n, "")
	want(far, "of-15-bytes-abc")
	far.Run("ip", "link", "del", "of-15-bytes-abc")
	want(far, "")
}
