package tap

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// In a testing/synctest bubble a plane is exact. Its output is compared with
// that of dataplane.Pipeline alone, to the nanosecond.

// ms is in ns. At mega, a byte takes 1 µs.
const ms = int64(time.Millisecond)

var mega = meter.BitRate(8e6)

// ip returns a buffer with an IPv4 packet of n bytes, 32 or more, that contains
// a number.
func ip(number, n int, tos byte) []byte {
	payload := make([]byte, n-28)
	binary.BigEndian.PutUint32(payload, uint32(number))
	return udpPacket{tos: tos, ttl: 64, host: 2, port: 1000, payload: payload}.buffer(0)
}

// Offsets in the result of ip.
const (
	ipAt     = HeaderLen + 14
	numberAt = ipAt + 28
)

func numberOf(b []byte) int { return int(binary.BigEndian.Uint32(b[numberAt:])) }

// expedited is the TOS byte of DSCP EF with an ECN codepoint.
func expedited(ecn byte) byte { return 46<<2 | ecn }

// matchEF matches packets of DSCP EF.
var matchEF = dataplane.Match{DSCP: []dataplane.Range{{First: 46, Last: 46}}}

// only is a policy with one class and one action for all colors.
func only(a *dataplane.Action) *dataplane.Policy {
	return &dataplane.Policy{Classes: []dataplane.Class{{Name: "all", Green: a, Yellow: a, Red: a}}}
}

// paced is a policy with one queue.
func paced(c queue.Config) *dataplane.Policy {
	return only(&dataplane.Action{Queue: &dataplane.Queue{Name: "q", Config: c}})
}

func newShaper(t testing.TB, policy *dataplane.Policy, memory int64) *Shaper {
	t.Helper()
	return NewShaper(compiled(t, policy), memory)
}

func compiled(t testing.TB, policy *dataplane.Policy) *dataplane.Plan {
	t.Helper()
	plan, err := dataplane.Compile(policy)
	if err != nil {
		t.Fatal(err)
	}
	return plan
}

// arrival is a buffer received from a plane or a pipeline.
type arrival struct {
	at    int64
	queue int
	b     []byte
}

// bench is a plane between two Fakes.
type bench struct {
	t               *testing.T
	plane           Plane
	inside, outside *Fake
	cancel          func()
	ended           chan error
	all             sync.WaitGroup

	lock      sync.Mutex
	out, back []arrival // received outside, received inside
}

func newBench(t *testing.T, egress, ingress *Shaper, queues int) *bench {
	b := &bench{t: t, inside: NewFake("inside", queues), outside: NewFake("outside", queues)}
	b.plane = Plane{Inside: b.inside, Outside: b.outside, Egress: egress, Ingress: ingress}
	return b
}

// start runs the plane and collects its output.
func (b *bench) start(drain time.Duration) {
	b.plane.Inside, b.plane.Outside, b.plane.Drain = b.inside, b.outside, drain
	ctx, cancel := context.WithCancel(b.t.Context())
	b.cancel, b.ended = cancel, make(chan error, 1)
	go func() { b.ended <- b.plane.Run(ctx) }()
	for q := range b.inside.ports {
		b.all.Go(func() { b.collect(b.outside, q, &b.out) })
		b.all.Go(func() { b.collect(b.inside, q, &b.back) })
	}
	synctest.Wait()
}

func (b *bench) collect(f *Fake, queue int, to *[]arrival) {
	for {
		got, ok := f.Receive(queue)
		if !ok {
			return
		}
		b.lock.Lock()
		*to = append(*to, arrival{Now(), queue, got})
		b.lock.Unlock()
	}
}

// end ends the plane and returns the error of Run.
func (b *bench) end() error {
	b.cancel()
	err := <-b.ended
	synctest.Wait()
	b.inside.Close()
	b.outside.Close()
	b.all.Wait()
	return err
}

// done ends the plane, which must not fail.
func (b *bench) done() {
	b.t.Helper()
	if err := b.end(); err != nil {
		b.t.Errorf("the plane ended: %v", err)
	}
}

// play sends packets to the inside at their times, and returns when the plane
// has read them all.
func (b *bench) play(list []arrival) {
	b.t.Helper()
	for _, a := range list {
		time.Sleep(time.Duration(a.at - Now()))
		if !b.inside.Send(a.queue, a.b) {
			b.t.Fatal("the inside is gone")
		}
	}
	synctest.Wait()
}

// alone runs a pipeline without a plane.
type alone struct {
	t   *testing.T
	l   *dataplane.Pipeline
	in  [][]byte
	out []arrival
}

func newAlone(t *testing.T, policy *dataplane.Policy) *alone {
	t.Helper()
	l, err := dataplane.New(policy)
	if err != nil {
		t.Fatal(err)
	}
	return &alone{t: t, l: l}
}

func (m *alone) packet(b []byte) dataplane.Packet {
	return dataplane.Packet{Data: b[HeaderLen:], WireLen: len(b) - HeaderLen, Link: dataplane.LinkEthernet}
}

