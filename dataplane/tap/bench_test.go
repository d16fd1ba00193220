package tap

import (
	"bytes"
	"context"
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/dataplane/pipeline"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// ms is in ns. At mega, a byte takes 1 µs.
const ms = int64(time.Millisecond)

var byteRateMega = meter.BitRate(8e6)

// ipFrame returns a buffer with an IPv4 packet of n bytes, 32 or more, that contains
// a number.
func ipFrame(number, n int, tos byte) []byte {
	payload := make([]byte, n-28)
	binary.BigEndian.PutUint32(payload, uint32(number))
	return udpPacket{tos: tos, ttl: 64, host: 2, port: 1000, payload: payload}.buffer(0)
}

// Offsets in the result of ipFrame.
const (
	ipAt     = HeaderLen + 14
	numberAt = ipAt + 28
)

func numberOf(b []byte) int { return int(binary.BigEndian.Uint32(b[numberAt:])) }

// expedited is the TOS byte of DSCP EF with an ECN codepoint.
func expedited(ecn byte) byte { return 46<<2 | ecn }

// matchEF matches packets of DSCP EF.
var matchEF = dataplane.Match{DSCP: []dataplane.Range{{First: 46, Last: 46}}}

// oneAction is a policy with one class and one action for all colors.
func oneAction(a *dataplane.Action) *dataplane.Policy {
	return &dataplane.Policy{Classes: []dataplane.Class{{Name: "all", Green: a, Yellow: a, Red: a}}}
}

// oneQueue is a policy with one queue.
func oneQueue(c queue.Config) *dataplane.Policy {
	return oneAction(&dataplane.Action{Queue: &dataplane.Queue{Name: "q", Config: c}})
}

// linkPolicy is a policy with a link, priorities and weights.
func linkPolicy(rate meter.Rate, edit func(*queue.Config)) *dataplane.Policy {
	link := &dataplane.Link{Name: "wan", Rate: rate}
	config := queue.Config{Bytes: 40_000}
	if edit != nil {
		edit(&config)
	}
	to := func(name string, priority, weight int) *dataplane.Action {
		return &dataplane.Action{Queue: &dataplane.Queue{
			Name: name, Config: config, Link: link, Priority: priority, Weight: weight,
		}}
	}
	return &dataplane.Policy{Classes: []dataplane.Class{
		{Name: "ef", Match: matchEF, Green: to("voice", 0, 1)},
		{Name: "af", Match: dataplane.Match{DSCP: []dataplane.Range{{First: 10, Last: 10}}}, Green: to("web", 1, 3)},
		{Name: "all", Green: to("rest", 1, 1)},
	}}
}

// bucketPolicy is a policy that passes green only.
func bucketPolicy(rate meter.Rate, burst int64) *dataplane.Policy {
	return &dataplane.Policy{Classes: []dataplane.Class{{
		Name: "all", Meter: &dataplane.Meter{Name: "m", Params: meter.TokenBucket{Rate: rate, Burst: burst}},
	}}}
}

func newShaper(t testing.TB, policy *dataplane.Policy, memory int64) *ActivePolicy {
	t.Helper()
	return NewActivePolicy(compilePlan(t, policy), memory)
}

func compilePlan(t testing.TB, policy *dataplane.Policy) *compiled.Plan {
	t.Helper()
	plan, err := compiled.Compile(policy)
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

// start runs the plane and collects its output.
func (b *bench) start(drain time.Duration) {
	b.plane.Inside, b.plane.Outside, b.plane.Drain = b.inside, b.outside, drain
	ctx, cancel := context.WithCancel(b.t.Context())
	b.cancel, b.ended = cancel, make(chan error, 1)
	go func() { b.ended <- b.plane.Run(ctx) }()
	for q := range b.inside.ports {
		b.all.Go(func() { b.collectFrames(b.outside, q, &b.out) })
		b.all.Go(func() { b.collectFrames(b.inside, q, &b.back) })
	}
	synctest.Wait()
}

func (b *bench) collectFrames(f *Fake, queue int, to *[]arrival) {
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

// endRun ends the plane and returns the error of Run.
func (b *bench) endRun() error {
	b.cancel()
	err := <-b.ended
	synctest.Wait()
	b.inside.Close()
	b.outside.Close()
	b.all.Wait()
	return err
}

// endWithoutError ends the plane, which must not fail.
func (b *bench) endWithoutError() {
	b.t.Helper()
	if err := b.endRun(); err != nil {
		b.t.Errorf("Run returned %v, want nil", err)
	}
}

// sendAll sends packets to the inside at their times, and returns when the plane
// has read them all.
func (b *bench) sendAll(list []arrival) {
	b.t.Helper()
	for _, a := range list {
		time.Sleep(time.Duration(a.at - Now()))
		if !b.inside.Send(a.queue, a.b) {
			b.t.Fatal("Send failed: the inside device is gone")
		}
	}
	synctest.Wait()
}

func newBench(t *testing.T, egress, ingress *ActivePolicy, queues int) *bench {
	b := &bench{t: t, inside: NewFake("inside", queues), outside: NewFake("outside", queues)}
	b.plane = Plane{Inside: b.inside, Outside: b.outside, Egress: egress, Ingress: ingress}
	return b
}

// randomTraffic returns random packets with a mean interval of gap ns.
func randomTraffic(r *rand.Rand, n int, from, gap int64, queues int) []arrival {
	var list []arrival
	for i := range n {
		b := ipFrame(i, 32+r.IntN(1469), []byte{0, 1, expedited(0), expedited(2), 10 << 2}[r.IntN(5)])
		list = append(list, arrival{from, r.IntN(queues), b})
		if r.IntN(4) > 0 {
			from += r.Int64N(8 * gap / 3)
		}
	}
	return list
}

func seededRandom(t testing.TB) *rand.Rand {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

// arrivalsUntil returns the arrivals up to a time.
func arrivalsUntil(list []arrival, at int64) []arrival {
	return slices.DeleteFunc(slices.Clone(list), func(a arrival) bool { return a.at > at })
}

// countArrivals counts packets and the bytes of their frames.
func countArrivals(list []arrival) (c dataplane.Count) {
	for _, a := range list {
		c.Packets++
		c.Bytes += int64(len(a.b) - HeaderLen)
	}
	return c
}

// sameArrivals compares the output of a plane with that of a pipeline: packets, bytes
// and times. Packets of the same time may be in any order.
func sameArrivals(t *testing.T, got, want []arrival) {
	t.Helper()
	if !slices.IsSortedFunc(got, func(a, b arrival) int { return int(a.at - b.at) }) {
		t.Error("output is not in order of time")
	}
	byNumber := func(list []arrival) []arrival {
		return slices.SortedStableFunc(slices.Values(list),
			func(a, b arrival) int { return numberOf(a.b) - numberOf(b.b) })
	}
	got, want = byNumber(got), byNumber(want)
	if len(got) != len(want) {
		t.Errorf("got %d packets, want %d", len(got), len(want))
	}
	for i := range min(len(got), len(want)) {
		g, w := got[i], want[i]
		if numberOf(g.b) != numberOf(w.b) || g.at != w.at || !bytes.Equal(g.b, w.b) {
			t.Fatalf("packet %d at %d, want %d at %d (%d ns off), bytes the same: %v",
				numberOf(g.b), g.at, numberOf(w.b), w.at, g.at-w.at, bytes.Equal(g.b, w.b))
		}
	}
}

func sameStats(t *testing.T, s *ActivePolicy, l *pipeline.Pipeline) {
	t.Helper()
	if got, _ := s.Stats(); !slices.Equal(got, l.Stats()) {
		t.Errorf("stats %+v, want %+v", got, l.Stats())
	}
}

// conserved checks that every packet received was sent, dropped or lost.
func conserved(t *testing.T, s *ActivePolicy, out int) {
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
		t.Errorf("got %d packets received, but %d sent, %d dropped and %+v lost: want an equal sum", in, out,
			dropped, lost)
	}
	if n := s.QueuedMemory(); n != 0 {
		t.Errorf("got %d bytes queued at the end, want 0", n)
	}
}
