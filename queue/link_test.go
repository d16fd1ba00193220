package queue

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/meter"
)

func openLink(t testing.TB, rate meter.Rate, shares ...LinkQueue) *Link[int] {
	t.Helper()
	for i := range shares {
		shares[i].Weight = max(shares[i].Weight, 1)
		if shares[i].Limit() == 0 {
			shares[i].Packets = MaxPackets
		}
	}
	l, err := NewLink[int](rate, shares)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// decided returns all decisions of a link by now.
func decided(l *Link[int], now int64) (list []Decision[int]) {
	for {
		d, ok := l.Decide(now)
		if !ok {
			return list
		}
		list = append(list, d)
	}
}

// Rows computed by hand: 8 Mbit/s is one byte per microsecond. Packets are
// numbered from 0.
func TestLinkTrace(t *testing.T) {
	const µs = 1000
	mega := meter.BitRate(8e6)
	weighted := func(priority, weight int) LinkQueue { return LinkQueue{Priority: priority, Weight: weight} }
	limited := func(c Config) LinkQueue { return LinkQueue{Config: c} }
	type in struct {
		at    int64
		queue int
		n     int64
		want  Fate
	}
	type out struct {
		packet int
		at     int64
		fate   Fate
	}
	for _, test := range []struct {
		name   string
		rate   meter.Rate
		shares []LinkQueue
		in     []in
		out    []out
	}{
		{"idle, busy, and just free", mega, []LinkQueue{{}}, []in{
			{0, 0, 100, Admit},
			{99*µs + 999, 0, 100, Admit},
			{200 * µs, 0, 100, Admit}, // just when the previous one has been sent
			{301 * µs, 0, 100, Admit}, // 1 µs after
		}, []out{{0, 0, Admit}, {1, 100 * µs, Admit}, {2, 200 * µs, Admit}, {3, 301 * µs, Admit}}},
		{"fractions are rounded up in departures, but not carried over", meter.Rate{Bytes: 3, Period: 10}, []LinkQueue{{}}, []in{
			{0, 0, 1, Admit}, {0, 0, 1, Admit}, {0, 0, 1, Admit}, {7, 0, 1, Admit}, {14, 0, 1, Admit},
		}, []out{{0, 0, Admit}, {1, 4, Admit}, {2, 7, Admit}, {3, 10, Admit}, {4, 14, Admit}}},
		{"a selection in the middle of a ns precedes arrivals at the next ns", meter.Rate{Bytes: 3, Period: 10}, []LinkQueue{{}, weighted(1, 1)}, []in{
			{0, 0, 1, Admit},
			{0, 1, 1, Admit}, // could be sent at 3 1/3
			{3, 0, 1, Admit}, // arrives before that
			{7, 0, 1, Admit}, // arrives after 6 2/3: packet 1 is being sent
		}, []out{{0, 0, Admit}, {2, 4, Admit}, {1, 7, Admit}, {3, 10, Admit}}},
		{"priorities, between packets", mega, []LinkQueue{weighted(0, 1), weighted(1, 1), weighted(7, 1)}, []in{
			{0, 2, 100, Admit}, // the link is idle
			{0, 2, 100, Admit},
			{0, 1, 100, Admit},
			{50 * µs, 0, 100, Admit},  // queued for one packet
			{60 * µs, 0, 100, Admit},  // likewise
			{300 * µs, 0, 100, Admit}, // arrives when packet 1 would be next, but 2's queue was selected at that time
		}, []out{
			{0, 0, Admit},
			{3, 100 * µs, Admit},
			{4, 200 * µs, Admit},
			{2, 300 * µs, Admit},
			{5, 400 * µs, Admit},
			{1, 500 * µs, Admit},
		}},
		{"weights 1 and 3 of one size", mega, []LinkQueue{weighted(0, 1), weighted(0, 3)}, []in{
			{0, 0, 1514, Admit}, // sent at once, out of queue 0's share
			{0, 0, 1514, Admit},
			{0, 0, 1514, Admit},
			{0, 0, 1514, Admit},
			{0, 1, 1514, Admit},
			{0, 1, 1514, Admit},
			{0, 1, 1514, Admit},
			{0, 1, 1514, Admit},
			{0, 1, 1514, Admit},
		}, []out{
			{0, 0, Admit},
			{4, 1514 * µs, Admit}, // eligible since 0
			{5, 2 * 1514 * µs, Admit},
			{6, 3 * 1514 * µs, Admit},
			{7, 4 * 1514 * µs, Admit}, // eligible since 1514, like packet 1, and finishes first
			{1, 5 * 1514 * µs, Admit},
			{8, 6 * 1514 * µs, Admit},
			{2, 7 * 1514 * µs, Admit},
			{3, 8 * 1514 * µs, Admit},
		}},
		// Comments are virtual times: bytes sent / 4, the sum of the weights.
		{"weights 1 and 3 of mixed sizes", mega, []LinkQueue{weighted(0, 1), weighted(0, 3)}, []in{
			{0, 0, 1000, Admit}, // 0 to 1000
			{0, 0, 1000, Admit}, // 1000 to 2000
			{0, 0, 1000, Admit}, // 2000 to 3000
			{0, 0, 1000, Admit}, // 3000 to 4000
			{0, 0, 1515, Admit}, // from 4000
			{0, 1, 1500, Admit}, // 0 to 500
			{0, 1, 3042, Admit}, // 500 to 1514
			{0, 1, 4543, Admit}, // 1514 to 3028.3
			{0, 1, 4541, Admit}, // 3028.3 to 4542
		}, []out{
			{0, 0, Admit},
			{5, 1000 * µs, Admit},  // at 250
			{6, 2500 * µs, Admit},  // at 625
			{1, 5542 * µs, Admit},  // at 1385.5
			{7, 6542 * µs, Admit},  // at 1635.5
			{2, 11085 * µs, Admit}, // at 2771.25
			{3, 12085 * µs, Admit}, // at 3021.25, before 3028.3
			{8, 13085 * µs, Admit}, // at 3271.25
			{4, 17626 * µs, Admit},
		}},
		{"the eligible packet with the smallest finish is sent", mega, []LinkQueue{weighted(0, 1), weighted(0, 1), weighted(0, 1)}, []in{
			{0, 2, 100, Admit},
			{0, 0, 100, Admit}, // same finish as packet 2, but the lower queue
			{0, 1, 100, Admit},
			{150 * µs, 0, 1514, Admit}, // 100 to 1614
			{150 * µs, 0, 100, Admit},
			{150 * µs, 1, 100, Admit}, // 100 to 200
			{150 * µs, 2, 100, Admit}, // 100 to 200
		}, []out{
			{0, 0, Admit},
			{1, 100 * µs, Admit},
			{2, 200 * µs, Admit},
			{5, 300 * µs, Admit},
			{6, 400 * µs, Admit},
			{3, 500 * µs, Admit},
			{4, 2014 * µs, Admit},
		}},
		{"a queue is not charged for using an idle link", mega, []LinkQueue{weighted(0, 1), weighted(0, 1)}, []in{
			{0, 1, 1000, Admit}, // alone, to 1000
			{1000 * µs, 1, 1000, Admit},
			{2000 * µs, 1, 1000, Admit}, // the link is idle: virtual time restarts
			{2000 * µs, 1, 100, Admit},
			{2000 * µs, 0, 1001, Admit},
		}, []out{
			{0, 0, Admit},
			{1, 1000 * µs, Admit},
			{2, 2000 * µs, Admit},
			{4, 3000 * µs, Admit}, // eligible since 2000
			{3, 4001 * µs, Admit},
		}},
		{"backlog in bytes excludes the packet being sent", mega, []LinkQueue{limited(Config{Bytes: 150})}, []in{
			{0, 0, 151, Full},
			{0, 0, 150, Admit},
			{0, 0, 100, Admit},
			{0, 0, 51, Full},
			{0, 0, 50, Admit},
			{0, 0, 1, Full},
			{150*µs - 1, 0, 1, Full},
			{150 * µs, 0, 100, Admit},
			{150 * µs, 0, 1, Full},
		}, []out{{1, 0, Admit}, {2, 150 * µs, Admit}, {4, 250 * µs, Admit}, {7, 300 * µs, Admit}}},
		{"a limit in bytes allows one packet per 20 bytes", mega, []LinkQueue{limited(Config{Bytes: 59})}, []in{
			{0, 0, 1, Admit}, {0, 0, 1, Admit}, {0, 0, 1, Admit}, {0, 0, 1, Full},
		}, []out{{0, 0, Admit}, {1, 1 * µs, Admit}, {2, 2 * µs, Admit}}},
		{"backlog in packets", mega, []LinkQueue{limited(Config{Packets: 2})}, []in{
			{0, 0, 1000, Admit},
			{0, 0, 1000, Admit},
			{0, 0, 1000, Admit},
			{0, 0, 0, Full},
			{1000*µs - 1, 0, 0, Full},
			{1000 * µs, 0, 1000, Admit},
			{1000 * µs, 0, 0, Full},
		}, []out{{0, 0, Admit}, {1, 1000 * µs, Admit}, {2, 2000 * µs, Admit}, {5, 3000 * µs, Admit}}},
		{"a limit in time is converted to bytes, rounded down", mega, []LinkQueue{limited(Config{Time: 150*µs + 999})}, []in{
			{0, 0, 151, Full}, {0, 0, 150, Admit}, {0, 0, 100, Admit}, {0, 0, 51, Full}, {0, 0, 50, Admit},
		}, []out{{1, 0, Admit}, {2, 150 * µs, Admit}, {4, 250 * µs, Admit}}},
		{"each queue has its own limits", mega, []LinkQueue{limited(Config{Packets: 1}), limited(Config{Bytes: 100})}, []in{
			{0, 0, 100, Admit}, {0, 0, 100, Admit}, {0, 0, 100, Full}, {0, 1, 100, Admit}, {0, 1, 1, Full},
		}, []out{{0, 0, Admit}, {3, 100 * µs, Admit}, {1, 200 * µs, Admit}}},
		{"WRED by bytes", mega, []LinkQueue{limited(Config{Bytes: 1000, WRED: [3]Early{{100, 200, 0}}})}, []in{
			{0, 0, 100, Admit}, {0, 0, 100, Admit}, // backlog 0
			{0, 0, 99, Admit}, // backlog 100 B
			{0, 0, 1, Admit},  // 199 B
			{0, 0, 1, Thin},   // 200 B
		}, []out{{0, 0, Admit}, {1, 100 * µs, Admit}, {2, 200 * µs, Admit}, {3, 299 * µs, Admit}}},
		{"WRED by time", mega, []LinkQueue{limited(Config{Time: time.Millisecond, WRED: [3]Early{{100*µs + 999, 200*µs + 999, 0}}})}, []in{
			{0, 0, 100, Admit}, {0, 0, 100, Admit}, {0, 0, 99, Admit}, {0, 0, 1, Admit}, {0, 0, 1, Thin},
		}, []out{{0, 0, Admit}, {1, 100 * µs, Admit}, {2, 200 * µs, Admit}, {3, 299 * µs, Admit}}},
		{"CoDel on selection", mega, []LinkQueue{limited(Config{CoDel: CoDel{100 * µs, 100 * µs}})}, []in{
			{0, 0, 100, Admit},  // delay 0
			{0, 0, 100, Admit},  // 100 µs: the interval starts
			{0, 0, 700, Admit},  // selected at 200 µs, dropped
			{0, 0, 614, Admit},  // sent instead; the next drop is at 300 µs
			{0, 0, 700, Admit},  // selected at 814 µs, dropped, as is
			{0, 0, 700, Admit},  // this one: 300 µs + 70.71 µs have passed
			{0, 0, 1000, Admit}, // spared: only 1000 B are queued behind it
			{0, 0, 1000, Admit},
		}, []out{
			{0, 0, Admit},
			{1, 100 * µs, Admit},
			{2, 200 * µs, Stale},
			{3, 200 * µs, Admit},
			{4, 814 * µs, Stale},
			{5, 814 * µs, Stale},
			{6, 814 * µs, Admit},
			{7, 1814 * µs, Admit},
		}},
		{
			"CoDel, a ns below the target", mega,
			[]LinkQueue{limited(Config{CoDel: CoDel{100 * µs, 100 * µs}})},
			[]in{
				{0, 0, 100, Admit},
				{1, 0, 100, Admit}, // delay 1 ns below the target
				{1, 0, 614, Admit}, // 200 µs: the interval starts
				{1, 0, 700, Admit},
				{1, 0, 1000, Admit},
				{1, 0, 1000, Admit},
			},
			[]out{
				{0, 0, Admit},
				{1, 100 * µs, Admit},
				{2, 200 * µs, Admit},
				{3, 814 * µs, Stale},
				{4, 814 * µs, Admit},
				{5, 1814 * µs, Admit},
			},
		},
		{"CoDel, more than a frame queued behind", mega, []LinkQueue{limited(Config{CoDel: CoDel{100 * µs, 100 * µs}})}, []in{
			{0, 0, 100, Admit}, {0, 0, 100, Admit}, {0, 0, 10, Admit}, {0, 0, 1515, Admit},
		}, []out{{0, 0, Admit}, {1, 100 * µs, Admit}, {2, 200 * µs, Stale}, {3, 200 * µs, Admit}}},
		{"CoDel, one frame queued behind", mega, []LinkQueue{limited(Config{CoDel: CoDel{100 * µs, 100 * µs}})}, []in{
			{0, 0, 100, Admit}, {0, 0, 100, Admit}, {0, 0, 11, Admit}, {0, 0, 1514, Admit},
		}, []out{{0, 0, Admit}, {1, 100 * µs, Admit}, {2, 200 * µs, Admit}, {3, 211 * µs, Admit}}},
		{"a packet whose transmission exceeds int64", meter.Rate{Bytes: 1, Period: 1 << 40}, []LinkQueue{{}}, []in{
			{0, 0, 1 << 23, Admit}, {0, 0, 1, Admit},
		}, []out{{0, 0, Full}, {1, 0, Admit}}},
		{"negative times", mega, []LinkQueue{{}}, []in{
			{-1000 * µs, 0, 100, Admit}, {-1000 * µs, 0, 100, Admit},
		}, []out{{0, -1000 * µs, Admit}, {1, -900 * µs, Admit}}},
	} {
		t.Run(test.name, func(t *testing.T) {
			l := openLink(t, test.rate, test.shares...)
			for i, r := range test.in {
				if int64(int(r.n)) != r.n {
					t.Skip("this needs an int of 64 bits")
				}
				if f := l.Admit(r.at, r.queue, Packet{Bytes: int(r.n)}, i); f != r.want {
					t.Fatalf("packet %d: %d B into queue %d at %d: got %v, want %v", i, r.n, r.queue, r.at, f,
						r.want)
				}
			}
			var got []out
			for _, d := range decided(l, math.MaxInt64) {
				got = append(got, out{d.Value, d.Depart, d.Fate})
			}
			if !slices.Equal(got, test.out) {
				t.Errorf("got\n%v, want\n%v", got, test.out)
			}
		})
	}
}

// TestLinkLongest checks both sides of the maximum length of a packet.
func TestLinkLongest(t *testing.T) {
	longest := int64(MaxBytes)
	if longest > math.MaxInt {
		t.Skip("an int of 32 bits cannot hold the length")
	}
	l := openLink(t, meter.Rate{Bytes: 1 << 30, Period: 1}, LinkQueue{Fair: FairFlows})
	for i, in := range []struct {
		n    int64
		want Fate
	}{{longest, Admit}, {longest, Admit}, {longest + 1, Full}, {1, Admit}} {
		if f := l.Admit(0, 0, Packet{Bytes: int(in.n)}, i); f != in.want {
			t.Errorf("packet %d: got %v, want %v", i, f, in.want)
		}
	}
	want := []Decision[int]{{0, 0, Admit}, {1, 4, Admit}, {3, 8, Admit}}
	if got := decided(l, math.MaxInt64); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// TestLinkMarks checks that the decision includes the marks of WRED and CoDel.
func TestLinkMarks(t *testing.T) {
	l := openLink(t, meter.BitRate(8e6), LinkQueue{Config: Config{
		Packets: 9, ECN: true, Seed: 3, // first number 0.11
		WRED:  [3]Early{meter.Yellow: {0, 2, Certain}},
		CoDel: CoDel{2 * time.Millisecond, time.Millisecond},
	}})
	p := Packet{Bytes: 1000, ECN: true}
	yellow := Packet{Bytes: 1000, Color: meter.Yellow, ECN: true}
	for i, in := range []struct {
		Packet
		want Fate
	}{
		{p, Admit},
		{p, Admit},
		{yellow, AdmitCE},
		{p, Admit},
		{Packet{Bytes: 1000}, Admit},
		{p, Admit},
		{p, Admit},
	} {
		if f := l.Admit(0, 0, in.Packet, i); f != in.want {
			t.Errorf("packet %d: got %v, want %v", i, f, in.want)
		}
	}
	want := []Decision[int]{
		{0, 0, Admit},
		{1, 1e6, Admit},
		{2, 2e6, AdmitCE},
		{3, 3e6, AdmitCE},
		{4, 4e6, Stale},
		{5, 4e6, Admit},
		{6, 5e6, Admit},
	}
	if got := decided(l, math.MaxInt64); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// TestDue compares the time of the next decision with rows computed by hand.
func TestDue(t *testing.T) {
	l := openLink(t, meter.Rate{Bytes: 3, Period: 10}, LinkQueue{})
	due := func(want int64, wantOK bool) {
		t.Helper()
		if at, ok := l.Due(); ok != wantOK || ok && at != want {
			t.Errorf("due at %d (%v), want %d (%v)", at, ok, want, wantOK)
		}
	}
	decide := func(now int64, want ...Decision[int]) {
		t.Helper()
		if got := decided(l, now); !slices.Equal(got, want) {
			t.Errorf("by %d: got %v, want %v", now, got, want)
		}
	}
	due(0, false)
	decide(math.MaxInt64)
	for i := range 3 {
		l.Admit(5, 0, Packet{Bytes: 1}, i)
	}
	due(5, true) // decided on arrival, not yet collected
	decide(4, Decision[int]{0, 5, Admit})
	due(9, true) // 8 1/3
	decide(8)
	decide(9, Decision[int]{1, 9, Admit})
	due(12, true) // 11 2/3
	l.Admit(13, 0, Packet{Bytes: 1}, 3)
	due(12, true)
	decide(11, Decision[int]{2, 12, Admit}) // decided by the arrival at 13
	due(15, true)
	decide(math.MaxInt64, Decision[int]{3, 15, Admit})
	due(0, false)
	l.Admit(16, 0, Packet{Bytes: 1}, 4) // the link is busy until 18 1/3
	due(19, true)                       // although nothing is queued
}
