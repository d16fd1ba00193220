package qdisc

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/queue"
)

// rated is a tree with these rates, bytes/s, and limits that follow from them. It has a fair leaf with
// CoDel if the kernel has fq_codel.
func rated(own, link uint64, codel queue.CoDel) *Tree {
	tree := &Tree{
		Kind: HTB, MTU: 1500, Links: []Link{{ID: 1, Rate: link, Credit: credit}},
		Leaves: []Leaf{
			{ID: 2, Rate: own, Credit: credit, Limit: uint32(own)},
			{ID: 3, Parent: 1, Quantum: 1514, Limit: uint32(link / 10)},
		},
	}
	if Have(FQCoDel) == nil {
		fair := &Fair{CoDel: codel, ECN: true, Packets: uint32(link / 100), Quantum: uint32(300 + link%1000)}
		tree.Leaves = append(tree.Leaves,
			Leaf{ID: 4, Parent: 1, Priority: 1, Quantum: 3028, Limit: uint32(link / 5), Fair: fair})
	}
	return tree
}

// TestQdiscNewRates checks that Change makes the same tree as Plant, with rates above and below 2^32
// bytes/s, and that queued packets stay.
func TestQdiscNewRates(t *testing.T) {
	t.Parallel()
	w, other := newWire(t), newWire(t)
	w.install(rated(10_000, 20_000, queue.CoDelOf(5*time.Millisecond)))
	conn := w.Socket(9, Handle(2))
	for range 5 {
		_, _ = conn.Write(make([]byte, 900))
	}
	for _, r := range [][2]uint64{
		{10_000, 20_000},
		{1 << 33, 20_000},
		{1 << 34, 20_000},
		{1000, 1 << 34},
		{2000, 20_000},
		{2000, 30_000},
	} {
		tree := rated(r[0], r[1], queue.CoDelOf(time.Duration(5_000+r[1]%9_997)*time.Microsecond))
		w.Do(func() error { return tree.Change(w.Index) })
		other.install(tree)
		if got, want := w.shownUnnumbered(), other.shownUnnumbered(); got != want {
			t.Errorf("rates %d: got\n%s\nwant\n%s", r, got, want)
		}
	}
	if s := w.stats()[2]; s.Packets+uint64(s.Queued) != 5 || s.Drops != 0 {
		t.Errorf("got %+v, want 5 packets sent or queued", s)
	}
	w.Do(func() error { return Remove(w.Index) })
	var err error
	w.Near.Do(func() { err = rated(1, 1, queue.CoDel{}).Change(w.Index) })
	if !errors.Is(err, errForeign) {
		t.Errorf("without our root: got error %v, want errForeign", err)
	}
}

// TestQdiscNewRatesSent checks that Change sends only what differs.
func TestQdiscNewRatesSent(t *testing.T) {
	t.Parallel()
	w := newWire(t)
	codel := func(target, interval time.Duration) queue.CoDel {
		return queue.CoDel{Target: target * time.Microsecond, Interval: interval * time.Microsecond}
	}
	fair := "" // what differs only in the times of CoDel
	if Have(FQCoDel) == nil {
		fair = "qdisc 4 "
	}
	w.install(rated(10_000, 20_000, codel(5006, 100_003)))
	for _, r := range []struct {
		own, link uint64
		codel     queue.CoDel
		want      string
	}{
		{10_000, 20_000, codel(5006, 100_003), ""},
		{10_000, 20_000, codel(6007, 100_003), fair},
		{10_000, 20_000, codel(6007, 200_005), fair},
		{10_000, 20_000, codel(6007, 200_005), ""},
		{20_000, 20_000, codel(6007, 200_005), "class 8002 class 2 qdisc 2 "},
		{20_000, 40_000, codel(6007, 200_005), "class 8001 class 1 qdisc 3 "},
	} {
		var list []*Object
		w.Do(func() (err error) {
			list, err = rated(r.own, r.link, r.codel).differences(w.Index)
			return err
		})
		got := ""
		for _, o := range list {
			kind, id := "class", o.Handle
			if !o.Class {
				kind, id = "qdisc", o.Parent
			}
			got += fmt.Sprintf("%s %x ", kind, id&0xffff)
		}
		got = strings.Replace(got, "qdisc 3 qdisc 4", "qdisc 3", 1) // with fq_codel
		if got != r.want {
			t.Errorf("rates %d, %d, %v: got %s, want %s", r.own, r.link, r.codel, got, r.want)
		}
		w.Do(func() error { return rated(r.own, r.link, r.codel).Change(w.Index) })
	}
}

// shownUnnumbered is Shown without the handles that the kernel assigns.
func (w *wire) shownUnnumbered() string {
	return regexp.MustCompile(`(bfifo|fq_codel|leaf) [0-9a-f]+:`).ReplaceAllString(w.Shown(), "$1 N:")
}

// TestQdiscTurns checks that changes of the priority and the weight of a leaf are sent.
func TestQdiscTurns(t *testing.T) {
	t.Parallel()
	w := newWire(t)
	before, after := site(40_000, 5000), site(40_000, 5000)
	after.Leaves[0].Priority, after.Leaves[1].Quantum = 3, 4000
	want := []string{
		"5ade:a parent 5ade:2 leaf .* prio 3 quantum 1514",
		"5ade:b parent 5ade:2 leaf .* prio 0 quantum 4000",
	}
	for name, change := range map[string]func() error{
		"Change":     func() error { return after.Change(w.Index) },
		"ChangeFrom": func() error { return after.ChangeFrom(before, w.Index) },
	} {
		w.install(before)
		w.Do(change)
		shown := w.Shown()
		for _, want := range want {
			if !regexp.MustCompile(`(?m)^class htb ` + want).MatchString(shown) {
				t.Errorf("%s: got\n%s\nwant %q in it", name, shown, want)
			}
		}
		var list []*Object
		w.Do(func() (err error) { list, err = after.differences(w.Index); return err })
		if len(list) != 0 {
			t.Errorf("%s: got differences %v, want none", name, list)
		}
	}
}
