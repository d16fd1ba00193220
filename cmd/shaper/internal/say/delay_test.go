package say

import (
	"fmt"
	"math/big"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// TestDelayBound admits packets to a link at the worst times. No packet is queued longer
// than the bound that check prints.
func TestDelayBound(t *testing.T) {
	t.Run("one queue is served first, and then last", func(t *testing.T) {
		var shares []dataplane.Queue
		for range 10 {
			shares = append(shares, dataplane.Queue{Config: queue.Config{Bytes: 4500}, Weight: 1})
		}
		shares[9].Bytes = 1500
		l := newDelays(t, 12_000_000, shares)
		l.admit(0, 9, 1500)
		for q := range 9 {
			for range 3 {
				l.admit(1000, q, 1500)
			}
		}
		l.admit(2000, 9, 1500)
		l.decide()
		if l.longest[9] != 19e6-2000 {
			t.Errorf("the packet was queued %d ns, want %d", l.longest[9], int64(19e6-2000))
		}
	})
	for seed := range uint64(300) {
		t.Run(fmt.Sprintf("random %d", seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 0))
			var shares []dataplane.Queue
			for range 2 + r.IntN(8) {
				weight := 1 + r.IntN(3)
				if r.IntN(3) == 0 {
					weight = 1 + r.IntN(1000)
				}
				shares = append(shares, dataplane.Queue{
					Config: queue.Config{Bytes: 1500 * (1 + r.Int64N(3))}, Weight: weight,
					Priority: r.IntN(4) / 3,
				})
			}
			l := newDelays(t, 12_000_000, shares)
			now := int64(0)
			for range 2000 {
				now += r.Int64N(2) * r.Int64N(1_500_000)
				n := 1500
				if r.IntN(4) == 0 {
					n = 20 + r.IntN(1481)
				}
				l.admit(now, r.IntN(len(shares)), n)
			}
			l.decide()
		})
	}
}

// delays measures the longest queueing delay of each queue of a link.
type delays struct {
	t       *testing.T
	link    *queue.Link[[2]int64] // a packet is its time of arrival and its queue
	queues  []*dataplane.Queue
	longest map[int64]int64 // ns, by queue
}

func newDelays(t *testing.T, bits int64, queues []dataplane.Queue) *delays {
	w := &delays{t: t, longest: map[int64]int64{}}
	on := &dataplane.Link{Name: "l", Rate: meter.BitRate(bits)}
	var shares []queue.LinkQueue
	for i := range queues {
		queues[i].Link = on
		w.queues = append(w.queues, &queues[i])
		shares = append(shares, queues[i].LinkQueue())
	}
	var err error
	if w.link, err = queue.NewLink[[2]int64](on.Rate, shares); err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *delays) admit(now int64, q, n int) {
	w.link.Admit(now, q, queue.Packet{Bytes: n}, [2]int64{now, int64(q)})
}

// decide sends all packets, and compares the delays of queues of the highest priority with
// their bounds.
func (w *delays) decide() {
	for d, ok := w.link.Decide(1 << 60); ok; d, ok = w.link.Decide(1 << 60) {
		w.longest[d.Value[1]] = max(w.longest[d.Value[1]], d.Depart-d.Value[0])
	}
	for i, q := range w.queues {
		s := ServiceOf(q, w.queues, 1500)
		if s.Before == nil && w.longest[int64(i)] > WholeNS(s.Wait) {
			w.t.Errorf("queue %d: got a delay of %d ns, want at most %d", i, w.longest[int64(i)],
				WholeNS(s.Wait))
		}
	}
}

// TestAtMost checks that a bound is rounded up.
func TestAtMost(t *testing.T) {
	for ns, want := range map[int64]string{
		26e6: "at most 26 ms", 139_333_334: "at most 140 ms", 20_006_000_000: "at most 20.1 s",
		999_100: "at most 1 ms", 12: "at most 12 ns",
	} {
		if got := atMost(new(big.Rat).SetInt64(ns)); got != want {
			t.Errorf("%d ns are %q, want %q", ns, got, want)
		}
	}
}

// TestFairIsDescribed checks the text of a fair queue. It has no bound on the delay, because
// packets of other flows are sent first.
func TestFairIsDescribed(t *testing.T) {
	for codel, want := range map[queue.CoDel]string{{}: "an equal share for each", {
		Target: 5 * time.Millisecond, Interval: 100 * time.Millisecond,
	}: "an equal share for each, with its own codel"} {
		q := &dataplane.Queue{
			Config: queue.Config{Bytes: 1 << 20, CoDel: codel},
			Link:   &dataplane.Link{Rate: meter.BitRate(1e6)},
			Fair:   dataplane.Key{By: dataplane.ByFlow},
		}
		if got := Queue(q, nil); !strings.Contains(got, want) || codel == (queue.CoDel{}) &&
			strings.Contains(got, "codel") {
			t.Errorf("got %q, want %q", got, want)
		}
		for _, p := range ServiceOf(q, []*dataplane.Queue{q}, 1500).Parts(q) {
			if p.Key == "delay" {
				t.Errorf("a fair queue: got a delay of %s, want none", p.Text)
			}
		}
	}
}

