package qdisc

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/a-seed-32e5a53f/shaper/dataplane/nettest"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// wire is a veth pair with trees on v0 of Near.
type wire struct{ *nettest.Wire }

func newWire(t *testing.T) *wire { return &wire{nettest.NewWire(t)} }

// install makes a tree stand at a device as site.pace does, but for the journal.
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

// change puts another tree in the place of the one that stands. Packets wait on
// in the leaves that stay, under the same link. Between two pacers none do.
func (s *Saved) change(index int, t *Tree) error {
	if err := t.Grow(index); err != nil {
		return err
	}
	return t.Prune(index)
}

func (w *wire) change(q *Saved, tree *Tree) {
	w.T.Helper()
	w.Do(func() error { return q.change(w.Index, tree) })
}

func (w *wire) stats() (s map[uint16]Counts) {
	w.T.Helper()
	w.Do(func() (err error) {
		s, err = LeafCounts(w.Index)
		return err
	})
	return s
}

func bitRate(n uint64) uint64 { return n / 8 }

const credit = 10 * time.Millisecond

// TestQdiscRate holds that a leaf has its rate, whatever it counts.
func TestQdiscRate(t *testing.T) {
	for _, rows := range []struct {
		bits     uint64
		overhead int
		frames   int
	}{
		{5_000_000, 0, 800},
		{5_000_000, -14, 800},
		{5_000_000, 24, 800},
		{100_000_000, 0, 8000},
		{100_000_000, -14, 8000},
	} {
		t.Run(fmt.Sprintf("%d with %d", rows.bits, rows.overhead), func(t *testing.T) {
			rate, n := nettest.Scaled(rows.bits, rows.frames)
			nettest.Steady(t, func() error {
				w := newWire(t)
				w.install(&Tree{Kind: HTB, Overhead: rows.overhead, Leaves: []Leaf{{ID: 1, Rate: rate, Credit: credit}}})
				sniffer := w.Far.Sniff("v0")
				defer nettest.Fill(w.Socket(9, Handle(1)))()
				sniffer.Wait(n, time.Minute)
				frames := sniffer.Stop()
				want := float64(rate) * 1514 / float64(1514+rows.overhead)
				got := nettest.Speed(frames[len(frames)/8:]) // the first are those of the credit
				t.Logf("%.0f byte/s, %+.3f %%", got, 100*(got/want-1))
				if !nettest.Nearly(got, want) {
					return fmt.Errorf("%.0f byte/s: want %.0f", got, want)
				}
				return nil
			})
		})
	}
}

// TestQdiscUnqueued holds that what is of no queue is not shaped.
func TestQdiscUnqueued(t *testing.T) {
	t.Parallel()
	w := newWire(t)
	w.install(&Tree{Kind: HTB, Leaves: []Leaf{{ID: 1, Rate: 1000}}})
	sniffer := w.Far.Sniff("v0")
	slow, fast := w.Socket(9, Handle(1)), w.Socket(10, 0)
	for range 20 {
		_, _ = slow.Write(make([]byte, 1000))
		_, _ = fast.Write(make([]byte, 1000))
	}
	sniffer.Wait(21, time.Minute)
	ports := map[int]int{}
	for _, f := range sniffer.Stop() {
		ports[nettest.PortOf(f)]++
	}
	if ports[10] != 20 || ports[9] > 2 {
		t.Errorf("%v: want 20 to port 10", ports)
	}
	if s := w.stats()[1]; s.Queued+uint32(s.Packets) != 20 || s.Backlog != s.Queued*1042 {
		t.Errorf("%+v: want 20 packets", s)
	}
}

