package lease_test

import (
	"testing"

	"github.com/a-seed-32e5a53f/shaper/meter/shared/lease"
)

// one returns amounts of the first bucket, in bit/s and bytes.
func one(rate, burst int64) lease.Amounts {
	return lease.Amounts{Rate: [2]int64{rate}, Burst: [2]int64{burst}}
}

// mega returns a number of Mbit/s with a burst of 8 ms.
func mega(n float64) lease.Amounts { return one(int64(n*1e6), int64(n*1e3)) }

// TestSetTermsWithoutStore lowers a budget by a reload after a reply, and loses the calls after
// it. No phase may exceed the new size, and no rescue share its part of the new size.
func TestSetTermsWithoutStore(t *testing.T) {
	t.Parallel()
	const packet = 1500
	old := lease.Terms{
		Size: mega(100), Weight: 1, Rescue: 500_000, Packet: packet, Hosts: 4,
		Interval: 100 * ms, Deadline: 50 * ms,
	}
	for name, row := range map[string]struct {
		hosts, rescue int64         // hosts at the last reply, and the new part
		size          lease.Amounts // in the last reply
		reload        lease.Amounts // new size in the policy
		share, want   lease.Amounts // phases 0 and 2 after the reload
	}{
		"less than a packet":                     {1, 500_000, mega(100), one(10e6, 1000), one(10e6, 1000), one(5e6, 1000)},
		"a tenth, of two hosts":                  {2, 500_000, mega(100), mega(10), mega(10), mega(2.5)},
		"no rescue share":                        {1, 0, mega(100), mega(100), mega(100), mega(0)},
		"a smaller rescue share":                 {2, 100_000, mega(100), mega(100), mega(100), mega(5)},
		"the burst of a packet":                  {1, 10_000, mega(100), mega(100), mega(100), one(1e6, packet)},
		"unchanged":                              {2, 500_000, mega(100), mega(100), mega(100), mega(25)},
		"unchanged, an operator's larger size":   {1, 500_000, mega(200), mega(100), mega(200), mega(100)},
		"unchanged, another host's smaller size": {1, 500_000, mega(40), mega(100), mega(40), mega(20)},
		"smaller, but not the smallest":          {1, 500_000, mega(40), mega(60), mega(40), mega(20)},
		"larger":                                 {1, 1_000_000, mega(100), mega(200), mega(100), mega(50)},
	} {
		for _, after := range []int64{10 * ms, 450 * ms, 5 * second} { // in each phase
			h := lease.NewHost("a", 1, old)
			h.Request(0, lease.Counts{})
			h.Reply(ms, lease.Reply{
				Time: 1, Share: row.size, Rescue: row.size.Part(1, 2*row.hosts), Size: row.size,
				Hosts: row.hosts,
				Spare: row.size.Rate,
			}, true)
			terms := old
			terms.Size, terms.Rescue = row.reload, row.rescue
			h.SetTerms(terms)
			if terms != old { // there and back: nothing grows, and nothing shrinks twice
				h.SetTerms(old)
				h.SetTerms(terms)
			}
			want := [3]lease.Amounts{row.share, row.want.Min(row.share), row.want}
			for i := range int64(3) {
				if got := h.Plan().Phase; got != want {
					t.Errorf("%s, after %d ms, %d lost calls: got phases %v, want %v",
						name, after/ms, i, got, want)
				}
				r := h.Request(after+i*100*ms, lease.Counts{})
				if r.Rescue.Rate != row.want.Rate || r.Rescue.Burst[0] > row.want.Burst[0] {
					t.Errorf("%s: got a rescue share of %v in the request, want %v", name, r.Rescue, row.want)
				}
				h.Lost(after + i*100*ms + 50*ms)
			}
			again := mega(400)
			h.Reply(after+201*ms, lease.Reply{Time: 2, Share: again, Rescue: again, Size: again, Hosts: 1},
				true)
			if got := h.Plan().Phase; got != [3]lease.Amounts{again, again, again} {
				t.Errorf("%s: got phases %v after a reply with an operator's size, want %v", name, got, again)
			}
		}
	}
}

// TestSetTermsUnheard changes the budget of a host that has never received a reply. Its rescue
// share is that of the new terms: less at once, more after the next call has reported it.
func TestSetTermsUnheard(t *testing.T) {
	t.Parallel()
	terms := lease.Terms{
		Size: mega(100), Weight: 1, Rescue: 500_000, Packet: 1500, Hosts: 2,
		Interval: 100 * ms, Deadline: 50 * ms,
	}
	h := lease.NewHost("a", 1, terms)
	now := int64(0)
	for i, row := range []struct {
		size        lease.Amounts
		rescue      int64
		once, later lease.Amounts
	}{
		{mega(100), 500_000, lease.Amounts{}, mega(25)}, // before the first call
		{one(10e6, 1000), 500_000, one(25e5, 1000), one(25e5, 1000)},
		{mega(200), 500_000, one(25e5, 1000), mega(50)},
		{mega(200), 0, mega(0), mega(0)},
		{mega(200), 1_000_000, mega(0), mega(100)},
	} {
		terms.Size, terms.Rescue = row.size, row.rescue
		h.SetTerms(terms)
		if got := h.Plan(); got.At(now) != row.once {
			t.Errorf("change %d: got %v at once, want %v", i, got.At(now), row.once)
		}
		r := h.Request(now, lease.Counts{})
		if r.Holds != row.once || r.Rescue.Rate != row.later.Rate {
			t.Errorf("change %d: the request has %v and a rescue share of %v, want %v and %v",
				i, r.Holds, r.Rescue, row.once, row.later)
		}
		now += 100 * ms
		h.Lost(now)
		if got := h.Plan(); got.At(now) != row.later {
			t.Errorf("change %d: got %v after the next call, want %v", i, got.At(now), row.later)
		}
	}
}

// TestSetTermsOfAll lowers a budget on all hosts while the store is unreachable, for less and for
// more than a lease. All together must stay within the bound of the new terms.
func TestSetTermsOfAll(t *testing.T) {
	t.Parallel()
	for _, gone := range []int64{0, 150 * ms, 600 * ms, 2 * second} {
		for _, rescue := range []int64{0, 20_000, 500_000} {
			const hosts = 10
			w := settled(hosts, 500_000)
			w.Down = true
			runFor(w, gone)
			terms := w.Terms
			terms.Size, terms.Rescue = terms.Size.Part(1, 10), rescue
			for _, h := range w.Hosts {
				h.SetTerms(terms)
			}
			runFor(w, 2*second)
			bound := terms.Bound(lease.Gone, 0).Sum
			if sum := w.Sum(); sum != sum.Min(bound) || sum.Rate[0] < bound.Rate[0]*99/100 {
				t.Errorf("a tenth after %d ms, and a rescue share of %d millionths: got %v in all, want %v",
					gone/ms, rescue, sum, bound)
			}
		}
	}
}