func (m *alone) play(list []arrival) {
	for _, a := range list {
		b := slices.Clone(a.b)
		p := m.packet(b)
		p.Time, p.ID = a.at, int64(len(m.in))
		m.in = append(m.in, b)
		var v dataplane.Verdict
		m.l.Process(&p, &v)
		if !v.Done.Dropped() && v.Done&dataplane.Waiting == 0 {
			m.out = append(m.out, arrival{at: v.Departure, b: b})
		}
	}
}

// settle releases the packets that links have settled.
func (m *alone) settle() {
	var v dataplane.Verdict
	for m.l.Settle(math.MaxInt64, &v) {
		if v.Done.Dropped() {
			continue
		}
		b := m.in[v.ID]
		if v.Done&dataplane.ECNSet != 0 {
			p := m.packet(b)
			dataplane.Parse(&p)
			p.SetCE()
		}
		m.out = append(m.out, arrival{at: v.Departure, b: b})
	}
}

func (m *alone) reload(policy *dataplane.Policy) {
	m.t.Helper()
	m.settle()
	next, err := dataplane.New(policy)
	if err != nil {
		m.t.Fatal(err)
	}
	next.Inherit(m.l)
	m.l = next
}

// agree compares the output of a plane with that of a pipeline: packets, bytes
// and times. Packets of the same time may be in any order.
func agree(t *testing.T, got, want []arrival) {
	t.Helper()
	if !slices.IsSortedFunc(got, func(a, b arrival) int { return int(a.at - b.at) }) {
		t.Error("packets out of order")
	}
	byNumber := func(list []arrival) []arrival {
		return slices.SortedStableFunc(slices.Values(list), func(a, b arrival) int { return numberOf(a.b) - numberOf(b.b) })
	}
	got, want = byNumber(got), byNumber(want)
	if len(got) != len(want) {
		t.Errorf("%d packets arrived, want %d", len(got), len(want))
	}
	for i := range min(len(got), len(want)) {
		g, w := got[i], want[i]
		if numberOf(g.b) != numberOf(w.b) || g.at != w.at || !bytes.Equal(g.b, w.b) {
			t.Fatalf("packet %d at %d, want %d at %d (%d ns off), bytes the same: %v",
				numberOf(g.b), g.at, numberOf(w.b), w.at, g.at-w.at, bytes.Equal(g.b, w.b))
		}
	}
}

// until returns the arrivals up to a time.
func until(list []arrival, at int64) []arrival {
	return slices.DeleteFunc(slices.Clone(list), func(a arrival) bool { return a.at > at })
}

// volume counts packets and the bytes of their frames.
func volume(list []arrival) (c dataplane.Count) {
	for _, a := range list {
		c.Packets++
		c.Bytes += int64(len(a.b) - HeaderLen)
	}
	return c
}

func sameStats(t *testing.T, s *Shaper, l *dataplane.Pipeline) {
	t.Helper()
	if got, _ := s.Stats(); !slices.Equal(got, l.Stats()) {
		t.Errorf("stats %+v, want %+v", got, l.Stats())
	}
}

// conserved checks that every packet received was sent, dropped or lost.
func conserved(t *testing.T, s *Shaper, out int) {
	t.Helper()
	stats, lost := s.Stats()
	var in, dropped int64
	for i := range stats {
		in += stats[i].Total().Packets
		for c := range stats[i].Drops {
			dropped += dataplane.Sum(stats[i].Drops[c][:]).Packets
		}
	}
	gone := lost.Refused.Packets + lost.Memory.Packets + lost.Ended.Packets
	if in != int64(out)+dropped+gone {
		t.Errorf("%d packets received, %d sent, %d dropped, lost %+v", in, out, dropped, lost)
	}
	if n := s.QueuedMemory(); n != 0 {
		t.Errorf("%d bytes are still queued", n)
	}
}

// traffic returns random packets with a mean interval of gap ns.
func traffic(r *rand.Rand, n int, from, gap int64, queues int) []arrival {
	var list []arrival
	for i := range n {
		b := ip(i, 32+r.IntN(1469), []byte{0, 1, expedited(0), expedited(2), 10 << 2}[r.IntN(5)])
		list = append(list, arrival{from, r.IntN(queues), b})
		if r.IntN(4) > 0 {
			from += r.Int64N(8 * gap / 3)
		}
	}
	return list
}

