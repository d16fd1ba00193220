package qdisc

import "testing"

// TestQdiscLinkCounts checks the states of the classes of links: each packet of a leaf was sent by all links
// above it or is queued in all of them.
func TestQdiscLinkCounts(t *testing.T) {
	t.Parallel()
	w := newWire(t)
	q := w.install(site(40_000, 5000))
	for id := range uint16(4) {
		conn := w.Socket(int(id)+1, Handle(10+id))
		for range 5 {
			if _, err := conn.Write(make([]byte, 900)); err != nil {
				t.Fatal(err)
			}
		}
	}
	const length = 900 + 8 + 20 // UDP over IPv4, without the Ethernet header
	var got map[uint16]LinkCounts
	read := func() {
		w.Do(func() (err error) {
			got, err = AllLinkCounts(w.Index)
			return err
		})
	}
	read()
	for id, want := range map[uint16]struct{ leaves, rate, ceil uint64 }{
		1: {4, 100_000, 100_000}, 2: {2, 20_000, 40_000}, 3: {1, 80_000, Fastest}, 4: {1, 20_000, 30_000},
	} {
		c := got[id]
		if c.Rate != want.rate || c.Ceil != want.ceil {
			t.Errorf("link %d: got rates %d and %d, want %d and %d", id, c.Rate, c.Ceil, want.rate, want.ceil)
		}
		packets, bytes := c.Packets+uint64(c.Queued), c.Bytes+uint64(c.Backlog)
		if n := 5 * want.leaves; packets != n || bytes != n*length || c.Packets == 0 {
			t.Errorf("link %d: got %+v, want %d packets of %d bytes, some of them sent", id, c, n, length)
		}
	}
	if got[1].Queued == 0 {
		t.Error("no packet is queued")
	}
	// A root whose queues cannot use its rate counts on less.
	tree := site(40_000, 5000)
	tree.Links, tree.Leaves = tree.Links[:2], tree.Leaves[:1]
	w.change(q, tree)
	if read(); got[1].Rate != 5000 || got[1].Ceil != 100_000 {
		t.Errorf("got %+v, want to count on 5000 B/s of 100000", got[1])
	}
}
