package qdisc

import (
	"testing"

	"github.com/a-seed-32e5a53f/shaper/dataplane/nettest"
)

// TestQdiscHasTree checks that HasTree finds our root, and no other one, and agrees with Root.
func TestQdiscHasTree(t *testing.T) {
	t.Parallel()
	n, far := nettest.New(t), nettest.New(t)
	n.Veth(far)
	index := n.Index("v0")
	for root, want := range map[string]bool{
		"":                         false, // the kernel's default
		"pfifo limit 10":           false,
		"handle 5ade: pfifo":       false,
		"handle 1: htb default 1":  false,
		"handle 5ade: htb":         true,
		"handle 5adf: htb r2q 100": false,
	} {
		if root != "" {
			n.Run("sh", "-c", "tc qdisc add dev v0 root "+root)
		}
		n.Do(func() {
			got, err := HasTree(index)
			if err != nil || got != want {
				t.Errorf("root %q: got %t and error %v, want %t", root, got, err, want)
			}
			if got, err = HasTree(1 << 30); got || err != nil {
				t.Errorf("no interface: got %t and error %v", got, err)
			}
		})
		if root != "" {
			n.Run("tc", "qdisc", "del", "dev", "v0", "root")
		}
	}
}