func random(t testing.TB) *rand.Rand {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

// TestPlanePasses checks that frames of any kind cross in both directions,
// unchanged and in order, through their own queue.
func TestPlanePasses(t *testing.T) {
	for name, shaper := range map[string]func() *Shaper{
		"no shaper": func() *Shaper { return nil },
		"shaper":    func() *Shaper { return newShaper(t, only(nil), 0) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const queues = 3
				b := newBench(t, shaper(), shaper(), queues)
				b.start(0)
				header := []byte{1, gsoTCP4 | gsoECN, 66, 0, 0xa8, 5, 34, 0, 16, 0}
				var sent [queues][][]byte
				for i := range 3 * 300 {
					f := plain(frame(60+i, i))
					switch i / queues % 4 {
					case 1:
						f = ip(i, 100+i, expedited(1))
					case 2:
						f = append(slices.Clone(header), frame(1514+i, i)...)
					case 3:
						f = plain(frame(18, i))[:HeaderLen+1+i%18] // truncated
					}
					sent[i%queues] = append(sent[i%queues], f)
					if !b.inside.Send(i%queues, f) || !b.outside.Send(i%queues, f) {
						t.Fatal("Send failed")
					}
				}
				synctest.Wait()
				b.done()
				for _, got := range [][]arrival{b.out, b.back} {
					for q := range queues {
						var frames [][]byte
						for _, a := range got {
							if a.queue == q {
								frames = append(frames, a.b)
							}
						}
						if !slices.EqualFunc(frames, sent[q], bytes.Equal) {
							t.Errorf("queue %d: %d frames, want %d unchanged", q, len(frames), len(sent[q]))
						}
					}
				}
			})
		})
	}
}

// TestPlaneActs checks the actions of a policy: drop, mark, CE.
func TestPlaneActs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		policy := &dataplane.Policy{Classes: []dataplane.Class{
			{Name: "ef", Match: matchEF, Green: &dataplane.Action{Drop: true}},
			{
				Name:  "all",
				Meter: &dataplane.Meter{Params: meter.SRTCM{CIR: meter.Rate{Bytes: 1, Period: 1000 * time.Second}, CBS: 2, EBS: 2}, Packets: true},
				Green: &dataplane.Action{Marks: []dataplane.Mark{{Field: dataplane.DSCP, Value: 12}}},
				// A packet that cannot be marked passes unchanged.
				Yellow: &dataplane.Action{ECN: dataplane.CE},
			},
		}}
		s := newShaper(t, policy, 0)
		b := newBench(t, s, nil, 1)
		b.start(0)
		for i := range 7 {
			b.inside.Send(0, ip(i, 100+i, []byte{2, expedited(2), 2, 2, 0, 2, 2}[i]))
		}
		synctest.Wait()
		b.done()
		want := map[int]byte{0: 12<<2 | 2, 2: 12<<2 | 2, 3: 3, 4: 0}
		for _, a := range b.out {
			n := numberOf(a.b)
			tos, ok := want[n]
			if !ok || a.b[ipAt+1] != tos || slowChecksum(a.b[ipAt:ipAt+20]) != 0 || len(a.b) != ipAt+100+n {
				t.Errorf("packet %d has TOS %#x, checksum %#x: want %v %#x", n, a.b[ipAt+1], slowChecksum(a.b[ipAt:ipAt+20]), ok, tos)
			}
			delete(want, n)
		}
		if len(want) > 0 {
			t.Errorf("packets missing: %v", want)
		}
		stats, _ := s.Stats()
		ef, all := &stats[0], &stats[1]
		if ef.Drops[meter.Green][dataplane.CauseColor] != (dataplane.Count{Packets: 1, Bytes: 101}) ||
			all.Drops[meter.Red][dataplane.CauseColor] != (dataplane.Count{Packets: 2, Bytes: 105 + 106}) ||
			all.Marked[meter.Green] != (dataplane.Count{Packets: 2, Bytes: 202}) {
			t.Errorf("stats %+v", stats)
		}
		conserved(t, s, 4)
	})
}

// TestPlanePaced compares departures with those of a pipeline alone, to the
// nanosecond. At the end, packets that can depart within the drain time do; the
// rest are counted.
func TestPlanePaced(t *testing.T) {
	r := random(t)
	for _, drain := range []int64{0, 20 * ms, 1000 * ms} {
		synctest.Test(t, func(t *testing.T) {
			policy := paced(queue.Config{Rate: meter.BitRate(7_999_999), Time: 50 * time.Millisecond})
			s, m := newShaper(t, policy, 0), newAlone(t, policy)
			b := newBench(t, s, nil, 1)
			b.start(time.Duration(drain))
			list := traffic(r, 400, Now()+ms, 600_000, 1)
			b.play(list)
			m.play(list)
			synctest.Wait()
			last := Now()
			b.done()
			// The plane ends when no packet is queued, or after the drain time.
			want := last
			for _, a := range m.out {
				want = min(max(want, a.at), last+drain)
			}
			if now := Now(); now != want {
				t.Errorf("the plane ended %d ns after the last arrival, want %d", now-last, want-last)
			}
			leave := until(m.out, last+drain)
			agree(t, b.out, leave)
			if !slices.IsSortedFunc(b.out, func(a, b arrival) int { return numberOf(a.b) - numberOf(b.b) }) {
				t.Error("packets overtook others")
			}
			sameStats(t, s, m.l)
			late := volume(m.out)
			late.Packets -= volume(leave).Packets
			late.Bytes -= volume(leave).Bytes
			if _, lost := s.Stats(); lost != (Lost{Ended: late}) {
				t.Errorf("lost %+v, want %+v at the end", lost, late)
			}
			if (drain < 1000*ms) != (late.Packets > 0) {
				t.Errorf("%d packets were late: the test lost its purpose", late.Packets)
			}
			conserved(t, s, len(b.out))
		})
	}
}