// TestQdiscLink holds that queues share a link by priority, then by quantum.
func TestQdiscLink(t *testing.T) {
	allow := 0.01
	if nettest.InVM {
		allow = 0.1
	}
	link, n := nettest.Scaled(40_000_000, 6000)
	nettest.Steady(t, func() error {
		w := newWire(t)
		w.install(&Tree{Kind: HTB, Links: []Link{{ID: 0x100, Rate: link, Credit: credit}}, Leaves: []Leaf{
			{ID: 1, Parent: 0x100, Rate: link / 4},
			{ID: 2, Parent: 0x100, Priority: 1, Quantum: 3 * 1514},
			{ID: 3, Parent: 0x100, Priority: 1, Quantum: 1514},
			{ID: 4, Parent: 0x100, Priority: 2},
		}})
		for id := range uint16(4) {
			defer nettest.Fill(w.Socket(int(id)+1, Handle(id+1)))()
		}
		time.Sleep(200 * time.Millisecond) // all are full
		sniffer := w.Far.Sniff("v0")
		sniffer.Wait(n, time.Minute)
		frames := sniffer.Stop()
		if got := nettest.Speed(frames); !nettest.Nearly(got, float64(link)) {
			return fmt.Errorf("%.0f byte/s in all: want %d", got, link)
		}
		shares := map[int]float64{}
		for _, f := range frames {
			shares[nettest.PortOf(f)] += 1 / float64(len(frames))
		}
		t.Log(shares)
		for port, want := range map[int]float64{1: 0.25, 2: 0.5625, 3: 0.1875, 4: 0} {
			if got := shares[port]; got < want-allow || got > want+allow {
				return fmt.Errorf("queue %d has %.3f of the link: want %.3f", port, got, want)
			}
		}
		return nil
	})
}

// TestQdiscFair sends a flood beside a flow that keeps to its part: that loses
// nothing where the queue is fair.
func TestQdiscFair(t *testing.T) {
	newWire(t).Do(func() error {
		if err := Have(FQCoDel); err != nil {
			t.Skip(err)
		}
		return nil
	})
	for _, isFair := range []bool{false, true} {
		t.Run(fmt.Sprint(isFair), func(t *testing.T) {
			t.Parallel()
			var w *wire
			var q *Saved
			leaf := Leaf{ID: 1, Parent: 0x100, Quantum: 1514, Limit: 100_000}
			if isFair {
				leaf.Fair = &Fair{CoDel: queue.CoDel{Target: 5 * time.Millisecond, Interval: 100 * time.Millisecond}, Packets: 5000}
			}
			nettest.Steady(t, func() error {
				w = newWire(t)
				q = w.install(&Tree{Kind: HTB, Links: []Link{{ID: 0x100, Rate: bitRate(4_000_000), Credit: credit}}, Leaves: []Leaf{leaf}})
				sniffer := w.Far.Sniff("v0")
				flood, calm := w.Socket(1, Handle(1)), w.Socket(2, Handle(1))
				defer nettest.Fill(flood)()
				const sent = 50
				for range sent { // 0.8 of 4 Mbit/s at most
					if _, err := calm.Write(make([]byte, 958)); err != nil {
						t.Fatal(err)
					}
					time.Sleep(10 * time.Millisecond)
				}
				time.Sleep(500 * time.Millisecond)
				ports := map[int]int{}
				for _, f := range sniffer.Stop() {
					ports[nettest.PortOf(f)]++
				}
				if isFair != (ports[2] == sent) || ports[1] < sent {
					return fmt.Errorf("%d of %d, and %d of the flood", ports[2], sent, ports[1])
				}
				if s := w.stats()[1]; s.Drops == 0 {
					return fmt.Errorf("%+v: want drops", s)
				}
				return nil
			})
			leaf.Limit, leaf.Fair = 50_000, nil
			if isFair {
				leaf.Fair = &Fair{CoDel: queue.CoDel{Target: time.Millisecond, Interval: 10 * time.Millisecond}, ECN: true, Packets: 100}
			}
			w.change(q, &Tree{Kind: HTB, Links: []Link{{ID: 0x100, Rate: bitRate(4_000_000), Credit: credit}}, Leaves: []Leaf{leaf}})
			if want := "qdisc fq_codel .* parent 5ade:1 limit 100p .* target \\S+ interval 10ms memory_limit 100000b ecn"; isFair && !regexp.MustCompile(want).MatchString(w.Shown()) {
				t.Errorf("%s\nwant %s", w.Shown(), want)
			}
		})
	}
}

