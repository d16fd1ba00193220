package walk

import (
	"net/netip"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/bpf"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/engine"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/image"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/kerneltest"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/record"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// queueFirst are policies in which queues drop packets that have passed, or would pass, a meter
// of each kind.
func queueFirst() map[string]*dataplane.Policy {
	slow := queue.Config{Rate: meter.BitRate(8e6), ECN: true, Seed: 1}
	limit, wred, codel, bytes := slow, slow, slow, slow
	limit.Time = 3 * time.Millisecond
	wred.Packets, wred.WRED = 12, [3]queue.Early{
		{Min: 2, Max: 12, Probability: queue.Certain / 2}, {Max: 3, Probability: queue.Certain},
	}
	codel.Time, codel.CoDel = time.Second, queue.CoDel{
		Target: time.Millisecond, Interval: 3 * time.Millisecond,
	}
	bytes.Bytes = 9000
	queues := map[string]queue.Config{"limit": limit, "wred": wred, "codel": codel, "bytes": bytes}
	meters := map[string]dataplane.Meter{
		"srtcm":   {Params: meter.SRTCM{CIR: meter.BitRate(30e6), CBS: 9000, EBS: 20_000}},
		"trtcm":   {Params: meter.TRTCM{CIR: meter.BitRate(10e6), CBS: 9000, PIR: meter.BitRate(30e6), PBS: 20_000}},
		"coupled": {Params: meter.TRTCM4115{CIR: meter.BitRate(10e6), CBS: 9000, EIR: meter.BitRate(20e6), EBS: 9000, Coupling: true}},
		"fixed":   {Params: meter.FixedWindow{Limit: 40_000, Window: 10 * time.Millisecond}},
		"counter": {Params: meter.SlidingCounter{Limit: 40_000, Window: 10 * time.Millisecond}},
		"packets": {Params: meter.TokenBucket{Rate: meter.BitRate(16e3), Burst: 40}, Packets: true},
		"keys":    {Params: meter.SRTCM{CIR: meter.BitRate(10e6), CBS: 5000, EBS: 9000}, Per: dataplane.Key{By: dataplane.ByDst}, Keys: 4096},
		"no key":  {Params: meter.SRTCM{CIR: meter.BitRate(10e6), CBS: 5000, EBS: 9000}, Per: dataplane.Key{By: dataplane.ByVLAN}, Keys: 4096},
	}
	out := map[string]*dataplane.Policy{}
	for name, cfg := range queues {
		for kind, m := range meters {
			last := &dataplane.Meter{
				Name: "last", Params: meter.TokenBucket{Rate: meter.BitRate(40e6), Burst: 30_000},
				Aware: true,
			}
			m.Name, m.Aware, m.PreColor, m.Then = "first", true, dscpColors, last
			into := &dataplane.Action{Queue: &dataplane.Queue{Name: "q", Config: cfg}}
			out[name+" "+kind] = oneClass(dataplane.Class{Meter: &m, Green: into, Yellow: into})
		}
	}
	// Customers with a queue, and with a meter before a queue of their plan or class.
	limit.Rate, wred.Rate, codel.Rate = meter.BitRate(1e6), meter.BitRate(1e6), meter.BitRate(1e6)
	for _, kind := range []string{"trtcm", "counter", "keys"} {
		m := meters[kind]
		m.Name, m.Aware, m.Then = "sum", true, &dataplane.Meter{
			Name: "last", Params: meter.SRTCM{CIR: meter.BitRate(9e6), CBS: 9000, EBS: 9000}, Aware: true,
		}
		own := codel
		own.Time = 20 * time.Millisecond
		pacedPlan := &dataplane.ServicePlan{Name: "paced", Queue: &own, Yellow: &dataplane.Action{Drop: true}}
		policed := &dataplane.ServicePlan{
			Name: "policed", Params: meter.SRTCM{CIR: meter.BitRate(20e6), CBS: 9000, EBS: 9000},
		}
		queued := &dataplane.ServicePlan{
			Name: "queued", Params: meter.SlidingCounter{Limit: 40_000, Window: 10 * time.Millisecond},
			Green: &dataplane.Action{Queue: &dataplane.Queue{Name: "of plan", Config: wred}},
		}
		policy := oneClass(dataplane.Class{
			Match:  dataplane.Match{Customer: true},
			Meter:  &dataplane.Meter{Name: "plan", Aware: true, PreColor: dscpColors, Then: &m},
			Green:  &dataplane.Action{Queue: &dataplane.Queue{Name: "of class", Config: limit}},
			Yellow: &dataplane.Action{ECN: dataplane.CEOrDrop},
		})
		policy.Customers = &dataplane.Customers{
			Key: dataplane.ByDestination, Plans: []*dataplane.ServicePlan{pacedPlan, policed, queued},
		}
		for i, plan := range policy.Customers.Plans {
			policy.Customers.List = append(policy.Customers.List, dataplane.Customer{
				Name: plan.Name, Plan: plan,
				Prefixes: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i)}), 16)},
			})
		}
		out["customers "+kind] = policy
	}
	return out
}