// TestPlaneOverflow loads a queue at twice its rate for two minutes.
func TestPlaneOverflow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit = 32 << 10
		q := &dataplane.Queue{Name: "q", Config: queue.Config{
			Rate: meter.BitRate(800e3), Bytes: limit,
			WRED: [3]queue.Early{meter.Yellow: {Min: 0, Max: limit / 2, Probability: queue.Certain / 2}},
		}}
		to := &dataplane.Action{Queue: q}
		policy := &dataplane.Policy{Classes: []dataplane.Class{{
			Name:  "all",
			Meter: &dataplane.Meter{Params: meter.SRTCM{CIR: meter.BitRate(900e3), CBS: 3000, EBS: 30000}},
			Green: to, Yellow: to,
		}}}
		s, m := newShaper(t, policy, 0), newAlone(t, policy)
		b := newBench(t, s, nil, 1)
		b.start(time.Minute)
		var list []arrival
		for i, at := 0, Now(); i < 24_000; i++ {
			list = append(list, arrival{at: at, b: ip(i, 1000, 0)})
			at += 5 * ms
		}
		var most int64
		for some := range slices.Chunk(list, 100) {
			b.play(some)
			synctest.Wait()
			most = max(most, s.QueuedMemory())
		}
		m.play(list)
		b.done()
		agree(t, b.out, m.out)
		sameStats(t, s, m.l)
		conserved(t, s, len(b.out))
		if most == 0 || most > limit/1000*2048 {
			t.Errorf("%d bytes queued, want at most %d", most, limit/1000*2048)
		}
		stats, _ := s.Stats()
		d := &stats[0].Drops
		if d[meter.Green][dataplane.CauseQueue].Packets == 0 || d[meter.Yellow][dataplane.CauseWRED].Packets == 0 || d[meter.Red][dataplane.CauseColor].Packets == 0 ||
			d[meter.Red][dataplane.CauseQueue].Packets != 0 {
			t.Errorf("dropped %+v, want green by the queue limit, yellow by WRED, red by color", d)
		}
	})
}

// shares is a policy with a link, priorities and weights.
func shares(rate meter.Rate, edit func(*queue.Config)) *dataplane.Policy {
	link := &dataplane.Link{Name: "wan", Rate: rate}
	config := queue.Config{Bytes: 40_000}
	if edit != nil {
		edit(&config)
	}
	to := func(name string, priority, weight int) *dataplane.Action {
		return &dataplane.Action{Queue: &dataplane.Queue{Name: name, Config: config, Link: link, Priority: priority, Weight: weight}}
	}
	return &dataplane.Policy{Classes: []dataplane.Class{
		{Name: "ef", Match: matchEF, Green: to("voice", 0, 1)},
		{Name: "af", Match: dataplane.Match{DSCP: []dataplane.Range{{First: 10, Last: 10}}}, Green: to("web", 1, 3)},
		{Name: "all", Green: to("rest", 1, 1)},
	}}
}

// TestPlaneLink compares the departures of a link with those of a pipeline
// alone.
func TestPlaneLink(t *testing.T) {
	r := random(t)
	for name, edit := range map[string]func(*queue.Config){
		"tail drop": nil,
		"codel": func(c *queue.Config) {
			c.CoDel, c.ECN = queue.CoDel{Target: 5 * time.Millisecond, Interval: 20 * time.Millisecond}, true
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				policy := shares(mega, edit)
				s, m := newShaper(t, policy, 0), newAlone(t, policy)
				b := newBench(t, s, nil, 1)
				b.start(time.Minute)
				list := traffic(r, 2000, Now()+ms, 500_000, 1)
				b.play(list)
				m.play(list)
				m.settle()
				b.done()
				agree(t, b.out, m.out)
				sameStats(t, s, m.l)
				conserved(t, s, len(b.out))
				if stats, _ := s.Stats(); stats[2].Dropped(meter.Green).Packets == 0 {
					t.Error("nothing was dropped: the test lost its purpose")
				}
			})
		})
	}
}

// TestPlaneLinkQueues checks that packets of a link depart through the queue by
// which they arrived. Otherwise a flow would be spread over several queues.
func TestPlaneLinkQueues(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShaper(t, shares(mega, nil), 0)
		b := newBench(t, s, nil, 4)
		b.start(time.Minute)
		for i := range 30 {
			b.inside.Send(i%2, ip(i, 1000, 0))
		}
		synctest.Wait()
		if _, err := s.Reload(compiled(t, shares(mega, nil))); err != nil {
			t.Error(err)
		}
		for i := range 30 {
			b.inside.Send(i%2, ip(30+i, 1000, 0))
		}
		synctest.Wait()
		b.done()
		for _, a := range b.out {
			if n := numberOf(a.b); a.queue != n%2 {
				t.Fatalf("packet %d arrived at queue %d and departed from queue %d", n, n%2, a.queue)
			}
		}
		conserved(t, s, len(b.out))
	})
}