// TestQdiscChange holds that packets wait on in leaves that stay.
func TestQdiscChange(t *testing.T) {
	t.Parallel()
	w := newWire(t)
	q := w.install(&Tree{
		Kind:  HTB,
		Links: []Link{{ID: 0x100, Rate: bitRate(100_000)}},
		Leaves: []Leaf{
			{ID: 1, Rate: bitRate(100_000), Limit: 100_000},
			{ID: 2, Parent: 0x100, Priority: 3, Quantum: 2000},
			{ID: 3, Rate: bitRate(8000)},
			{ID: 4, Rate: bitRate(8000)},
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
			{ID: 4, Parent: 0x101}, // as good as new
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
		t.Errorf("%v: want 50 of 1 and 2, of 3 and 4 what came before the change", ports)
	}
	changed := w.Shown()
	for _, text := range []string{"class htb 5ade:1 parent 5ade:8001 ", "class htb 5ade:2 parent 5ade:100 ", "rate 20Mbit ceil 20Mbit", "class htb 5ade:5 parent 5ade:101 "} {
		if !strings.Contains(changed, text) {
			t.Errorf("no %q after the change in\n%s", text, changed)
		}
	}
	// What comes of a change is what comes of installing the same.
	w.Do(func() error { return q.Restore(w.Index) })
	w.install(next)
	if fresh := w.Shown(); handles(fresh) != handles(changed) {
		t.Errorf("changed:\n%s\nwant\n%s", changed, fresh)
	}
	for range 2 { // to nothing, and so it stays
		w.change(q, &Tree{Kind: HTB})
		if got := w.Shown(); strings.Contains(got, "class") || !strings.Contains(got, "qdisc htb 5ade: root") {
			t.Errorf("of an empty tree there is\n%s", got)
		}
	}
}

// handles leaves those out that the kernel gives.
func handles(shown string) string {
	return regexp.MustCompile(` [8-9a-f][0-9a-f]{3}:`).ReplaceAllString(shown, "")
}

// netems stand beside an HTB, and have each a place of their own in the kernel's
// table of qdiscs: it shows no classes behind a netem.
func netems() []string {
	script := []string{
		"qdisc add dev v0 root handle 1: prio bands 16 priomap 0 1 2 3 0 1 2 3 0 1 2 3 0 1 2 3",
		"qdisc add dev v0 parent 1:1 handle 2: htb default 1", "class add dev v0 parent 2: classid 2:1 htb rate 1mbit",
		"qdisc add dev v0 parent 2:1 handle 3: pfifo limit 33",
	}
	for band := 2; band <= 16; band++ {
		script = append(script, fmt.Sprintf("qdisc add dev v0 parent 1:%x handle %x: netem delay 5ms", band, 0x10+band))
	}
	return script
}

// TestQdiscRestore holds that what stood there comes back as it was.
func TestQdiscRestore(t *testing.T) {
	t.Parallel()
	for i, script := range [][]string{
		nil,
		{"qdisc add dev v0 clsact"},
		{"qdisc add dev v0 root noqueue"},
		{"qdisc add dev v0 root pfifo limit 77"},
		{"qdisc add dev v0 root handle 7: bfifo limit 77777"},
		{"qdisc add dev v0 root pfifo_fast"},
		{"qdisc add dev v0 root pfifo_head_drop limit 77"},
		{"qdisc add dev v0 root handle 3: tbf rate 7mbit burst 7000 latency 70ms"},
		{"qdisc add dev v0 root handle 3: tbf rate 7mbit burst 7000 limit 70000 peakrate 9mbit mtu 2000", "qdisc add dev v0 parent 3:1 handle 4: pfifo limit 12"},
		{"qdisc add dev v0 root handle 3: tbf rate 70gbit burst 1m limit 1m"},
		{
			"qdisc add dev v0 root handle 1: stab overhead 8 linklayer ethernet htb default 10 r2q 7 direct_qlen 333",
			"class add dev v0 parent 1: classid 1:1 htb rate 50mbit ceil 60mbit burst 20k cburst 30k",
			"class add dev v0 parent 1:1 classid 1:2 htb rate 40mbit ceil 60mbit",
			"class add dev v0 parent 1:2 classid 1:10 htb rate 30mbit ceil 60mbit prio 3 quantum 3000",
			"class add dev v0 parent 1:2 classid 1:20 htb rate 10mbit prio 1 overhead 4 mpu 80",
			"class add dev v0 parent 1: classid 1:30 htb rate 50gbit ceil 70gbit",
			"qdisc add dev v0 parent 1:10 handle 10: pfifo limit 33",
			"qdisc add dev v0 parent 1:20 bfifo limit 33333",
			"qdisc add dev v0 parent 1:30 handle 30: tbf rate 7mbit burst 7000 limit 70000",
		},
		{
			"qdisc add dev v0 root handle 1: prio bands 4 priomap 0 1 2 3 0 1 2 3 0 1 2 3 0 1 2 3",
			"qdisc add dev v0 parent 1:1 handle 2: htb default 1", "class add dev v0 parent 2: classid 2:1 htb rate 1mbit",
			"qdisc add dev v0 parent 2:1 handle 3: sfq perturb 10 limit 100",
			"qdisc add dev v0 parent 1:2 netem delay 5ms loss 1%",
		},
		netems(),
		{"qdisc add dev v0 root fq"},
		{"qdisc add dev v0 root handle 9: fq limit 777 flow_limit 77 quantum 3000 initial_quantum 9000 maxrate 70mbit horizon 3s horizon_cap ce_threshold 4ms nopacing"},
		{"qdisc add dev v0 root fq_codel"},
		{"qdisc add dev v0 root handle 9: fq_codel limit 777 flows 64 target 6ms interval 60ms noecn ce_threshold 2ms memory_limit 1m drop_batch 8"},
		{"qdisc add dev v0 root sfq perturb 10 quantum 3000 limit 100 depth 50"},
		{"qdisc add dev v0 root handle 9: netem delay 5ms loss 1% 20% duplicate 1% reorder 5% gap 4 corrupt 0.1% rate 7mbit 10 limit 77"},
		{"qdisc add dev v0 root handle 9: netem loss gemodel 1% 10% 70% 0.1%", "qdisc add dev v0 parent 9:1 handle 5: tbf rate 7mbit burst 7000 latency 70ms"},
		{"qdisc add dev v0 root cake"},
		{"qdisc add dev v0 root handle 9: cake bandwidth 20mbit diffserv4 nat wash ack-filter overhead 38 mpu 84 rtt 60ms memlimit 1m"},
		{"qdisc add dev v0 root handle 1: mq"},
		{"qdisc add dev v0 root handle 1: mq", "qdisc replace dev v0 parent 1:1 handle 5: pfifo limit 33"},
	} {
		for _, pacer := range []string{HTB, FQ} {
			if pacer == FQ && i > 3 || nettest.InVM && i%3 != 1 { // what comes back does not depend on the pacer
				continue
			}
			t.Run(fmt.Sprint(pacer, script), func(t *testing.T) {
				w := newWire(t)
				if len(script) > 0 && strings.HasSuffix(script[0], "mq") {
					w.manyQueues()
				}
				w.TC(script...)
				before := w.Shown()
				q := w.install(&Tree{Kind: pacer, Horizon: time.Second, Overhead: -14, Leaves: []Leaf{{ID: 1, Rate: 1000}}})
				if during := w.Shown(); !strings.Contains(during, fmt.Sprintf("qdisc %s 5ade: root", pacer)) {
					t.Errorf("there is no tree in %q", during)
				}
				text, err := json.Marshal(q)
				if err != nil {
					t.Fatal(err)
				}
				q = new(Saved)
				if err := json.Unmarshal(text, q); err != nil {
					t.Fatal(err)
				}
				for range 2 { // the second time there is nothing to do
					w.Do(func() error {
						err := q.Restore(w.Index)
						if err != nil {
							t.Logf("of %s: %v", text, q.Before)
						}
						return err
					})
					if after := w.Shown(); after != before {
						t.Errorf("there is\n%s\nafter it, before there was\n%s", after, before)
					}
				}
			})
		}
	}
}

// manyQueues makes v0 a device of four queues.
func (w *wire) manyQueues() {
	w.T.Helper()
	w.Near.Delete("v0")
	w.Near.Run("ip", "link", "add", "v0", "numtxqueues", "4", "type", "veth", "peer", "name", "v1")
	w.Near.Run("ip", "link", "set", "v0", "up")
	w.Near.Run("ip", "link", "set", "v1", "up")
	w.Index = w.Near.Index("v0")
}

// TestQdiscRefused holds that nothing is changed where it could not be undone.
func TestQdiscRefused(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		script []string
		want   string
	}{
		{
			[]string{"qdisc add dev v0 root handle 1: htb", "filter add dev v0 parent 1: protocol all u32 match u32 0 0 flowid 1:1"},
			"interface v0 has the qdisc htb 1:0, but its filters could not be restored: remove it first: tc qdisc del dev v0 root",
		},
		{
			[]string{
				"qdisc add dev v0 root handle 1: htb", "class add dev v0 parent 1: classid 1:1 htb rate 1mbit",
				"filter add dev v0 parent 1:1 protocol all u32 match u32 0 0 flowid 1:1",
			},
			"interface v0 has the class htb 1:1, but its filters could not be restored: remove it first: tc qdisc del dev v0 root",
		},
		{
			[]string{"qdisc add dev v0 root handle 1: stab overhead 8 mpu 64 linklayer ethernet htb"},
			"interface v0 has the qdisc htb 1:0, but its size table could not be restored: remove it first: tc qdisc del dev v0 root",
		},
		{
			[]string{"qdisc add dev v0 root handle 2: netem delay 5ms 1ms distribution normal"},
			"interface v0 has the qdisc netem 2:0, but the distribution of its delay could not be restored: remove it first: tc qdisc del dev v0 root",
		},
		{
			[]string{"qdisc add dev v0 root handle 2: red limit 400000 min 30000 max 90000 avpkt 1000 burst 55 bandwidth 10mbit"},
			"interface v0 has the qdisc red 2:0, but it could not be restored: remove it first: tc qdisc del dev v0 root",
		},
	} {
		t.Run(row.script[0], func(t *testing.T) {
			w := newWire(t)
			if strings.Contains(row.script[0], "distribution") {
				row.script[0], _, _ = strings.Cut(row.script[0], " distribution") // its table is a file
			}
			w.TC(row.script...)
			before := w.Shown()
			var err error
			w.Near.Do(func() { _, err = (&Tree{Kind: HTB}).install(w.Index) })
			if fmt.Sprint(err) != row.want {
				t.Errorf("%v: want %q", err, row.want)
			}
			if after := w.Shown(); after != before {
				t.Errorf("there is\n%s\nafter it, before there was\n%s", after, before)
			}
		})
	}
}

// TestQdiscForeign holds that what somebody else put there is left alone, and
// what a killed process left is not.
func TestQdiscForeign(t *testing.T) {
	t.Parallel()
	w := newWire(t)
	small := &Tree{Kind: HTB, Leaves: []Leaf{{ID: 1, Rate: 1000}}}
	fresh := w.Shown()
	w.install(small)
	q := w.install(small)
	if len(q.Before) > 0 {
		t.Errorf("%+v is what stood before: want nothing, it was ours", q)
	}
	w.TC("qdisc replace dev v0 root handle 8: pfifo limit 9")
	theirs := w.Shown()
	w.Do(func() error {
		if root, err := Root(w.Index); root.Ours() || err != nil {
			t.Errorf("theirs is ours: %v", err)
		}
		if err := q.change(w.Index, small); !errors.Is(err, errForeign) {
			t.Errorf("change: %v: want %v", err, errForeign)
		}
		return q.Restore(w.Index)
	})
	if got := w.Shown(); got != theirs {
		t.Errorf("there is\n%s\nafter it, before there was\n%s", got, theirs)
	}
	q = w.install(small)
	w.Do(func() error {
		root, err := Root(w.Index)
		if !root.Ours() {
			t.Errorf("ours is not ours: %v", err)
		}
		return err
	})
	w.TC("qdisc del dev v0 root")
	w.Do(func() error { return q.Restore(w.Index) })
	if got := w.Shown(); got != fresh {
		t.Errorf("there is\n%s\nafter it, before there was\n%s", got, fresh)
	}
	w.Near.Delete("v0")
	w.Do(func() error { return q.Restore(w.Index) })
}

// TestQdiscPacers holds that asking for a pacer makes nothing.
func TestQdiscPacers(t *testing.T) {
	t.Parallel()
	w := newWire(t)
	show := func() string { return w.Near.Run("tc", "qdisc", "show", "dev", "lo") }
	for _, script := range []string{"qdisc show dev lo", "qdisc add dev lo root handle 3: pfifo limit 3"} {
		w.TC(script)
		before := show()
		w.Do(func() error {
			for _, p := range []string{HTB, FQ} {
				t.Log(p, Have(p))
			}
			if err := Have("nosuch"); fmt.Sprint(err) != "this kernel has no nosuch qdisc, and no module sch_nosuch" {
				t.Error(err)
			}
			return Have(HTB)
		})
		if after := show(); after != before {
			t.Errorf("%q after it, %q before", after, before)
		}
	}
}

// TestQdiscDeparture holds that FQ lets packets go at their time, that as many
// of one flow may wait as a queue holds, and that a change loses none.
func TestQdiscDeparture(t *testing.T) {
	nettest.Steady(t, func() error { return departures(newWire(t)) })
}

func departures(w *wire) error {
	t := w.T
	t.Helper()
	q := w.install(&Tree{Kind: FQ, Horizon: time.Second})
	const n, gap = 1000, 2 * time.Millisecond
	conn := w.Socket(9, 0)
	raw, err := conn.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if e := raw.Control(func(fd uintptr) {
		// struct sock_txtime: a clock and no flags
		clock := binary.NativeEndian.AppendUint64(nil, unix.CLOCK_MONOTONIC)
		err = unix.SetsockoptString(int(fd), unix.SOL_SOCKET, unix.SO_TXTIME, string(clock))
	}); e != nil || err != nil {
		t.Fatal(e, err)
	}
	sniffer := w.Far.Sniff("v0")
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		t.Fatal(err)
	}
	begin := uint64(now.Nano()) + uint64(500*time.Millisecond)
	for i := range n {
		control := make([]byte, unix.CmsgSpace(8))
		binary.NativeEndian.PutUint64(control, uint64(unix.CmsgLen(8)))
		binary.NativeEndian.PutUint32(control[8:], unix.SOL_SOCKET)
		binary.NativeEndian.PutUint32(control[12:], unix.SCM_TXTIME)
		binary.NativeEndian.PutUint64(control[unix.CmsgLen(0):], begin+uint64(i)*uint64(gap))
		if _, _, err := conn.WriteMsgUDP(make([]byte, 100), control, conn.To); err != nil {
			t.Fatal(err)
		}
	}
	w.change(q, &Tree{Kind: FQ, Horizon: 20 * time.Second})
	if got := w.Shown(); !strings.Contains(got, "horizon 22.5s horizon_cap") {
		t.Errorf("the horizon did not change: %s", got)
	}
	sniffer.Wait(n, time.Minute)
	frames := sniffer.Stop()
	if len(frames) != n {
		t.Fatalf("%d packets: want %d", len(frames), n)
	}
	took := time.Duration(frames[n-1].Time - frames[0].Time)
	t.Logf("%v", took)
	if want := (n - 1) * gap; took < want*9/10 || took > want*11/10 {
		return fmt.Errorf("from the first to the last it took %v: want %v", took, want)
	}
	return nil
}

// TestQdiscPacerChange holds that a reload may change what packets wait by.
func TestQdiscPacerChange(t *testing.T) {
	t.Parallel()
	w := newWire(t)
	before := w.Shown()
	htb := &Tree{Kind: HTB, Leaves: []Leaf{{ID: 1, Rate: 1000}}}
	q := w.install(&Tree{Kind: FQ})
	w.change(q, htb)
	if got := w.Shown(); !strings.Contains(got, "class htb 5ade:1 parent 5ade:8001 ") {
		t.Errorf("there is\n%s\nwant HTB with its class", got)
	}
	w.change(q, &Tree{Kind: FQ})
	if got := w.Shown(); !strings.HasPrefix(got, "qdisc fq 5ade: root") {
		t.Errorf("there is\n%s\nwant FQ", got)
	}
	w.Do(func() error { return q.Restore(w.Index) })
	if got := w.Shown(); got != before {
		t.Errorf("there is\n%s\nafter it, before there was\n%s", got, before)
	}
}