// TestOwnLink checks which links count as the rate of their queue, and what is said about the planes.
func TestOwnLink(t *testing.T) {
	flow, src := dataplane.Key{By: dataplane.ByFlow}, dataplane.Key{By: dataplane.BySrc}
	own, wan := &dataplane.Link{Name: "own", Rate: meter.BitRate(1e6)},
		&dataplane.Link{Name: "wan", Rate: meter.BitRate(1e6)}
	on := func(name string, l *dataplane.Link, by dataplane.Key, priority, weight int) *dataplane.Queue {
		return &dataplane.Queue{
			Name: name, Link: l, Fair: by, Priority: priority, Weight: weight,
			Config: queue.Config{Bytes: 1 << 20},
		}
	}
	marked := func(q *dataplane.Queue) *dataplane.Queue {
		q.ECN, q.CoDel = true, queue.CoDel{Target: 1, Interval: 1}
		return q
	}
	hosts := func(q *dataplane.Queue, by dataplane.Key) *dataplane.Queue { q.Hosts = by; return q }
	const unknown = "not supported, because fq_codel and cake lack these keys"
	const alone, shared = "fq_codel; in a kernel without it, HTB leaves by flow hash, without codel",
		"fq_codel"
	for _, test := range []struct {
		name   string
		queues []*dataplane.Queue
		own    bool
		kernel string
	}{
		{"own", []*dataplane.Queue{on("own", own, flow, 0, 0)}, true, alone},
		{"weight 1", []*dataplane.Queue{on("own", own, flow, 0, 1)}, true, alone},
		{"by source", []*dataplane.Queue{on("own", own, src, 0, 0)}, true, "cake, with ecn: true, with codel, and with a limit in bytes or time"},
		{"by source net", []*dataplane.Queue{on("own", own, dataplane.Key{By: dataplane.BySrc, V4: 24}, 0, 0)}, true, unknown},
		{"by VLAN", []*dataplane.Queue{on("own", own, dataplane.Key{By: dataplane.ByVLAN}, 0, 0)}, true, unknown},
		{"by source, for cake", []*dataplane.Queue{marked(on("own", own, src, 0, 0))}, true, "cake"},
		{"by source, then flow", []*dataplane.Queue{hosts(marked(on("own", own, flow, 0, 0)), src)}, true, "cake"},
		{"by source, then source", []*dataplane.Queue{hosts(marked(on("own", own, src, 0, 0)), src)}, true, unknown},
		{"beside one of another link", []*dataplane.Queue{on("own", own, flow, 0, 0), on("other", wan, flow, 0, 0)}, true, alone},
		{"another name", []*dataplane.Queue{on("q", own, flow, 0, 0)}, false, shared},
		{"shared", []*dataplane.Queue{on("own", own, flow, 0, 0), on("other", own, flow, 0, 0)}, false, shared},
		{"priority", []*dataplane.Queue{on("own", own, flow, 1, 0)}, false, shared},
		{"weight", []*dataplane.Queue{on("own", own, flow, 0, 2)}, false, shared},
	} {
		q := test.queues[0]
		if got := OwnLink(q, test.queues); got != test.own {
			t.Errorf("%s: own link %v", test.name, got)
		}
		if got := slices.Contains(
			SharedLinks(&dataplane.Policy{Queues: test.queues, Links: []*dataplane.Link{own, wan}}),
			own); got == test.own {
			t.Errorf("%s: the link is shared: %v", test.name, got)
		}
		if got, want := Planes(q, test.queues), "replay, tap: FQ-CoDel; run: "+test.kernel; got != want {
			t.Errorf("%s: got %q, want %q", test.name, got, want)
		}
		if text := Queue(q, test.queues); strings.HasPrefix(text, "rate 1mbit; limit 1048576 B") != test.own {
			t.Errorf("%s: %s", test.name, text)
		}
	}
	if OwnLink(on("own", own, dataplane.Key{}, 0, 0), nil) ||
		OwnLink(on("own", nil, dataplane.Key{}, 0, 0), nil) {
		t.Error("a queue that is not fair, or without a link, has a link of its own")
	}
}