// TestPlaneReload checks that packets queued during a reload keep their
// departures, and that state is carried over as described at
// dataplane.Pipeline.Inherit.
func TestPlaneReload(t *testing.T) {
	slow := queue.Config{Rate: mega, Time: 200 * time.Millisecond}
	fast := queue.Config{Rate: meter.BitRate(24e6), Time: 100 * time.Millisecond}
	for name, row := range map[string][2]*dataplane.Policy{
		"the same queue": {paced(slow), paced(slow)},
		"another rate":   {paced(slow), paced(fast)},
		"no queue":       {paced(slow), only(nil)},
		"the same link":  {shares(mega, nil), shares(mega, nil)},
		"another link":   {shares(mega, nil), shares(meter.BitRate(80e6), nil)},
		"link to queue":  {shares(mega, nil), paced(fast)},
		"queue to link":  {paced(slow), shares(mega, nil)},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, m := newShaper(t, row[0], 0), newAlone(t, row[0])
				b := newBench(t, s, nil, 2)
				b.start(time.Minute)
				sent := 0
				burst := func() {
					var list []arrival
					for range 30 {
						list = append(list, arrival{at: Now(), b: ip(sent, 1000, []byte{0, expedited(0), 10 << 2}[sent%3])})
						sent++
					}
					b.play(list)
					m.play(list)
					synctest.Wait()
				}
				for range 3 { // the last two load the same policy
					burst()
					time.Sleep(10*time.Millisecond + 1)
					before := len(m.out)
					waiting := s.QueuedMemory()
					changes, err := s.Reload(compiled(t, row[1]))
					if err != nil {
						t.Fatal(err)
					}
					m.reload(row[1])
					if all := len(changes); all < len(row[1].Classes) {
						t.Errorf("unexpected changes %v", changes)
					}
					if now := s.QueuedMemory(); now != waiting || now == 0 && before == 0 {
						t.Errorf("%d bytes queued, %d before the reload", now, waiting)
					}
					synctest.Wait()
					burst()
				}
				m.settle()
				b.done()
				agree(t, b.out, m.out)
				sameStats(t, s, m.l)
				if n := len(b.out); n != sent {
					t.Errorf("%d of %d packets arrived", n, sent)
				}
			})
		})
	}
}

// refusing has budgets that are in use with other parameters, from the second
// plan on.
type refusing struct{ plans int }

func (r *refusing) Join(*dataplane.Plan) (map[int]dataplane.Shared, func() error, error) {
	if r.plans++; r.plans > 1 {
		return nil, nil, errors.New("in use")
	}
	return nil, func() error { return nil }, nil
}

// TestPlaneReloadRefused checks that a plan whose budgets are refused changes
// nothing.
func TestPlaneReloadRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		policy := paced(queue.Config{Rate: mega, Time: time.Second})
		s, m := newShaper(t, policy, 0), newAlone(t, policy)
		if err := s.Join(&refusing{}); err != nil {
			t.Fatal(err)
		}
		b := newBench(t, s, nil, 1)
		b.start(time.Minute)
		list := traffic(rand.New(rand.NewPCG(1, 1)), 100, Now(), 1, 1)
		b.play(list)
		m.play(list)
		if _, err := s.Reload(compiled(t, only(nil))); err == nil {
			t.Error("the plan was accepted")
		}
		b.done()
		agree(t, b.out, m.out)
		sameStats(t, s, m.l)
	})
}

// TestPlaneReloadIdle checks that no packet stays queued between two runs, even
// after a reload just before the end.
func TestPlaneReloadIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShaper(t, shares(mega, nil), 0)
		for range 2 {
			b := newBench(t, s, nil, 2)
			b.start(0)
			for i := range 20 {
				b.inside.Send(i%2, ip(i, 1000, 0))
			}
			synctest.Wait()
			if _, err := s.Reload(compiled(t, shares(mega, nil))); err != nil { // no lane runs after it
				t.Error(err)
			}
			b.done()
			if n := s.QueuedMemory(); n != 0 {
				t.Errorf("%d bytes queued", n)
			}
			if _, err := s.Reload(compiled(t, shares(mega, nil))); err != nil {
				t.Error(err)
			}
		}
		if stats, lost := s.Stats(); stats[2].Total().Packets != 40 || lost.Ended.Packets == 0 {
			t.Errorf("stats %+v, lost %+v", stats, lost)
		}
	})
}

// TestPlaneQueues compares the reported queue lengths with the model over time.
func TestPlaneQueues(t *testing.T) {
	for name, policy := range map[string]*dataplane.Policy{
		"queue": paced(queue.Config{Rate: mega, Time: time.Second}),
		"link":  shares(mega, nil),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newShaper(t, policy, 0)
				b := newBench(t, s, nil, 1)
				b.start(time.Second)
				for i := range 10 {
					b.inside.Send(0, ip(i, 1000, 0))
				}
				synctest.Wait()
				for _, want := range []dataplane.QueueState{
					{Bytes: 10_000, Delay: 10 * time.Millisecond},
					{Bytes: 6000, Delay: 6 * time.Millisecond},
					{},
				} {
					if want.Name = "q"; name == "link" { // a link reports no delay, and does not count the packet being sent
						want = dataplane.QueueState{Name: "rest", Bytes: max(want.Bytes-1000, 0)}
					}
					if got := s.Snapshot().Queues; got[len(got)-1] != want {
						t.Errorf("%+v, want %+v", got, want)
					}
					time.Sleep(4 * time.Millisecond)
					synctest.Wait()
					if want.Bytes < 8000 {
						time.Sleep(time.Second)
					}
				}
				b.done()
			})
		})
	}
}

