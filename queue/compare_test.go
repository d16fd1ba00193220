package queue

import (
	"errors"
	"flag"
	"math/big"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/meter"
)

// campaign is the duration of each comparison with a model.
var campaign = flag.Duration("campaign", 300*time.Millisecond, "duration of each comparison with a model")

// choices is the source of random cases. n returns a number below its argument,
// which is at most 65536. In tidy cases all sizes and times are multiples of
// 500 B at 8 Mbit/s, so that bounds are met exactly.
type choices struct {
	n    func(n int) int
	tidy bool
}

func fromRandom(r *rand.Rand, tidy bool) choices { return choices{r.IntN, tidy} }

// fromBytes makes choices from the bytes of a fuzzer. Once they are used up, it
// always makes the first choice.
func fromBytes(b []byte) choices {
	pick := choices{n: func(n int) int {
		v := 0
		for m := n - 1; m > 0 && len(b) > 0; m >>= 8 {
			v, b = v<<8|int(b[0]), b[1:]
		}
		return v % n
	}}
	pick.tidy = pick.n(2) == 0
	return pick
}

func (pick choices) oneOf(values ...int64) int64 { return values[pick.n(len(values))] }

func (pick choices) oneRate() meter.Rate {
	if pick.tidy {
		return meter.BitRate(8e6)
	}
	switch pick.n(3) {
	case 0:
		return meter.Rate{Bytes: 1 + int64(pick.n(2000)), Period: 1 + time.Duration(pick.n(60000))}
	case 1:
		return meter.BitRate(pick.oneOf(1000, 64e3, 9_999_991, 1e9, 10e9))
	}
	return meter.Rate{Bytes: 3, Period: 7}
}

// bytes returns the length of a few packets, at least one byte.
func (pick choices) bytes() int {
	if pick.tidy {
		return 500 + 500*pick.n(8)
	}
	return 1 + pick.n(9000)
}

// config returns a queue that a few packets fill.
func (pick choices) config(rate meter.Rate) Config {
	c := Config{ECN: pick.n(2) == 0, Seed: uint64(pick.n(65536)) << (16 * pick.n(4))}
	for c.Time == 0 && c.Bytes == 0 && c.Packets == 0 {
		if pick.n(2) == 0 {
			c.Time = time.Duration(ceilOf(sendTime(rate, int64(pick.bytes()))))
		}
		if pick.n(3) == 0 {
			c.Bytes = int64(pick.bytes())
		}
		if pick.n(3) == 0 {
			c.Packets = 1 + int64(pick.n(20))
		}
	}
	for color := range c.WRED {
		if pick.n(2) == 0 {
			step := int64(1)
			switch {
			case pick.tidy && c.Time > 0:
				step = 500_000
			case pick.tidy && c.Bytes > 0:
				step = 500
			}
			most := (1 + int64(pick.n(65536))*(c.Limit()/step)/65536) * step
			least := int64(pick.n(65536)) * (most/step + 1) / 65536 * step
			c.WRED[color] = Early{least, most, uint32(pick.oneOf(0, 1, Certain/2, Certain-1, Certain))}
			if c.Time > 0 && bytesIn(rate, most) == 0 {
				c.WRED[color] = Early{}
			}
		}
	}
	c.CoDel = pick.codel(rate)
	return c
}

// codel returns no CoDel, or one with the times of a few packets.
func (pick choices) codel(rate meter.Rate) (c CoDel) {
	if pick.n(2) == 0 {
		during := func() time.Duration {
			return time.Duration(max(ceilOf(sendTime(rate, int64(pick.bytes()))), 1))
		}
		c = CoDel{Target: during(), Interval: min(during(), MaxInterval)}
	}
	return c
}

