package qdisc

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/a-seed-32e5a53f/shaper/dataplane/nettest"
)

// site is a tree of three levels, with these rates of one link and of one leaf, bytes/s.
func site(link, leaf uint64) *Tree {
	return &Tree{
		Kind: HTB, Overhead: -14,
		Links: []Link{
			{ID: 1, Rate: 100_000, Credit: credit},
			{ID: 2, Parent: 1, Rate: link, Guarantee: link / 2},
			{ID: 3, Parent: 1, Guarantee: 100_000 - link/2},
			{ID: 4, Parent: 3, Rate: 30_000, Guarantee: 20_000},
		},
		Leaves: []Leaf{
			{ID: 10, Parent: 2, Rate: leaf, Guarantee: 1000, Priority: 1, Quantum: 1514, Limit: 10_000},
			{ID: 11, Parent: 2, Quantum: 3028, Limit: 10_000},
			{ID: 12, Parent: 4, Quantum: 1514, Limit: 10_000},
			{ID: 13, Parent: 1, Guarantee: 500, Quantum: 1514, Limit: 10_000},
		},
	}
}

// TestQdiscLinks checks the classes of links below links, and that a change of one node sends only that
// node: packets of other leaves stay, and so do all counters.
func TestQdiscLinks(t *testing.T) {
	t.Parallel()
	w, other := newWire(t), newWire(t)
	q := w.install(site(40_000, 5000))
	shown := w.Shown()
	for _, want := range []string{
		"5ade:8001 root rate 800Kbit ceil 800Kbit .* level 7",
		"5ade:1 parent 5ade:8001 rate 8bit ceil 900Kbit .* level 6",
		"5ade:2 parent 5ade:1 rate 160Kbit ceil 320Kbit .* level 5",
		"5ade:3 parent 5ade:1 rate 640Kbit ceil 8796Gbit .* level 5",
		"5ade:4 parent 5ade:3 rate 160Kbit ceil 240Kbit .* level 4",
		"5ade:a parent 5ade:2 leaf .* prio 1 quantum 1514 rate 8Kbit ceil 40Kbit .* level 0",
		"5ade:b parent 5ade:2 leaf .* prio 0 quantum 3028 rate 8bit ceil 8796Gbit .* level 0",
		"5ade:c parent 5ade:4 leaf .* level 0",
		"5ade:d parent 5ade:1 leaf .* rate 4Kbit ceil 8796Gbit .* level 0",
	} {
		if !regexp.MustCompile(`(?m)^class htb ` + want).MatchString(shown) {
			t.Errorf("got\n%s\nwant %q in it", shown, want)
		}
	}
	for id := range uint16(4) {
		conn := w.Socket(int(id)+1, Handle(10+id))
		for range 5 {
			if _, err := conn.Write(make([]byte, 900)); err != nil {
				t.Fatal(err)
			}
		}
	}
	sentOf := func(tree *Tree) (got string) {
		var list []*Object
		w.Do(func() (err error) {
			list, err = tree.differences(w.Index)
			return err
		})
		for _, o := range list {
			got += fmt.Sprintf("%d ", o.Handle&0xffff)
		}
		w.Do(func() error { return tree.Change(w.Index) })
		return got
	}
	for _, r := range []struct {
		link, leaf uint64
		want       string
	}{
		{40_000, 5000, ""},
		{40_000, 6000, "10 "},
		{50_000, 6000, "2 3 "}, // and the link beside it, which can count on less
		{40_000, 5000, "2 3 10 "},
	} {
		if got := sentOf(site(r.link, r.leaf)); got != r.want {
			t.Errorf("rates %d and %d: sent classes %s, want %s", r.link, r.leaf, got, r.want)
		}
		other.install(site(r.link, r.leaf))
		if got, want := w.shownUnnumbered(), other.shownUnnumbered(); got != want {
			t.Errorf("rates %d and %d: got\n%s\nwant\n%s", r.link, r.leaf, got, want)
		}
	}
	for id, s := range w.stats() {
		if id >= 10 && id < 14 && (s.Packets+uint64(s.Queued) != 5 || s.Drops != 0) {
			t.Errorf("leaf %d: got %+v, want 5 packets sent or queued", id, s)
		}
	}

	// Another program puts a link and a leaf below another link.
	w.TC("class del dev v0 classid 5ade:c", "class del dev v0 classid 5ade:4",
		"class add dev v0 parent 5ade:2 classid 5ade:4 htb rate 8kbit",
		"class add dev v0 parent 5ade:4 classid 5ade:c htb rate 8kbit")
	w.change(q, site(40_000, 5000))
	want := inLines(other.shownUnnumbered())
	if got := inLines(w.shownUnnumbered()); got != want {
		t.Errorf("after another program's change: got\n%s\nwant\n%s", got, want)
	}

	// All links become one, and back.
	flat := &Tree{
		Kind: HTB, Links: []Link{{ID: 20, Rate: 100_000, Credit: credit}},
		Leaves: []Leaf{{ID: 10, Parent: 20, Quantum: 1514}, {ID: 13, Parent: 20, Quantum: 1514}},
	}
	w.change(q, flat)
	if got := w.Shown(); strings.Count(got, "class htb") != 4 {
		t.Errorf("got\n%s\nwant one link with two leaves", got)
	}
	w.change(q, site(40_000, 5000))
	if got := inLines(w.shownUnnumbered()); got != want {
		t.Errorf("after a flat tree: got\n%s\nwant\n%s", got, want)
	}
}