// TestQueueFirst compares every program with the pipeline, packet by packet, on bursts that keep
// the queues full.
func TestQueueFirst(t *testing.T) {
	kerneltest.NeedRoot(t)
	t.Parallel()
	r := kerneltest.Seeded(t)
	for name, policy := range queueFirst() {
		var packets []dataplane.Packet
		now := int64(1e9)
		for range kerneltest.Rounds(2000) {
			now += r.Int64N(2e6) / (1 + r.Int64N(10)) // 1000 bytes take 1 ms
			to := [4]byte{10, byte(r.IntN(3)), 0, byte(r.IntN(3))}
			packets = append(packets,
				datagramTo(to, now, byte(r.IntN(3))<<2|byte(r.IntN(2)), 60+r.IntN(1400)))
		}
		for _, plane := range planes {
			// loading takes long
			if plane.name != "walk" && (plane.name != "egress" || policy.Customers == nil) {
				continue
			}
			t.Run(name+"/"+plane.name, func(t *testing.T) {
				e := plane.open(t, policy)
				followPipeline(t, policy, e, packets)
				all, err := e.Stats()
				if err != nil {
					t.Fatal(err)
				}
				byQueue := int64(0)
				for _, drops := range all[0].Drops {
					for _, d := range drops[dataplane.CauseQueue:] {
						byQueue += d.Packets
					}
				}
				if all := all[0].Total().Packets; byQueue < all/20 || byQueue > all*9/10 {
					t.Errorf("queues dropped %d of %d packets: the test is too easy", byQueue, all)
				}
			})
		}
	}
}

// TestRefundConcurrent sends packets on two CPUs through two meters to a queue that drops most of
// them. Afterwards the meters have charged exactly the packets that were queued: no CPU undoes or
// loses what another one took or gave back.
func TestRefundConcurrent(t *testing.T) { // not parallel: it needs both CPUs
	kerneltest.NeedRoot(t)
	cpus := allowedCPUs(t)
	if len(cpus) < 2 {
		t.Skip("needs two CPUs")
	}
	const burst = 500_000_000
	for name, params := range map[string]meter.Params{
		"token-bucket": meter.TokenBucket{Rate: meter.BitRate(8), Burst: burst},
		"srtcm":        meter.SRTCM{CIR: meter.BitRate(8), CBS: burst, EBS: 1000},
		"trtcm":        meter.TRTCM{CIR: meter.BitRate(8), CBS: burst, PIR: meter.BitRate(16), PBS: burst},
	} {
		t.Run(name, func(t *testing.T) {
			const length = 1000
			sum := &dataplane.Meter{Name: "sum", Params: wide, Aware: true}
			policy := oneClass(dataplane.Class{
				Meter: &dataplane.Meter{Params: params, Then: sum},
				Green: &dataplane.Action{Queue: &dataplane.Queue{
					Name: "q", Config: queue.Config{Rate: meter.BitRate(80e6), Packets: 3},
				}},
			})
			h := newHooked(t, policy, image.EgressEntry,
				func(c *bpf.ShaperConstants) { c.Handed, c.Pacer = 0, image.PacerNumber[record.HTB] })
			frame := func(meter.Color) []byte { return datagram(0, 0, length).Data }
			(&hammered{}).hammer(t, h.program, cpus, frame, 300*time.Millisecond)
			all, err := h.Stats()
			if err != nil {
				t.Fatal(err)
			}
			queued, dropped := all[0].Queued[meter.Green].Bytes, all[0].Dropped(meter.Green).Bytes
			if queued == 0 || dropped < queued || all[0].Colors[meter.Green] != all[0].Total() {
				t.Fatalf("queued %d bytes and dropped %d of %+v", queued, dropped, all[0].Colors)
			}
			for i, full := range []int64{burst, maximal} {
				tc, _, err := image.ReadTokens(h.maps, &h.image.Stages[i], uint64(engine.Now()))
				if err != nil {
					t.Fatal(err)
				}
				// 1 byte/s arrives
				if charged := full - tc; charged > queued || charged < queued-60*int64(1-i) {
					t.Errorf("meter %d charged %d bytes, want the %d that were queued", i, charged, queued)
				}
			}
		})
	}
}