// bucket is a policy that passes green only.
func bucket(rate meter.Rate, burst int64) *dataplane.Policy {
	return &dataplane.Policy{Classes: []dataplane.Class{{
		Name: "all", Meter: &dataplane.Meter{Name: "m", Params: meter.TokenBucket{Rate: rate, Burst: burst}},
	}}}
}

// TestPlaneShares checks that all queues of a device share a meter: together
// they get exactly its tokens.
func TestPlaneShares(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const queues, burst = 4, 10_000
		s := newShaper(t, bucket(mega, burst), 0)
		b := newBench(t, s, nil, queues)
		b.start(0)
		began := Now()
		for i := range 4000 {
			b.inside.Send(i%queues, ip(i, 400, 0))
			if i%queues == queues-1 {
				time.Sleep(700 * time.Microsecond)
			}
		}
		synctest.Wait()
		b.done()
		got := map[int64]int64{}
		for _, a := range b.out {
			got[a.at] += 400
		}
		var sum int64
		for at := began; at < Now(); at += 700_000 {
			if sum += got[at]; sum > burst+(at-began)/1000 {
				t.Fatalf("%d bytes passed within %d ns", sum, at-began)
			}
		}
		last := (Now() - began - 700_000) / 1000
		if want := (burst + last) / 400; int64(len(b.out)) != want {
			t.Errorf("%d packets passed, want %d", len(b.out), want)
		}
		conserved(t, s, len(b.out))
	})
}

// TestPlaneGone checks that Run reports which device is gone and counts the
// frames that cannot be sent, and that the shapers continue with another
// device.
func TestPlaneGone(t *testing.T) {
	for _, which := range []string{"outside", "inside"} {
		for name, policy := range map[string]*dataplane.Policy{
			"queue": paced(queue.Config{Rate: mega, Time: time.Second}),
			"link":  shares(mega, nil),
		} {
			t.Run(which+" "+name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					policy := *policy
					policy.Classes = slices.Clone(policy.Classes)
					m := &dataplane.Meter{Name: "m", Params: meter.TokenBucket{Rate: meter.BitRate(80e3), Burst: 100_000}}
					policy.Classes[len(policy.Classes)-1].Meter = m
					s := newShaper(t, &policy, 0)
					b := newBench(t, s, nil, 2)
					b.start(15 * time.Millisecond)
					for i := range 40 {
						b.inside.Send(i%2, ip(i, 1000, 0))
					}
					time.Sleep(10*time.Millisecond + 1)
					synctest.Wait()
					if n := len(b.out); n != 11 {
						t.Errorf("%d packets sent, want 11", n)
					}
					device := map[string]*Fake{"outside": b.outside, "inside": b.inside}[which]
					device.Close()
					err := <-b.ended
					var gone *GoneError
					if !errors.As(err, &gone) || gone.Device != which || !errors.Is(err, ErrGone) || err.Error() != which+": the device is gone" {
						t.Errorf("%v, want that %s is gone", err, which)
					}
					const out = 11
					b.ended <- nil
					b.done()
					if len(b.out) != out {
						t.Errorf("%d packets sent, want %d", len(b.out), out)
					}
					n := int64(40 - out)
					if _, lost := s.Stats(); lost != (Lost{Ended: dataplane.Count{Packets: n, Bytes: n * 1014}}) {
						t.Errorf("lost %+v, want %d", lost, n)
					}
					conserved(t, s, out)

					time.Sleep(time.Second)
					again := newBench(t, s, nil, 1) // with fewer queues
					again.start(time.Second)
					again.inside.Send(0, ip(40, 1000, 0))
					synctest.Wait()
					again.done()
					if len(again.out) != 1 {
						t.Error("the shaper does not continue")
					}
					// 10 bytes per ms: for a second, 10 ms, and at most 15 ms
					// of drain.
					if tc := s.Snapshot().Tokens[0][0]; tc < 100_000-41*1000+10_100 || tc > 100_000-41*1000+10_251 {
						t.Errorf("%d tokens", tc)
					}
					stats, _ := s.Stats()
					if all := stats[len(stats)-2].Total(); all.Packets != 41 {
						t.Errorf("stats %+v", all)
					}
				})
			})
		}
	}
}

