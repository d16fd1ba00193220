package lease_test

import (
	"testing"

	"github.com/a-seed-32e5a53f/shaper/meter/shared/lease"
	"github.com/a-seed-32e5a53f/shaper/meter/shared/lease/world"
)

// TestRescuePacket makes the store unreachable for hosts whose rescue shares are
// below a packet. Each must have the burst of a packet, and all together at most
// the bound and a packet of each host.
func TestRescuePacket(t *testing.T) {
	t.Parallel()
	const hosts, burst, packet = 10, 20_000, 1518 // a tenth of the burst for ten hosts is 200 bytes each
	of := func(c *world.Config) {
		c.Terms.Size.Burst[0], c.Terms.Packet, c.Terms.Floor, c.Terms.Hosts = burst, packet, 0, hosts
	}
	for name, start := range map[string]func() *world.World{
		"lost":        func() *world.World { w := settled(hosts, 100_000, of); w.Down = true; return w },
		"never there": func() *world.World { return settled(hosts, 100_000, of, func(c *world.Config) { c.Hosts = 0 }) },
	} {
		w := start()
		if name == "never there" {
			w.Down = true
			for range hosts {
				w.Boot(w.Join(""))
			}
		}
		runFor(w, 2*second)
		bound := w.Terms.Bound(lease.Gone, 0)
		if bound.Packet != packet {
			t.Fatalf("%s: got a packet of %d in the bound, want %d", name, bound.Packet, packet)
		}
		for _, h := range w.Hosts {
			a := h.Allowed()
			if a.Burst[0] != packet || a.Rate[0] != gbit/10/hosts || a.Burst[1] != 0 {
				t.Errorf("%s: %s may use %+v, want a tenth of its part of the rate, and a packet", name,
					h.Name, a)
			}
		}
		if sum, most := w.Sum().Burst[0], bound.Sum.Burst[0]+hosts*packet; sum > most || sum != hosts*packet {
			t.Errorf("%s: got a burst of %d in all, want %d, at most %d", name, sum, hosts*packet, most)
		}
	}
}

// TestRescueWithoutPacket checks the cases in which a rescue share is not raised:
// it is larger, it has no rate, or no packet fits the budget at all.
func TestRescueWithoutPacket(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		rescue, burst, want int64
	}{
		{1_000_000, 160_000, 10_000}, {0, 160_000, 0}, {100_000, 1000, 1000}, {100_000, 160_000, 1518},
	} {
		h := lease.NewHost("h", 1, lease.Terms{
			Size: lease.Amounts{Rate: [2]int64{gbit}, Burst: [2]int64{tt.burst}}, Weight: 1,
			Packet: 1518, Rescue: tt.rescue, Hosts: 16, Interval: 100 * ms, Deadline: 50 * ms,
		})
		h.Request(0, lease.Counts{})
		h.Lost(ms)
		plan := h.Plan()
		if got := plan.At(ms).Burst[0]; got != tt.want {
			t.Errorf("rescue of %d millionths of %d: got a burst of %d, want %d", tt.rescue, tt.burst, got,
				tt.want)
		}
	}
}