// inLines sorts lines.
func inLines(text string) string {
	lines := strings.Split(text, "\n")
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// TestQdiscMQ checks that MQ stays on a device with several hardware queues, with FQ below it, that changes
// keep both, and that the qdiscs before are restored.
func TestQdiscMQ(t *testing.T) {
	t.Parallel()
	for _, script := range [][]string{
		{"qdisc add dev v0 root handle 1: mq"},
		{"qdisc add dev v0 root handle 1: mq", "qdisc replace dev v0 parent 1:2 handle 5: pfifo limit 33"},
	} {
		w := newWire(t)
		w.manyQueues()
		w.TC(script...)
		before := w.Shown()
		tree := &Tree{Kind: FQ, MQ: true, Horizon: time.Second}
		q := w.install(tree)
		wantFQ := func(n int, horizon string) {
			t.Helper()
			shown := w.Shown()
			below := regexp.MustCompile(`qdisc fq .* parent 5ade:[1-4] .* horizon ` + horizon)
			if !strings.Contains(shown, "qdisc mq 5ade: root") || len(below.FindAllString(shown, -1)) != n {
				t.Errorf("got\n%s\nwant mq with %d of fq with horizon %s", shown, n, horizon)
			}
		}
		wantFQ(4, "10s")
		w.change(q, &Tree{Kind: FQ, MQ: true, Horizon: 16 * time.Second})
		wantFQ(4, "18s")
		w.Do(func() error { return (&Tree{Kind: FQ, Horizon: 24 * time.Second}).Change(w.Index) })
		wantFQ(4, "27s")
		w.TC("qdisc del dev v0 parent 5ade:3")
		w.Do(func() error {
			all, missing, err := MissingBelowMQ(w.Index)
			if all != 4 || missing != 1 {
				t.Errorf("fq is missing at %d of %d queues, want 1 of 4", missing, all)
			}
			return err
		})
		w.change(q, tree)
		wantFQ(4, "10s")
		w.change(q, &Tree{Kind: HTB, Leaves: []Leaf{{ID: 1, Rate: 1000}}})
		w.change(q, tree)
		wantFQ(4, "10s")
		w.Do(func() error { return q.Restore(w.Index) })
		if after := w.Shown(); after != before {
			t.Errorf("after Restore: got\n%s\nwant\n%s", after, before)
		}
	}
}

// TestQuietQdiscLinks checks that links get what they can count on, whatever the number of their busy
// leaves, and that a link keeps its rate.
func TestQuietQdiscLinks(t *testing.T) {
	nettest.Quiet(t)
	rate, n := nettest.Scaled(40_000_000, 8000)
	for _, r := range []struct {
		name       string
		guarantees [2]uint64
		ceiling    uint64 // of the first link
		busy       [2]int
		want       [2]float64
	}{
		{"1 and 20 leaves", [2]uint64{rate / 2, rate / 2}, 0, [2]int{1, 20}, [2]float64{0.5, 0.5}},
		{"1 to 3", [2]uint64{rate / 4, rate * 3 / 4}, 0, [2]int{20, 1}, [2]float64{0.25, 0.75}},
		{"3 to 1", [2]uint64{rate * 3 / 4, rate / 4}, 0, [2]int{1, 20}, [2]float64{0.75, 0.25}},
		{"at its rate", [2]uint64{rate / 4, rate * 3 / 4}, rate / 4, [2]int{20, 0}, [2]float64{0.25, 0}},
		{"one idle", [2]uint64{rate / 2, rate / 2}, 0, [2]int{20, 0}, [2]float64{1, 0}},
	} {
		t.Run(r.name, func(t *testing.T) {
			nettest.Steady(t, func() error {
				w := newWire(t)
				tree := &Tree{Kind: HTB, Links: []Link{
					{ID: 0x100, Rate: rate, Credit: credit},
					{ID: 0x101, Parent: 0x100, Rate: r.ceiling, Guarantee: r.guarantees[0]},
					{ID: 0x102, Parent: 0x100, Guarantee: r.guarantees[1]},
				}}
				for id := range uint16(40) {
					tree.Leaves = append(tree.Leaves,
						Leaf{ID: id + 1, Parent: 0x101 + id/20, Quantum: 1514, Limit: 1 << 20})
				}
				w.install(tree)
				var ids []uint16
				var senders []sender
				for link, busy := range r.busy {
					for i := range busy {
						id := uint16(20*link + i + 1)
						ids = append(ids, id)
						need := float64(rate) * r.want[link] / float64(busy) / 1514
						senders = append(senders, sender{w.Socket(link+1, Handle(id)), 2 * need})
					}
				}
				defer offer(senders)()
				full := func() bool {
					s := w.stats()
					for _, id := range ids {
						if s[id].Backlog < 100_000 {
							return false
						}
					}
					return true
				}
				for begin := time.Now(); !full(); time.Sleep(10 * time.Millisecond) {
					if time.Since(begin) > time.Minute {
						t.Fatalf("got %+v after a minute, want a backlog in each leaf", w.stats())
					}
				}
				sniffer := w.Far.Sniff("v0")
				sniffer.Wait(n, time.Minute)
				frames := sniffer.Stop()
				speed := nettest.Speed(frames)
				var got [2]float64
				for _, f := range frames {
					if port := nettest.PortOf(f); port > 0 {
						got[port-1] += speed / float64(rate) / float64(len(frames))
					}
				}
				t.Logf("%.4f", got)
				allow := 0.005
				if nettest.InVM {
					allow = 0.1
				}
				for i, want := range r.want {
					if got[i] < want-allow || got[i] > want+allow {
						return fmt.Errorf("got shares of %.4f, want %.4f", got, r.want)
					}
				}
				return nil
			})
		})
	}
}

// sender sends full-size datagrams.
type sender struct {
	*nettest.Sender
	rate float64 // packets per second
}

// offer sends at the rates of senders until stop is called. It sends in bursts, because senders without
// a pause need so much CPU time that some are late.
func offer(list []sender) (stop func()) {
	const pause = 5 * time.Millisecond
	stopped, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		payload := make([]byte, 1472)
		sent := make([]float64, len(list))
		for begin := time.Now(); ; time.Sleep(pause) {
			select {
			case <-stopped:
				return
			default:
			}
			for i, s := range list {
				for ; sent[i] < s.rate*time.Since(begin).Seconds(); sent[i]++ {
					_, _ = s.Write(payload) // a full queue is an error
				}
			}
		}
	}()
	return func() {
		close(stopped)
		<-done
	}
}