// TestPlaneFull checks that refused frames are counted, GSO frames as their
// segments.
func TestPlaneFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShaper(t, paced(queue.Config{Rate: mega, Time: time.Second}), 0)
		b := newBench(t, s, nil, 1)
		b.start(time.Second)
		b.outside.SetFull(true)
		b.inside.Send(0, ip(0, 1000, 0))
		b.inside.Send(0, ip(1, 1000, 0))
		super := segmented(udpPacket{payload: make([]byte, 3*400)}, gsoUDP, 0, 400)
		b.inside.Send(0, super)
		time.Sleep(100 * time.Millisecond)
		synctest.Wait()
		b.outside.SetFull(false)
		b.inside.Send(0, ip(2, 1000, 0))
		synctest.Wait()
		b.done()
		want := dataplane.Count{Packets: 2 + 3, Bytes: 2*1014 + 3*(400+42)}
		if _, lost := s.Stats(); lost != (Lost{Refused: want}) {
			t.Errorf("lost %+v, want %+v refused", lost, want)
		}
		if len(b.out) != 1 || numberOf(b.out[0].b) != 2 {
			t.Errorf("%d packets arrived", len(b.out))
		}
		conserved(t, s, 1)
	})
}

// TestPlaneMemory checks that queued packets stay within the memory limit, in
// queues and in links, and that packets beyond it are counted.
func TestPlaneMemory(t *testing.T) {
	for name, policy := range map[string]*dataplane.Policy{
		"queue": paced(queue.Config{Rate: mega, Time: 10 * time.Second}),
		"link":  shares(mega, func(c *queue.Config) { c.Bytes, c.Packets = 0, 60_000 }),
		"codel": shares(mega, func(c *queue.Config) {
			c.Bytes, c.Packets, c.CoDel = 0, 60_000, queue.CoDel{Target: time.Millisecond, Interval: 5 * time.Millisecond}
		}),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const memory = 64 << 10
				s := newShaper(t, policy, memory)
				b := newBench(t, s, nil, 1)
				b.start(time.Minute)
				for i := range 1000 {
					b.inside.Send(0, ip(i, 60+i%1400, 0))
					if n := s.QueuedMemory(); n > memory {
						t.Fatalf("%d bytes queued", n)
					}
				}
				synctest.Wait()
				if n := s.QueuedMemory(); n > memory || n < memory*9/10 {
					t.Errorf("%d bytes queued", n)
				}
				b.done()
				if _, lost := s.Stats(); lost.Memory.Packets == 0 || lost.Ended.Packets > 0 {
					t.Errorf("lost %+v, want some for lack of memory", lost)
				}
				conserved(t, s, len(b.out))
			})
		})
	}
}

// TestPlaneTooLarge checks that a packet larger than its queue is dropped.
func TestPlaneTooLarge(t *testing.T) {
	for name, policy := range map[string]*dataplane.Policy{
		"queue": paced(queue.Config{Rate: mega, Bytes: 999}),
		"link":  shares(mega, func(c *queue.Config) { c.Bytes = 999 }),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newShaper(t, policy, 0)
				b := newBench(t, s, nil, 1)
				b.start(time.Second)
				for i, n := range []int{1000, 999, 60_000, 500} {
					b.inside.Send(0, ip(i, n, 0))
					synctest.Wait()
					time.Sleep(50 * time.Millisecond)
				}
				b.done()
				if len(b.out) != 2 || numberOf(b.out[0].b) != 1 || numberOf(b.out[1].b) != 3 {
					t.Errorf("%d packets arrived", len(b.out))
				}
				stats, _ := s.Stats()
				if d := stats[len(stats)-2].Drops[meter.Green][dataplane.CauseQueue]; d != (dataplane.Count{Packets: 2, Bytes: 61_000}) {
					t.Errorf("dropped %+v", d)
				}
				conserved(t, s, 2)
			})
		})
	}
}

// TestPlaneErrors checks that the numbers of queues must be equal, and that an
// error of a port names its device.
func TestPlaneErrors(t *testing.T) {
	p := Plane{Inside: NewFake("a", 2), Outside: NewFake("b", 1)}
	if err := p.Run(t.Context()); err == nil || err.Error() != "a has 2 queues and b has 1: the numbers must be equal" {
		t.Error(err)
	}
	synctest.Test(t, func(t *testing.T) {
		for _, row := range []struct {
			read, write, wait error
			want              string
		}{
			{read: errors.New("no"), want: "b: no"},
			{wait: errors.New("no"), want: "b: no"},
			{write: errors.New("no"), want: "b: no"},
			{write: ErrGone, want: "b: the device is gone"},
		} {
			a := NewFake("a", 1)
			a.Send(0, ip(0, 100, 0))
			s := newShaper(t, only(nil), 0)
			p := Plane{Inside: a, Outside: odd{"b", &oddPort{Port: NewFake("b", 1).Ports()[0], read: row.read, write: row.write, wait: row.wait}}, Egress: s}
			if err := p.Run(t.Context()); err == nil || err.Error() != row.want {
				t.Errorf("%v, want %s", err, row.want)
			}
			if row.write != nil { // read by the plane
				if _, lost := s.Stats(); lost.Ended.Packets != 1 {
					t.Errorf("lost %+v", lost)
				}
			}
		}
	})
}

// odd is a device with one port.
type odd struct {
	name string
	port Port
}

func (d odd) Name() string  { return d.name }
func (d odd) Ports() []Port { return []Port{d.port} }
func (d odd) Close() error  { return nil }

// oddPort is a port that returns given errors.
type oddPort struct {
	Port
	read, write, wait error
	wake              func()
}

