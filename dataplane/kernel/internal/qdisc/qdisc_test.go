package qdisc

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane/nettest"
)

// wire is a veth pair. Trees are installed on v0 of Near.
type wire struct{ *nettest.Wire }

// newWire connects two network namespaces.
func newWire(t *testing.T) *wire { return &wire{nettest.NewWire(t)} }

// install installs a tree on a device as site.pace does, but without a journal.
func (t *Tree) install(index int) (*Saved, error) {
	root, err := Root(index)
	if err != nil {
		return nil, err
	}
	if root.Ours() {
		if err := Remove(index); err != nil {
			return nil, err
		}
	}
	before, err := Save(index)
	if err != nil {
		return nil, err
	}
	return before, t.Plant(index, before)
}

// install installs a tree on v0. It skips the test if the kernel lacks the qdisc.
func (w *wire) install(tree *Tree) (q *Saved) {
	w.T.Helper()
	w.Do(func() (err error) {
		if err := Have(tree.Kind); err != nil {
			w.T.Skip(err)
		}
		q, err = tree.install(w.Index)
		return err
	})
	return q
}

// change replaces the installed tree. Leaves that stay under the same link keep their queued
// packets. A change of pacer drops them.
func (s *Saved) change(index int, t *Tree) error {
	if err := t.Grow(index); err != nil {
		return err
	}
	_, err := t.Prune(index, 0)
	return err
}

// change replaces the tree on v0.
func (w *wire) change(q *Saved, tree *Tree) {
	w.T.Helper()
	w.Do(func() error { return q.change(w.Index, tree) })
}

// stats are the counters of v0's leaves, by ID.
func (w *wire) stats() (s map[uint16]Counts) {
	w.T.Helper()
	w.Do(func() (err error) {
		s, err = LeafCounts(w.Index)
		return err
	})
	return s
}

// bitRate is a rate of n bit/s in bytes per second.
func bitRate(n uint64) uint64 { return n / 8 }

// credit is the time whose bytes a leaf can send at once.
const credit = 10 * time.Millisecond

// TestQdiscChange checks that leaves that stay keep their queued packets, and that a change leads
// to the same tree as a new installation.
func TestQdiscChange(t *testing.T) {
	t.Parallel()
	w := newWire(t)
	q := w.install(&Tree{
		Kind:  HTB,
		Links: []Link{{ID: 0x100, Rate: bitRate(100_000)}},
		Leaves: []Leaf{
			{ID: 1, Rate: bitRate(100_000), Limit: 100_000},
			{ID: 2, Parent: 0x100, Priority: 3, Quantum: 2000},
			{ID: 3, Rate: bitRate(800)}, // a packet takes 10 s
			{ID: 4, Rate: bitRate(800)},
		},
	})
	sniffer := w.Far.Sniff("v0")
	for id := range uint16(4) {
		conn := w.Socket(int(id)+1, Handle(id+1))
		for range 50 {
			if _, err := conn.Write(make([]byte, 958)); err != nil {
				t.Fatal(err)
			}
		}
	}
	next := &Tree{
		Kind: HTB, Overhead: -14,
		Links: []Link{{ID: 0x100, Rate: bitRate(20_000_000)}, {ID: 0x101, Rate: bitRate(9_000_000)}},
		Leaves: []Leaf{
			{ID: 1, Rate: bitRate(10_000_000)},
			{ID: 2, Parent: 0x100, Priority: 1, Quantum: 1514, Limit: 1000},
			{ID: 4, Parent: 0x101}, // a new leaf of the same ID
			{ID: 5, Parent: 0x101, Rate: bitRate(1_000_000)},
		},
	}
	w.change(q, next)
	for try := 0; try < 1000 && w.stats()[1].Queued+w.stats()[2].Queued > 0; try++ {
		time.Sleep(10 * time.Millisecond)
	}
	time.Sleep(50 * time.Millisecond)
	ports := map[int]int{}
	for _, f := range sniffer.Stop() {
		ports[nettest.PortOf(f)]++
	}
	if ports[1] != 50 || ports[2] != 50 || ports[3] > 2 || ports[4] > 2 {
		t.Errorf("got packets by port %v, want 50 to 1 and 2, and at most 2 to 3 and 4", ports)
	}
	changed := w.Shown()
	for _, text := range []string{
		"class htb 5ade:1 parent 5ade:8001 ", "class htb 5ade:2 parent 5ade:100 ", "rate 20Mbit ceil 20Mbit",
		"class htb 5ade:5 parent 5ade:101 ",
	} {
		if !strings.Contains(changed, text) {
			t.Errorf("after the change: got\n%s\nwant %q in it", changed, text)
		}
	}
	w.Do(func() error { return q.Restore(w.Index) })
	w.install(next)
	if fresh := w.Shown(); withoutHandles(fresh) != withoutHandles(changed) {
		t.Errorf("after the change: got\n%s\nwant\n%s", changed, fresh)
	}
	for range 2 { // to an empty tree, twice
		w.change(q, &Tree{Kind: HTB})
		if got := w.Shown(); strings.Contains(got, "class") ||
			!strings.Contains(got, "qdisc htb 5ade: root") {
			t.Errorf("empty tree: got\n%s\nwant no classes", got)
		}
	}
}

// withoutHandles removes handles that the kernel chose.
func withoutHandles(shown string) string {
	return regexp.MustCompile(` [8-9a-f][0-9a-f]{3}:`).ReplaceAllString(shown, "")
}

// TestQdiscHave checks that Have changes nothing, and names a missing module.
func TestQdiscHave(t *testing.T) {
	t.Parallel()
	w := newWire(t)
	show := func() string { return w.Near.Run("tc", "qdisc", "show", "dev", "lo") }
	for _, script := range []string{"qdisc show dev lo", "qdisc add dev lo root handle 3: pfifo limit 3"} {
		w.TC(script)
		before := show()
		w.Do(func() error {
			for _, kind := range []string{HTB, FQ, FQCoDel, Cake} {
				if err := Have(kind); err != nil && !errors.As(err, new(*MissingError)) {
					t.Errorf("%s: got error %v", kind, err)
				}
			}
			if err := Have("nosuch"); fmt.Sprint(err) != "this kernel has no nosuch qdisc, and no module sch_nosuch" {
				t.Errorf("got error %v, want one about nosuch and sch_nosuch", err)
			}
			return Have(HTB)
		})
		if after := show(); after != before {
			t.Errorf("got %q, want %q", after, before)
		}
	}
}

// TestQdiscPacerChange checks changes from fq to HTB and back.
func TestQdiscPacerChange(t *testing.T) {
	t.Parallel()
	w := newWire(t)
	before := w.Shown()
	htb := &Tree{Kind: HTB, Leaves: []Leaf{{ID: 1, Rate: 1000}}}
	q := w.install(&Tree{Kind: FQ})
	w.change(q, htb)
	if got := w.Shown(); !strings.Contains(got, "class htb 5ade:1 parent 5ade:8001 ") {
		t.Errorf("got\n%s\nwant HTB with its class", got)
	}
	w.change(q, &Tree{Kind: FQ})
	if got := w.Shown(); !strings.HasPrefix(got, "qdisc fq 5ade: root") {
		t.Errorf("got\n%s\nwant fq", got)
	}
	w.Do(func() error { return q.Restore(w.Index) })
	if got := w.Shown(); got != before {
		t.Errorf("after Restore: got\n%s\nwant\n%s", got, before)
	}
}
