package qdisc

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane/nettest"
)

// netems is a script of netem qdiscs beside an HTB. Their handles differ in the kernel's hash table
// of qdiscs, whose dump omits the classes that follow a netem.
func netems() []string {
	script := []string{
		"qdisc add dev v0 root handle 1: prio bands 16 priomap 0 1 2 3 0 1 2 3 0 1 2 3 0 1 2 3",
		"qdisc add dev v0 parent 1:1 handle 2: htb default 1", "class add dev v0 parent 2: classid 2:1 htb rate 1mbit",
		"qdisc add dev v0 parent 2:1 handle 3: pfifo limit 33",
	}
	for band := 2; band <= 16; band++ {
		script = append(script,
			fmt.Sprintf("qdisc add dev v0 parent 1:%x handle %x: netem delay 5ms", band, 0x10+band))
	}
	return script
}

// TestQdiscRestore checks that Restore brings back the qdiscs that were replaced.
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
			// the restored qdiscs do not depend on the pacer
			if pacer == FQ && i > 3 || nettest.InVM && i%3 != 1 {
				continue
			}
			t.Run(fmt.Sprint(pacer, script), func(t *testing.T) {
				w := newWire(t)
				if len(script) > 0 && strings.HasSuffix(script[0], "mq") {
					w.manyQueues()
				}
				w.TC(script...)
				before := w.Shown()
				q := w.install(&Tree{
					Kind: pacer, Horizon: time.Second, Overhead: -14, Leaves: []Leaf{{ID: 1, Rate: 1000}},
				})
				if during := w.Shown(); !strings.Contains(during, fmt.Sprintf("qdisc %s 5ade: root", pacer)) {
					t.Errorf("got %q, want a tree", during)
				}
				text, err := json.Marshal(q)
				if err != nil {
					t.Fatal(err)
				}
				q = new(Saved)
				if err := json.Unmarshal(text, q); err != nil {
					t.Fatal(err)
				}
				for range 2 { // the second call changes nothing
					w.Do(func() error {
						err := q.Restore(w.Index)
						if err != nil {
							t.Logf("saved %s: %v", text, q.Before)
						}
						return err
					})
					if after := w.Shown(); after != before {
						t.Errorf("after Restore: got\n%s\nwant\n%s", after, before)
					}
				}
			})
		}
	}
}

// manyQueues replaces v0 by a device with four queues.
func (w *wire) manyQueues() {
	w.T.Helper()
	w.Near.Delete("v0")
	w.Near.Run("ip", "link", "add", "v0", "numtxqueues", "4", "type", "veth", "peer", "name", "v1")
	w.Near.Run("ip", "link", "set", "v0", "up")
	w.Near.Run("ip", "link", "set", "v1", "up")
	w.Index = w.Near.Index("v0")
}

// TestQdiscRefused checks that nothing changes if the existing qdiscs could not be restored.
func TestQdiscRefused(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		script []string
		want   string
	}{
		{
			[]string{
				"qdisc add dev v0 root handle 1: htb",
				"filter add dev v0 parent 1: protocol all u32 match u32 0 0 flowid 1:1",
			},
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
			[]string{
				"qdisc add dev v0 root handle 2: red limit 400000 min 30000 max 90000 avpkt 1000 burst 55 bandwidth 10mbit",
			},
			"interface v0 has the qdisc red 2:0, but it could not be restored: remove it first: tc qdisc del dev v0 root",
		},
	} {
		t.Run(row.script[0], func(t *testing.T) {
			w := newWire(t)
			if strings.Contains(row.script[0], "distribution") {
				// tc reads the table from a file that may be missing
				row.script[0], _, _ = strings.Cut(row.script[0], " distribution")
			}
			w.TC(row.script...)
			before := w.Shown()
			var err error
			w.Near.Do(func() { _, err = (&Tree{Kind: HTB}).install(w.Index) })
			if fmt.Sprint(err) != row.want {
				t.Errorf("got error %v, want %q", err, row.want)
			}
			if after := w.Shown(); after != before {
				t.Errorf("after Restore: got\n%s\nwant\n%s", after, before)
			}
		})
	}
}

// TestQdiscForeign checks that qdiscs of other programs are left alone, and that a tree of a killed
// process is replaced.
func TestQdiscForeign(t *testing.T) {
	t.Parallel()
	w := newWire(t)
	small := &Tree{Kind: HTB, Leaves: []Leaf{{ID: 1, Rate: 1000}}}
	fresh := w.Shown()
	w.install(small)
	q := w.install(small)
	if len(q.Before) > 0 {
		t.Errorf("saved %+v, want nothing: the previous tree was a shaper's", q)
	}
	w.TC("qdisc replace dev v0 root handle 8: pfifo limit 9")
	theirs := w.Shown()
	w.Do(func() error {
		if root, err := Root(w.Index); root.Ours() || err != nil {
			t.Errorf("a foreign qdisc: got Ours true (%v), want false", err)
		}
		if err := q.change(w.Index, small); !errors.Is(err, errForeign) {
			t.Errorf("change of a foreign qdisc: got error %v, want %v", err, errForeign)
		}
		return q.Restore(w.Index)
	})
	if got := w.Shown(); got != theirs {
		t.Errorf("after Restore: got\n%s\nwant\n%s", got, theirs)
	}
	q = w.install(small)
	w.Do(func() error {
		root, err := Root(w.Index)
		if !root.Ours() {
			t.Errorf("a shaper's tree: got Ours false (%v), want true", err)
		}
		return err
	})
	w.TC("qdisc del dev v0 root")
	w.Do(func() error { return q.Restore(w.Index) })
	if got := w.Shown(); got != fresh {
		t.Errorf("after Restore: got\n%s\nwant\n%s", got, fresh)
	}
	w.Near.Delete("v0")
	w.Do(func() error { return q.Restore(w.Index) })
}