func (p *oddPort) Read(into [][]byte) (int, error) {
	if p.read != nil {
		return 0, p.read
	}
	return p.Port.Read(into)
}

func (p *oddPort) Write(frames [][]byte) (int, error) {
	if p.write != nil {
		return 0, p.write
	}
	return p.Port.Write(frames)
}

func (p *oddPort) Wait(deadline int64) error {
	if p.wait != nil {
		return p.wait
	}
	return p.Port.Wait(deadline)
}

func (p *oddPort) Wake() {
	p.Port.Wake()
	if p.wake != nil {
		p.wake()
	}
}

// TestPlaneWakes checks that no method of a port runs after Run has returned.
// The owner may close the port then, and its file descriptor may be reused.
func TestPlaneWakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inside := 0
		var lock sync.Mutex
		add := func(n int) {
			lock.Lock()
			defer lock.Unlock()
			inside += n
		}
		port := func() Port {
			return &oddPort{Port: NewFake("", 1).Ports()[0], wake: func() {
				add(1)
				time.Sleep(time.Second)
				add(-1)
			}}
		}
		ctx, cancel := context.WithCancel(t.Context())
		p := Plane{Inside: odd{"a", port()}, Outside: odd{"b", port()}}
		time.AfterFunc(time.Second, cancel)
		if err := p.Run(ctx); err != nil {
			t.Error(err)
		}
		lock.Lock()
		defer lock.Unlock()
		if inside != 0 {
			t.Errorf("%d goroutines are in Wake", inside)
		}
	})
}

// TestPlaneConcurrent calls all methods of a shaper while it runs, for the race
// detector.
func TestPlaneConcurrent(t *testing.T) {
	s := newShaper(t, shares(meter.BitRate(800e6), nil), 1<<20)
	in, out := NewFake("in", 2), NewFake("out", 2)
	p := Plane{Inside: in, Outside: out, Egress: s, Ingress: s, Drain: time.Second}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- p.Run(ctx) }()
	var all sync.WaitGroup
	for q := range 2 {
		all.Go(func() {
			for i := range 2000 {
				in.Send(q, ip(i, 100+i%1000, byte(i)<<2))
				out.Send(q, ip(i, 100, 0))
				in.TryReceive(q)
				out.TryReceive(q)
			}
		})
	}
	all.Go(func() {
		for i := range 50 {
			policy := bucket(mega, 3000)
			if i%2 == 0 {
				policy = shares(mega, nil)
			}
			if _, err := s.Reload(compiled(t, policy)); err != nil {
				t.Error(err)
			}
			if i%2 == 1 {
				s.Snapshot()
			}
			s.Stats()
			if n := s.QueuedMemory(); n > 1<<20 {
				t.Errorf("%d bytes queued", n)
			}
		}
	})
	all.Wait()
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if n := s.QueuedMemory(); n != 0 {
		t.Errorf("%d bytes queued", n)
	}
}

// nullPort never reads a frame and accepts all writes.
type nullPort struct{ cuts bool }

func (nullPort) Read([][]byte) (int, error)         { return 0, nil }
func (nullPort) Write(frames [][]byte) (int, error) { return len(frames), nil }
func (nullPort) Wait(int64) error                   { return nil }
func (nullPort) Wake()                              {}
func (p nullPort) CutsUDP() bool                    { return p.cuts }

// TestPlaneAllocations checks that the packet path does not allocate once the
// maximum number of packets has been queued and has departed at once. In the
// bubble, time passes only in Sleep, so the queues fill and drain alike on any
// machine.
func TestPlaneAllocations(t *testing.T) {
	rate := meter.BitRate(1e8)
	for name, policy := range map[string]*dataplane.Policy{
		"no shaper": nil,
		"pass":      only(nil),
		"drop":      only(&dataplane.Action{Drop: true}),
		"queue":     paced(queue.Config{Rate: rate, Time: 20 * time.Millisecond}),
		"bytes":     paced(queue.Config{Rate: rate, Bytes: 100_000}),
		"link":      shares(rate, nil),
	} {
		for _, cuts := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/cuts=%v", strings.ReplaceAll(name, " ", "-"), cuts), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					var s *Shaper
					if policy != nil {
						s = newShaper(t, policy, 0)
					}
					l := newLane(nullPort{}, nullPort{cuts}, s)
					l.register()
					defer l.unregister()
					var frames [][]byte
					for i := range burst {
						frames = append(frames, ip(i, 500, []byte{0, expedited(2), 10 << 2}[i%3]))
					}
					turn := func() {
						time.Sleep(time.Millisecond) // longer than 24 packets take, shorter than a burst
						for i, f := range frames {
							l.read[i] = append(l.read[i][:0], f...)
						}
						l.turn(burst)
						_ = l.write()
					}
					for range 3 {
						for range 100 {
							turn()
						}
						time.Sleep(time.Second) // all queued packets depart in the next turn
					}
					for range 100 {
						turn()
					}
					if n := testing.AllocsPerRun(200, turn); n != 0 {
						t.Errorf("%v allocations per turn, want 0", n)
					}
				})
			})
		}
	}
}
