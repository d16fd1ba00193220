package tap

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// TestPlaneRates changes a rate 100 times in a second, while packets are queued. All packets
// depart as from a pipeline: for a queue, one that gets a new policy each time; for a link, one
// with the same changes. Packets of one priority and weight stay in order, and none is lost.
func TestPlaneRates(t *testing.T) {
	rates := []meter.Rate{byteRateMega, meter.BitRate(24e6), {Bytes: 3, Period: 700}, meter.BitRate(5e6)}
	queueOf := func(rate meter.Rate) *dataplane.Policy {
		return oneQueue(queue.Config{Rate: rate, Time: time.Minute})
	}
	linkOf := func(rate meter.Rate) *dataplane.Policy {
		return linkPolicy(rate, func(c *queue.Config) { c.Bytes, c.Packets = 0, 10_000 })
	}
	for name, row := range map[string]struct {
		policyOf func(meter.Rate) *dataplane.Policy
		set      func(m *alonePipeline, plan *compiled.Plan, rate meter.Rate)
		links    bool
	}{
		"queue": {queueOf, func(m *alonePipeline, _ *compiled.Plan, rate meter.Rate) { m.reload(queueOf(rate)) }, false},
		"link": {linkOf, func(m *alonePipeline, plan *compiled.Plan, _ meter.Rate) {
			if err := m.l.SetRates(Now(), plan); err != nil {
				m.t.Fatal(err)
			}
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, m := newShaper(t, row.policyOf(rates[0]), 0), newAlonePipeline(t, row.policyOf(rates[0]))
				plan := compilePlan(t, row.policyOf(rates[0]))
				b := newBench(t, s, nil, 1)
				b.start(time.Minute)
				sent := 0
				for i := range 100 {
					var list []arrival
					for range 40 {
						list = append(list, arrival{
							at: Now(), b: ipFrame(sent, 1000, []byte{0, expedited(0), 10 << 2}[sent%3]),
						})
						sent++
					}
					b.sendAll(list)
					m.processAll(list)
					synctest.Wait()
					time.Sleep(10*time.Millisecond + 1)
					rate := rates[(i+1)%len(rates)]
					set := map[string]meter.Rate{"q": rate}
					queues, links := set, map[string]meter.Rate(nil)
					if row.links {
						queues, links = nil, map[string]meter.Rate{"wan": rate}
					}
					next, err := plan.WithRates(queues, links)
					if err != nil {
						t.Fatal(err)
					}
					waiting := s.QueuedMemory()
					if err := s.SetRates(next); err != nil {
						t.Fatal(err)
					}
					if now := s.QueuedMemory(); now != waiting || now == 0 {
						t.Errorf("change %d: got %d bytes queued, want %d as before", i, now, waiting)
					}
					row.set(m, next, rate)
				}
				m.settleAll()
				b.endWithoutError()
				sameArrivals(t, b.out, m.out)
				sameStats(t, s, m.l)
				last := map[int]int{}
				for _, a := range b.out {
					n := numberOf(a.b)
					kind := 0
					if row.links {
						kind = n % 3
					}
					if n < last[kind] {
						t.Errorf("packet %d departs after %d", n, last[kind])
					}
					last[kind] = n
				}
				if n := len(b.out); n != sent {
					t.Errorf("got %d packets, want %d", n, sent)
				}
			})
		})
	}
}

// TestPlaneRatesRefused checks that another policy is rejected.
func TestPlaneRatesRefused(t *testing.T) {
	s := newShaper(t, oneQueue(queue.Config{Rate: byteRateMega, Time: time.Second}), 0)
	if err := s.SetRates(compilePlan(t, linkPolicy(byteRateMega, nil))); err == nil {
		t.Error("got no error for a plan with other queues")
	}
}

// BenchmarkSetRates measures a change of the rate of a queue.
func BenchmarkSetRates(b *testing.B) {
	plan := compilePlan(b, oneQueue(queue.Config{Rate: byteRateMega, Time: time.Second}))
	s := NewActivePolicy(plan, 0)
	for i := 0; b.Loop(); i++ {
		next, err := plan.WithRates(map[string]meter.Rate{"q": meter.BitRate(int64(1e6 + i%7*1e6))}, nil)
		if err == nil {
			err = s.SetRates(next)
		}
		if err != nil {
			b.Fatal(err)
		}
	}
}
