package pipeline

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/internal/frametest"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// TestCustomerIsolation gives 100 customers three times their rate, one of them 100 times its
// rate, and sprays packets to unknown addresses. Each customer must have the same verdicts as
// alone, and exactly its bound, to the packet: within 0.1 %.
func TestCustomerIsolation(t *testing.T) {
	const (
		count = 100
		size  = 1000
		burst = 900 * size // so large that a packet is less than 0.1 % of the bound
		limit = 900 * time.Millisecond
		span  = 500 * int64(time.Millisecond)
	)
	bucket, paced := frametest.BucketPlan("bucket", burst), pacedPlan(frametest.Mega, limit)
	policy := frametest.CustomersPolicy(&dataplane.Customers{List: customersOf(count,
		func(i int) *dataplane.ServicePlan { return []*dataplane.ServicePlan{bucket, paced}[i%2] })})
	// Strangers have a table of one key, which each packet evicts.
	policy.Classes[1].Meter = &dataplane.Meter{
		Params: meter.TokenBucket{Rate: frametest.Mega, Burst: burst},
		Per:    dataplane.Key{By: dataplane.ByDst}, Keys: 1,
	}
	for greedy := range 2 { // one with a meter, and one with a queue
		t.Run([]string{"meter", "queue"}[greedy], func(t *testing.T) {
			r := rand.New(rand.NewPCG(1, uint64(greedy)))
			all := newPipeline(t, policy)
			var alone, sent [count]struct {
				l     *Pipeline
				bytes int64
			}
			for i := range alone {
				alone[i].l = newPipeline(t, policy)
			}
			dropped := int64(0)
			due := [count + 1]int64{} // of the next packet of each customer, and of the spray
			for {
				from := 0
				for i := range due {
					if due[i] < due[from] {
						from = i
					}
				}
				at := due[from]
				if at >= span {
					break
				}
				interval := int64(size*µs) / 3
				var to string
				switch b := byte(from); {
				case from == count:
					interval = 10 * µs
					to = fmt.Sprintf("172.%d.%d.%d", r.IntN(256), r.IntN(256), r.IntN(256))
				case r.IntN(2) == 0:
					to = fmt.Sprintf("10.0.0.%d", b)
				default:
					to = fmt.Sprintf("2001:db8:0:%x::%x", int(b)<<8, r.IntN(1<<16))
				}
				if from == greedy {
					interval = size * µs / 100
				}
				due[from] += interval
				frame := toward(to, size)
				got, _ := process(all, at, frame)
				if from == count {
					if got.Customer != 0 {
						t.Fatalf("a packet to %s belongs to customer %d", to, got.Customer)
					}
					continue
				}
				want, _ := process(alone[from].l, at, frame)
				if got != want || got.Customer != uint32(from+1) {
					t.Fatalf("customer %d at %d: got %+v, alone %+v", from, at, got, want)
				}
				if got.Done.Dropped() {
					dropped++
				} else {
					sent[from].bytes += size
				}
			}
			for i := range sent {
				bound := int64(burst) + span/µs
				if i%2 == 1 { // the queue holds its limit, and the packet that is being sent
					bound = int64(limit)/µs + size + span/µs
				}
				if got := sent[i].bytes; got > bound || got <= bound-size-size/3 || got < bound-bound/1000 {
					t.Errorf("customer %d: %d bytes passed, want up to a packet and 0.1 %% less than %d", i,
						got, bound)
				}
			}
			if all.Keys(1).Evicted < 1000 || dropped < 10_000 {
				t.Errorf("%d keys of strangers were evicted and %d packets dropped: too few",
					all.Keys(1).Evicted, dropped)
			}
		})
	}
}