// TestQuietQdiscSize makes a tree of 10,000 leaves below 500 links, and logs how long that and changes
// take.
func TestQuietQdiscSize(t *testing.T) {
	nettest.Quiet(t)
	if !nettest.Deep() {
		t.Skip("takes a quarter of a minute: make deep")
	}
	const links, leaves, rate = 500, 10_000, 125_000_000
	tree := &Tree{Kind: HTB, MTU: 1500, Links: []Link{{ID: 1, Rate: rate, Credit: credit}}}
	for i := range uint16(links) {
		tree.Links = append(tree.Links, Link{ID: i + 2, Parent: 1, Rate: rate / 5, Guarantee: rate / links})
	}
	for i := range uint16(leaves) {
		tree.Leaves = append(tree.Leaves, Leaf{
			ID: i + links + 2, Parent: i%links + 2, Rate: rate / 100, Guarantee: rate / leaves, Quantum: 1514,
			Limit: 60_000,
		})
	}
	w := newWire(t)
	lap := func(what string, f func() error) {
		begin := time.Now()
		w.Do(f)
		t.Logf("%s: %v", what, time.Since(begin))
	}
	var q *Saved
	lap("install", func() (err error) {
		q, err = tree.install(w.Index)
		return err
	})
	if n := len(w.stats()); n != links+leaves+2 {
		t.Errorf("%d classes, want %d", n, links+leaves+2)
	}
	tree.Leaves[77].Rate++
	lap("change one leaf, with a dump of all", func() error { return tree.Change(w.Index) })
	tree.Leaves[77].Rate++
	leaf := tree.leaf(&tree.Leaves[77])
	lap("change one leaf", func() error { return leaf.send(unix.RTM_NEWTCLASS, 0, w.Index) })
	lap("change to the same tree", func() error { return q.change(w.Index, tree) })
	lap("restore", func() error { return q.Restore(w.Index) })
}
