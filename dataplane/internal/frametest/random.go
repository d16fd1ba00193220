package frametest

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// RandomMeter returns a meter with token buckets for a few packets, or a chain of them.
func RandomMeter(r *rand.Rand, aware bool) *dataplane.Meter {
	rate := func() meter.Rate { return meter.BitRate(1 + r.Int64N(20e6)) }
	burst := func() int64 { return 1 + r.Int64N(6000) }
	m := &dataplane.Meter{
		Aware: aware, Packets: r.IntN(8) == 0, Initial: dataplane.Fraction{Num: r.Int64N(5), Den: 4},
	}
	switch a, b := rate(), rate(); r.IntN(4) {
	case 0:
		m.Params = meter.SRTCM{CIR: a, CBS: burst(), EBS: burst()}
	case 1:
		if a.Cmp(b) > 0 {
			a, b = b, a
		}
		m.Params = meter.TRTCM{CIR: a, CBS: burst(), PIR: b, PBS: burst()}
	case 2:
		m.Params = meter.TRTCM4115{CIR: a, CBS: burst(), EIR: b, EBS: burst(), Coupling: r.IntN(2) == 0}
	case 3:
		m.Params = meter.TokenBucket{Rate: a, Burst: burst()}
	}
	if r.IntN(3) == 0 {
		m.Then = RandomMeter(r, true)
	}
	return m
}

func RandomAction(r *rand.Rand, queues []*dataplane.Queue) *dataplane.Action {
	switch r.IntN(4) {
	case 0:
		return nil
	case 1:
		return &dataplane.Action{Drop: true}
	}
	a := &dataplane.Action{ECN: dataplane.ECN(r.IntN(3))}
	for _, f := range r.Perm(Fields)[:r.IntN(Fields+1)] {
		a.Marks = append(a.Marks,
			dataplane.Mark{Field: dataplane.Field(f), Value: RandomValue(r, dataplane.Field(f))})
	}
	if r.IntN(2) == 0 {
		a.Queue = queues[r.IntN(len(queues))]
	}
	return a
}

// EvenVLANs are half of the VLANs of random frames.
var EvenVLANs = func() (list []uint64) {
	for id := uint64(0); id < 4096; id += 2 {
		list = append(list, id)
	}
	return list
}()

// RandomPolicy returns a policy. It makes the same meters, classes and actions from the same
// random numbers, whether the meters are color-aware or not.
func RandomPolicy(r *rand.Rand, aware bool, from func() dataplane.PreColor) *dataplane.Policy {
	policy := &dataplane.Policy{Length: dataplane.LengthRule{
		Base: dataplane.LengthBase(r.IntN(3)), Overhead: r.IntN(60) - 30, MPU: r.IntN(80),
	}, Customers: &dataplane.Customers{
		Key:  dataplane.ByOuterVLAN,
		List: []dataplane.Customer{{Name: "even", IDs: EvenVLANs, Plan: BucketPlan("p", 1500)}},
	}}
	meters := []*dataplane.Meter{nil, RandomMeter(r, aware), RandomMeter(r, aware), RandomMeter(r, aware)}
	for _, m := range meters[1:] {
		m.PreColor = from()
	}
	early := queue.Config{
		ECN: r.IntN(2) == 0, Seed: r.Uint64(),
		WRED: [3]queue.Early{
			{},
			{Min: 100, Max: 3000, Probability: queue.Certain / 2},
			{Min: 0, Max: 2000, Probability: queue.Certain},
		},
		CoDel: queue.CoDel{Target: time.Millisecond, Interval: 2 * time.Millisecond},
	}
	with := func(c queue.Config, edit func(*queue.Config)) queue.Config { edit(&c); return c }
	link := &dataplane.Link{Rate: meter.BitRate(4e6)}
	queues := []*dataplane.Queue{
		{Config: queue.Config{Rate: meter.BitRate(1e6), Time: 10 * time.Millisecond}},
		{Config: with(early,
			func(c *queue.Config) { c.Rate, c.Bytes, c.Packets = meter.BitRate(1e7), 3000, 9 })},
		{Config: with(early, func(c *queue.Config) { c.Bytes = 5000 }), Link: link},
		{Config: queue.Config{Packets: 9}, Link: link, Weight: 3},
		{Config: queue.Config{Time: 20 * time.Millisecond}, Link: link, Priority: 1},
		{Config: queue.Config{Bytes: 3000}, Link: &dataplane.Link{Rate: meter.BitRate(1e6)}},
	}
	for i := range 1 + r.IntN(6) {
		policy.Classes = append(policy.Classes, dataplane.Class{
			Name: fmt.Sprint(i), Match: RandomMatch(r, 12), Meter: meters[r.IntN(len(meters))],
			Green: RandomAction(r, queues), Yellow: RandomAction(r, queues), Red: RandomAction(r, queues),
		})
	}
	return policy
}

// AnyField returns a source of random values of PreColor.
func AnyField(r *rand.Rand) func() dataplane.PreColor {
	return func() dataplane.PreColor {
		from := dataplane.PreColor{From: dataplane.Field(r.IntN(Fields))}
		if r.IntN(2) == 0 {
			from.Map = map[uint32]meter.Color{}
			for range 8 {
				from.Map[RandomValue(r, from.From)] = meter.Color(r.IntN(3))
			}
		}
		return from
	}
}

// RandomFrame returns a frame with random headers, sometimes truncated.
func RandomFrame(r *rand.Rand) []byte {
	payload := PadTo(Ports(uint16(r.Uint32()), uint16(r.Uint32())), 8+r.IntN(1400))
	proto := []byte{ProtoTCP, ProtoUDP, ProtoSCTP, 1}[r.IntN(4)]
	tos := byte(r.Uint32())
	t, packet := uint16(EtherIPv4), V4{
		Tos: tos, Proto: proto, Frag: uint16(r.IntN(2) * r.IntN(9)), Options: 4 * r.IntN(11),
	}.Packet(payload)
	ppp := uint16(PPPIPv4)
	switch r.IntN(5) {
	case 0, 1:
		t, packet, ppp = EtherIPv6, V6{Class: tos, Next: 60}.Packet(Extension(proto, 8), payload), PPPIPv6
	case 2:
		if r.IntN(2) == 0 {
			t, packet, ppp = 0x0806, make([]byte, 28), 0xc021
		}
	}
	switch r.IntN(4) {
	case 0:
		t, packet = EtherMPLS, Concat(MplsLabel(r.Uint32N(1<<20), r.Uint32N(8), 0),
			MplsLabel(9, r.Uint32N(8), 1), packet)
	case 1:
		t, packet = EtherPPPoE, Concat(PPPoE(ppp), packet)
	}
	for range r.IntN(4) {
		t, packet = EtherVLAN, Concat(Tag(uint16(r.IntN(8)), uint16(r.IntN(2)), uint16(r.IntN(4096)), t),
			packet)
	}
	frame := Concat(Ethernet(t), packet)
	if r.IntN(10) == 0 {
		frame = frame[:r.IntN(len(frame))]
	}
	return frame
}

// Fields is the number of fields that marks are written to.
const Fields = int(dataplane.SKBMark) + 1

// RandomValue returns a value of a field.
func RandomValue(r *rand.Rand, f dataplane.Field) uint32 {
	largest, _ := f.Max()
	return uint32(r.Uint64N(uint64(largest) + 1))
}