func (pick choices) packet() Packet {
	n := 500 * pick.n(4)
	if !pick.tidy {
		n = int(pick.oneOf(0, 1, 20, 64, 1000, 1500, 1513, 1514, 1515, 9000))
		if pick.n(2) == 0 {
			n = pick.n(1600)
		}
	}
	segments := 0
	if pick.n(4) == 0 {
		segments = int(pick.oneOf(1, 2, 3, 45))
	}
	return Packet{
		Bytes: n, Segments: segments, Color: meter.Color(pick.n(3)), ECN: pick.n(2) == 0,
		Flow: uint16(pick.oneOf(0, 1, 2, Flows-1)), Host: uint16(pick.oneOf(0, 1, Flows-1)),
	}
}

// gap returns the time until the next packet.
func (pick choices) gap(rate meter.Rate, p Packet) int64 {
	switch kind := pick.n(6); {
	case kind < 2:
		return 0
	case pick.tidy:
		return 500_000 * int64(pick.n(3))
	case kind == 2:
		return int64(pick.n(3))
	case kind == 3:
		return max(ceilOf(sendTime(rate, int64(p.Bytes)))-int64(pick.n(3)), 0)
	}
	return ceilOf(sendTime(rate, int64(pick.n(2000))))
}

// sameLeaky compares a Leaky with its model and checks properties that every
// Leaky has.
func sameLeaky(t testing.TB, pick choices, packets int) (fates [AdmitCE + 1]int) {
	rate := pick.oneRate()
	cfg := pick.config(rate)
	cfg.Rate = rate
	q, m := newLeaky(t, cfg), &model{modelEarly: newModelEarly(cfg)}
	now := int64(pick.n(65536))<<40 - 1<<55
	last, most := int64(-1<<62), int64(-1<<62)
	sent, least := int64(0), int64(1<<62)
	begin := now
	for i := range packets {
		if pick.n(16) == 0 {
			rate = pick.oneRate()
			codel := pick.codel(rate)
			if err := errors.Join(q.SetRate(rate), q.SetCoDel(codel)); err != nil {
				t.Fatal(err)
			}
			m.setRate(rate)
			m.setCoDel(codel)
			begin, sent, least, most = now+int64(q.Delay(now)), 0, 1<<62, -1<<62
		}
		p := pick.packet()
		if got := q.Delay(now); got != m.delay(now) {
			t.Fatalf("%+v\npacket %d: got a delay of %d ns, want %d", cfg, i, got, m.delay(now))
		}
		depart, f := q.Admit(now, p)
		want, wantFate := m.admit(now, p)
		if depart != want || f != wantFate {
			t.Fatalf("%+v\npacket %d: %+v at %d: %d %v, model %d %v", cfg, i, p, now, depart, f, want,
				wantFate)
		}
		fates[f]++
		if !f.Dropped() {
			if depart < now || depart < last {
				t.Fatalf("packet %d arrives at %d and departs at %d, its predecessor at %d", i, now, depart,
					last)
			}
			last = depart
			// The bytes sent from any packet up to this one are at most the
			// bytes that the rate allows in that time, plus this one.
			level := sent*int64(rate.Period) - rate.Bytes*(depart-begin)
			least = min(least, level)
			most = max(most, level-least)
			if most > rate.Bytes {
				t.Fatalf("%+v\npacket %d departs %d B too early", cfg, i, most/int64(rate.Period))
			}
			sent += int64(p.Bytes)
		}
		now += pick.gap(rate, p)
	}
	return fates
}

