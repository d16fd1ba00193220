package lease_test

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/meter/shared/lease"
	"github.com/a-seed-32e5a53f/shaper/meter/shared/lease/world"
)

const (
	ms     = 1_000_000
	second = 1000 * ms
)

// Failures that playFaults can cause. In all but the last two groups the store keeps
// its data.
const (
	// requests, replies, all lost messages end, offered, nothing offered, store down, stopped, delays
	links    = "rRhRoOdzy"
	hosts    = "cljn" // crash, leave, join, join with a name in use
	replicas = "spf"  // replication stops unnoticed, resumes, failover
	losses   = "tFx"  // replication stops and is noticed, flush, calls to a replaced server
	clocks   = "ab"   // ahead, back
)

// playFaults runs a world with failures from data, 4 bytes each, and checks that the
// hosts never exceed their bounds.
func playFaults(t *testing.T, seed uint64, kinds string, data []byte) {
	t.Helper()
	r := rand.New(rand.NewPCG(seed, 3))
	pick := func(of ...int64) int64 { return of[r.IntN(len(of))] }
	terms := lease.Terms{
		Size:   lease.Amounts{Rate: [2]int64{1_000_000_000, 500_000_000}, Burst: [2]int64{1 << 20, 1 << 19}},
		Weight: 1, Floor: 3028, Rescue: pick(0, 100_000, 500_000, 1_000_000), Hosts: pick(16, 1<<40),
		Interval: 100 * ms,
		Deadline: 50 * ms,
	}
	w := world.New(world.Config{
		Hosts: 2 + r.IntN(7), Terms: terms, Seed: seed, Delay: pick(ms, 20*ms, 45*ms), Drift: 1e-3,
		Start: pick(0, 2*second), Loss: float64(pick(0, 0, 20)) / 100, Late: float64(pick(0, 0, 2)) / 100,
		Replica: r.IntN(2) == 0,
	})
	kept := true
	check := func(err error) {
		if err != nil {
			t.Fatalf("seed %d, %q, at %.4f s: %v", seed, kinds, float64(w.Now)/1e9, err)
		}
	}
	w.Check = func() { check(counted(w, kept)) }
	w.Run(3 * second)
	for ; len(data) >= 4; data = data[4:] {
		h, x := w.Hosts[int(data[1])%len(w.Hosts)], int64(data[3])
		op := kinds[int(data[0])%len(kinds)]
		switch op {
		case 'r':
			h.Cut[0] = !h.Cut[0]
		case 'R':
			h.Cut[1] = !h.Cut[1]
		case 'h':
			h.Cut = [2]bool{}
		case 'z':
			h.Hung = !h.Hung
			w.At(x*10*ms, func() { h.Hung = false })
		case 'y': // of requests and replies, up to twice the deadline
			delays := [2]int64{x >> 4 * 6 * ms, x & 15 * 6 * ms}
			w.Travel = func(other *world.Host, reply bool) int64 {
				switch {
				case other != h:
					return r.Int64N(45 * ms)
				case reply:
					return delays[1]
				}
				return delays[0]
			}
		case 'o':
			w.Offer(h, x*10_000_000)
		case 'O':
			w.Offer(h, 0)
		case 'd':
			w.Down = !w.Down
			w.At(x*10*ms, func() { w.Down = false })
		case 'c', 'l':
			if op == 'c' {
				w.Crash(h)
			} else {
				w.Leave(h)
			}
			w.At(x*10*ms, func() {
				if !h.Up {
					w.Boot(h)
				}
			})
		case 'j', 'n':
			name := ""
			if op == 'n' {
				name = h.Name
			}
			if len(w.Hosts) < 30 {
				w.Boot(w.Join(name))
			}
		case 's', 't':
			w.Stall(op == 't')
		case 'p':
			w.Resume()
		case 'f':
			w.Failover()
			kept = false
		case 'x':
			w.Stray(h, x%4 == 0)
			kept = false
		case 'F':
			w.Flush()
			kept = false
		case 'a', 'b':
			if op == 'b' {
				x = -x
			}
			w.Jump(x * 4 * ms)
			kept = false
		}
		w.Run(w.Now + int64(data[2])*ms)
		check(bounded(w))
	}
	w.Run(w.Now + 2*second)
	check(bounded(w))
}

// bounded compares the amounts that hosts could have used with the bounds.
func bounded(w *world.World) error {
	for i, excess := range w.Stats.Excess {
		if bound := w.Stats.Bound[i]; excess > 0 && excess > bound+1 || bound == 0 && excess > 0 {
			return fmt.Errorf("%.0f tokens of bucket %d are beyond the budget, bound %.0f", excess, i, bound)
		}
	}
	return nil
}

// counted compares the store's sums, just after a call, with the amounts that
// the hosts may use.
func counted(w *world.World, kept bool) error {
	type process struct {
		name     string
		instance int64
	}
	held := map[process]lease.Amounts{}
	var sum, rescues lease.Amounts
	w.Store.Members(func(name string, instance int64, holds, rescue lease.Amounts) {
		held[process{name, instance}] = holds
		sum, rescues = sum.Plus(holds), rescues.Plus(rescue)
	})
	if s, r := w.Store.Sums(); s != sum || r != rescues {
		return fmt.Errorf("the store has the sums %v and %v, but its hosts add up to %v and %v", s, r, sum,
			rescues)
	}
	for _, h := range w.Hosts {
		if m, ok := held[process{h.Name, h.Instance()}]; ok && kept && h.Allowed().Min(m) != h.Allowed() {
			return fmt.Errorf("%s may use %v, but the store counts %v", h.Name, h.Allowed(), m)
		}
	}
	return nil
}

// TestRandomFaults causes failures at random times.
func TestRandomFaults(t *testing.T) {
	for _, tt := range []struct {
		name, kinds string
		seeds       uint64
	}{
		{"links", links, 40},
		{"hosts", links + hosts, 40},
		{"replicas", links + hosts + replicas, 40},
		{"losses", links + hosts + replicas + losses, 40},
		{"clocks", links + clocks, 40},
		{"all", links + hosts + replicas + losses + clocks, 40},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			for seed := range tt.seeds {
				r := rand.New(rand.NewPCG(seed, 5))
				data := make([]byte, 4*200)
				for i := 0; i < len(data); i += 8 {
					binary.LittleEndian.PutUint64(data[i:], r.Uint64())
				}
				playFaults(t, seed, tt.kinds, data)
			}
		})
	}
}

// FuzzFaults searches for an order of failures in which hosts exceed their
// bounds.
func FuzzFaults(f *testing.F) {
	f.Add(uint64(1), uint8(0), []byte{0, 0, 255, 0, 4, 1, 255, 200, 0, 1, 200, 0})
	f.Add(uint64(2), uint8(1), []byte{7, 0, 100, 50, 5, 1, 100, 0, 4, 2, 255, 255})
	f.Add(uint64(3), uint8(2), []byte{11, 0, 50, 0, 4, 1, 40, 200, 13, 0, 30, 0, 4, 2, 255, 200})
	f.Fuzz(func(t *testing.T, seed uint64, kinds uint8, data []byte) {
		if len(data) > 4*300 {
			return
		}
		all := []string{
			links, links + hosts, links + hosts + replicas, links + hosts + replicas + losses,
			links + hosts + replicas + losses + clocks,
		}
		playFaults(t, seed, all[int(kinds)%len(all)], data)
	})
}
