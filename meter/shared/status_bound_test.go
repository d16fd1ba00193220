package shared

import (
	"testing"

	"github.com/a-seed-32e5a53f/shaper/meter/shared/lease"
)

// TestStatusBound compares the bounds in Status with values computed by hand.
func TestStatusBound(t *testing.T) {
	t.Parallel()
	const second = int64(1e9)
	one := func(rate, burst int64) lease.Amounts {
		return lease.Amounts{Rate: [2]int64{rate}, Burst: [2]int64{burst}}
	}
	// The policy has 80 Mbit/s and a rescue share of a tenth for 4 hosts. The
	// store reports 40 Mbit/s and a rescue share of 1 Mbit/s. A lease is 0.4 s
	// and passes 2,000,000 bytes.
	terms := lease.Terms{
		Size: one(80e6, 800_000), Rescue: 100_000, Hosts: 4, Weight: 1, Interval: second / 10,
		Deadline: second / 20,
	}
	policy, size, rescue := one(80e6, 800_000), one(40e6, 400_000), one(1e6, 10_000)
	for _, row := range []struct {
		what         string
		s            Status
		sum, without lease.Amounts
		once         int64
	}{
		{"before the first call", Status{Size: policy, Rescued: true}, one(80e6, 800_000), one(8e6, 80_000), 0},
		{"the store never answered", Status{Size: policy, Rescued: true, Rescue: one(2e6, 20_000)}, one(82e6, 820_000), one(10e6, 100_000), 0},
		{"a lease", Status{Size: size, Heard: true, Rescue: rescue}, one(40e6, 400_000), one(4e6, 40_000), 0},
		{"replicas", Status{Size: size, Heard: true, Rescue: rescue, Replicas: 2}, one(40e6, 400_000), one(4e6, 40_000), 0},
		{"no right to INFO", Status{Size: size, Heard: true, Rescue: rescue, Replicas: -1}, one(40e6, 400_000), one(4e6, 40_000), 2_400_000},
		{"no answer", Status{Size: size, Heard: true, Rescued: true, Rescue: rescue}, one(40e6, 400_000), one(4e6, 40_000), 0},
		{"no answer, and no right to INFO", Status{Size: size, Heard: true, Rescued: true, Rescue: rescue, Replicas: -1}, one(40e6, 400_000), one(4e6, 40_000), 2_400_000},
		{"refused", Status{Size: size, Heard: true, Rescued: true, Rescue: rescue, Refused: lease.NameUsed}, one(41e6, 410_000), one(5e6, 50_000), 0},
		{"refused during a lease", Status{Size: size, Heard: true, Rescue: rescue, Refused: lease.TooMany}, one(40e6, 400_000), one(4e6, 40_000), 0},
		{"an old call arrived late", Status{Size: size, Heard: true, Rescued: true, Rescue: rescue, Refused: lease.Stale}, one(40e6, 400_000), one(4e6, 40_000), 0},
	} {
		m := &member{Budget: Budget{Terms: terms}, status: row.s}
		m.bound(7 * second)
		if got := &m.status; got.Bound.Sum != row.sum || got.Bound.Once != [2]int64{row.once, 0} ||
			got.Without.Sum != row.without {
			t.Errorf("%s: got %+v and once %d, %+v without the store; want %+v, %d, %+v",
				row.what, got.Bound.Sum, got.Bound.Once, got.Without.Sum, row.sum, row.once, row.without)
		}
	}

	// A packet of each host: of 3 that the store knows, of 4 that the policy assumes. Without rescue
	// shares, none is raised to a packet.
	for hosts, s := range map[int64]Status{
		3: {Size: size, Heard: true, Hosts: 3, Rescue: rescue}, 4: {Size: size},
	} {
		m := &member{Budget: Budget{Terms: terms}, status: s}
		m.Terms.Packet = 1500
		m.bound(7 * second)
		want := [2]lease.Amounts{one(40e6, 400_000+1500*hosts), one(4e6, 40_000+1500*hosts)}
		if got := [2]lease.Amounts{m.status.Bound.Sum, m.status.Without.Sum}; got != want {
			t.Errorf("%d hosts with packets of 1500 bytes: got %+v, want %+v", hosts, got, want)
		}
		m.Terms.Rescue = 0
		m.bound(7 * second)
		if got, want := [2]lease.Amounts{m.status.Bound.Sum, m.status.Without.Sum},
			[2]lease.Amounts{size}; got != want {
			t.Errorf("%d hosts without rescue shares: got %+v, want %+v", hosts, got, want)
		}
	}

	// A host that the store has just met is counted in addition, for a lease
	// and half an interval.
	m := &member{
		Budget: Budget{Terms: terms}, status: Status{Size: policy, Rescued: true, Rescue: one(2e6, 20_000)},
	}
	m.bound(7 * second)
	m.status = Status{Size: size, Heard: true, Rescue: rescue}
	for _, row := range []struct{ after, rate int64 }{
		{second / 10, 42e6}, {second*45/100 - 1, 42e6}, {second * 45 / 100, 40e6}, {second, 40e6},
	} {
		m.bound(7*second + row.after)
		if got := m.status.Bound.Sum.Rate[0]; got != row.rate {
			t.Errorf("bound %[2]d bit/s after %[1]d ns, want %[3]d", row.after, got, row.rate)
		}
	}
}

// TestStatusReload changes the terms of an agent that has never received a reply: its status must
// show the new size and floor, and a bound for them.
func TestStatusReload(t *testing.T) {
	t.Parallel()
	a, terms := newLonelyAgent(t)
	for _, part := range []int64{1, 10, 2} {
		terms.Size, terms.Floor = testTerms().Size.Part(1, part), 100*part
		noError(t, a.Replace([]Budget{{"a", "host", terms}}))
		a.call(t.Context())
		rescue := terms.Size.Part(1, 20)
		s := a.Status()[0]
		if s.Size != terms.Size || s.Floor != terms.Floor || s.Rescue != rescue ||
			s.Bound.Sum != terms.Size.Plus(rescue) {
			t.Errorf("1/%d of the budget: got %+v, want a size of %v and a rescue share of %v", part, s,
				terms.Size, rescue)
		}
	}
}