// sameLink compares a Link with its model and checks properties that every Link
// has.
func sameLink(t testing.TB, pick choices, packets int) (fates [AdmitCE + 1]int) {
	rate := pick.oneRate()
	shares := make([]LinkQueue, 1+pick.n(5))
	for i := range shares {
		shares[i] = LinkQueue{
			Config: pick.config(rate), Priority: int(pick.oneOf(0, 0, 1, 1, MaxPriority)),
			Weight: int(pick.oneOf(1, 1, 2, 3, MaxWeight)), Fair: Fair(pick.oneOf(0, 0, 1, 2)),
		}
		if _, err := shares[i].Resolve(rate); err != nil {
			t.Fatalf("%+v on a link of %v: got %v, want nil", shares[i], rate, err)
		}
	}
	l, err := NewLink[int](rate, shares)
	if err != nil {
		t.Fatal(err)
	}
	m := newModelLink(rate, shares)
	now := int64(pick.n(65536))<<40 - 1<<55
	dropped, collected := 0, 0
	arrived := map[int]outcome{}
	var order []outcome
	changes := []rateChange{{rate: rate}}
	collect := func(now int64, all bool) {
		m.advanceTo(now, all)
		for {
			if at, ok := l.Due(); ok != (len(m.decided) > 0 || m.backlog() > 0) || ok && at != m.due() {
				t.Fatalf("got due time %d (%v), want that of %+v", at, ok, m.decided)
			}
			if all {
				now = 1<<63 - 1
			}
			d, ok := l.Decide(now)
			if ok != (len(m.decided) > 0) || ok && d != m.decided[0] {
				t.Fatalf("%v %+v\nby %d: got %+v (%v), want the first of %+v", rate, shares, now, d, ok,
					m.decided)
			}
			if !ok {
				return
			}
			m.decided = m.decided[1:]
			collected++
			fates[d.Fate]++
			s := arrived[d.Value]
			s.depart, s.fate = d.Depart, d.Fate
			order = append(order, s)
		}
	}
	for i := range packets {
		if next := pick.oneRate(); pick.n(16) == 0 && resolves(shares, next) {
			rate = next
			for i := range shares {
				shares[i].CoDel = pick.codel(rate)
			}
			if err := l.SetRate(now, rate, shares); err != nil {
				t.Fatal(err)
			}
			m.setRate(now, rate, shares)
			changes = append(changes, rateChange{now, i, rate})
		}
		p, queue := pick.packet(), pick.n(len(shares))
		got, want := l.Admit(now, queue, p, i), m.admit(now, queue, p, i)
		if got != want {
			t.Fatalf("%v %+v\npacket %d, %+v into %d at %d: %v, model %v", rate, shares, i, p, queue, now,
				got, want)
		}
		if got.Dropped() {
			dropped++
			fates[got]++
		}
		host, flow := m.queues[queue].numbersOf(p)
		arrived[i] = outcome{
			number: i, queue: queue, host: host, flow: flow, shed: shares[queue].Fair != FairNone,
			priority: shares[queue].Priority, arrived: now, bytes: p.Bytes,
		}
		if pick.n(4) > 0 {
			collect(now, false)
		}
		q := m.queues[queue]
		if packets, bytes := l.Backlog(queue); packets != q.packets() || bytes != q.bytes() {
			t.Fatalf("got a backlog of %d packets, %d B, want %d, %d B", packets, bytes, q.packets(),
				q.bytes())
		}
		if l.queued()+l.decided.len+dropped+collected != i+1 {
			t.Fatalf("%d packets: %d dropped, %d queued, %d decided, %d of them collected", i+1, dropped,
				l.queued(), collected+l.decided.len, collected)
		}
		now += pick.gap(rate, p)
	}
	collect(0, true)
	if dropped+collected != packets {
		t.Fatalf("%d packets: %d dropped, %d decided", packets, dropped, collected)
	}
	checkOrder(t, changes, order)
	return fates
}

// queued returns the number of queued packets.
func (l *Link[T]) queued() (n int) {
	for i := range l.queues {
		f := &l.queues[i].flows
		n += int(f.store.nodes.at(f.root).queued)
	}
	return n
}

// rateChange is a change of rate before a packet arrives. Packets that are selected up to its
// time are sent at the previous rate, if they arrived before it.
type rateChange struct {
	at    int64 // ns
	first int   // number of the packet
	rate  meter.Rate
}

// precedes reports whether the outcome is one at the new rate.
func (c rateChange) precedes(s outcome) bool {
	return c.at < s.depart || c.at == s.depart && c.first <= s.number
}

// resolves reports whether all limits are valid at a rate.
func resolves(shares []LinkQueue, rate meter.Rate) bool {
	return !slices.ContainsFunc(shares, func(s LinkQueue) bool {
		_, err := s.Resolve(rate)
		return err != nil
	})
}

// outcome is the outcome for a packet that was queued.
type outcome struct {
	number, queue, priority, bytes int
	host, flow                     uint16
	arrived, depart                int64
	fate                           Fate
	shed                           bool // of a fair queue, which may drop it when full
}

// checkOrder checks properties that the decisions of every link have, in their
// order.
func checkOrder(t testing.TB, changes []rateChange, order []outcome) {
	t.Helper()
	earliest := int64(1<<63 - 1) // arrival of the packets that are decided later
	rest := make([]int64, len(order))
	for i, s := range slices.Backward(order) {
		earliest = min(earliest, s.arrived)
		rest[i] = earliest
	}
	free := ratOf(-1 << 62)
	type place struct {
		queue      int
		host, flow uint16
	}
	last := map[place]int{}
	var before []outcome // packets of higher priority numbers, by departure
	for i, s := range order {
		if s.fate == Full && s.shed { // dropped to make room, at any time
			continue
		}
		for len(changes) > 1 && changes[1].precedes(s) {
			if sendTime(changes[0].rate, 1).Cmp(sendTime(changes[1].rate, 1)) != 0 {
				free = ratOf(ceilOf(free))
			}
			changes = changes[1:]
		}
		// The link sends as soon as it is free and a packet is queued, never
		// before.
		if free.Cmp(ratOf(rest[i])) < 0 {
			free = ratOf(rest[i])
		}
		if s.depart != ceilOf(free) || s.depart < s.arrived {
			t.Fatalf("packet %+v: the link becomes free at %v", s, free)
		}
		flow := place{s.queue, s.host, s.flow}
		if n, ok := last[flow]; ok && n > s.number {
			t.Fatalf("packet %+v is overtaken by %d", s, n)
		}
		last[flow] = s.number
		// While a packet is queued, no packet of a higher priority number is
		// selected.
		for _, b := range slices.Backward(before) {
			if b.depart <= s.arrived {
				break
			}
			if b.priority > s.priority {
				t.Fatalf("%+v is queued while %+v is sent", s, b)
			}
		}
		before = append(before, s)
		if !s.fate.Dropped() {
			free = new(big.Rat).Add(free, sendTime(changes[0].rate, int64(s.bytes)))
		}
	}
}

// seeded returns a random source and logs its seed.
func seeded(t testing.TB) *rand.Rand {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

func TestLeakyAgainstModel(t *testing.T) { againstModel(t, sameLeaky) }
func TestLinkAgainstModel(t *testing.T)  { againstModel(t, sameLink) }

func againstModel(t *testing.T, same func(testing.TB, choices, int) [AdmitCE + 1]int) {
	t.Parallel()
	r := seeded(t)
	var seen [AdmitCE + 1]int
	end := time.Now().Add(*campaign)
	for round := 0; time.Now().Before(end) || slices.Contains(seen[:], 0); round++ {
		for f, n := range same(t, fromRandom(r, r.IntN(2) == 0), 200) {
			seen[f] += n
		}
		if round == 10_000 && slices.Contains(seen[:], 0) {
			t.Fatalf("full, thin, stale, admitted, with CE: %d: a fate did not occur", seen)
		}
	}
	t.Logf("full, thin, stale, admitted, with CE: %d", seen)
}

func FuzzLeaky(f *testing.F) { fuzzQueue(f, sameLeaky) }
func FuzzLink(f *testing.F)  { fuzzQueue(f, sameLink) }

func fuzzQueue(f *testing.F, same func(testing.TB, choices, int) [AdmitCE + 1]int) {
	r := rand.New(rand.NewPCG(1, 1))
	for n := range 8 {
		b := make([]byte, n*100)
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) { same(t, fromBytes(b), min(len(b)/4, 500)) })
}
