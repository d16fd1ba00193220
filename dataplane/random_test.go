package dataplane

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// randomMeter returns a meter with token buckets for a few packets, or a chain of them.
func randomMeter(r *rand.Rand, aware bool) *Meter {
	rate := func() meter.Rate { return meter.BitRate(1 + r.Int64N(20e6)) }
	burst := func() int64 { return 1 + r.Int64N(6000) }
	m := &Meter{Aware: aware, Packets: r.IntN(8) == 0, Initial: Fraction{r.Int64N(5), 4}}
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
		m.Then = randomMeter(r, true)
	}
	return m
}

func randomAction(r *rand.Rand, queues []*Queue) *Action {
	switch r.IntN(4) {
	case 0:
		return nil
	case 1:
		return &Action{Drop: true}
	}
	a := &Action{ECN: ECN(r.IntN(3))}
	for _, f := range r.Perm(fields)[:r.IntN(fields+1)] {
		a.Marks = append(a.Marks, Mark{Field(f), randomValue(r, Field(f))})
	}
	if r.IntN(2) == 0 {
		a.Queue = queues[r.IntN(len(queues))]
	}
	return a
}

// evenVLANs are half of the VLANs of random frames.
var evenVLANs = func() (list []uint32) {
	for id := uint32(0); id < 4096; id += 2 {
		list = append(list, id)
	}
	return list
}()

// randomPolicy returns a policy. It makes the same meters, classes and actions from the same
// random numbers, whether the meters are color-aware or not.
func randomPolicy(r *rand.Rand, aware bool, from func() PreColor) *Policy {
	policy := &Policy{Length: LengthRule{LengthBase(r.IntN(3)), r.IntN(60) - 30, r.IntN(80)}, Customers: &Customers{
		Key: ByOuterVLAN, List: []Customer{{Name: "even", VLANs: evenVLANs, Plan: bucketPlan("p", 1500)}},
	}}
	meters := []*Meter{nil, randomMeter(r, aware), randomMeter(r, aware), randomMeter(r, aware)}
	for _, m := range meters[1:] {
		m.PreColor = from()
	}
	early := queue.Config{
		ECN: r.IntN(2) == 0, Seed: r.Uint64(),
		WRED:  [3]queue.Early{{}, {Min: 100, Max: 3000, Probability: queue.Certain / 2}, {Min: 0, Max: 2000, Probability: queue.Certain}},
		CoDel: queue.CoDel{Target: time.Millisecond, Interval: 2 * time.Millisecond},
	}
	with := func(c queue.Config, edit func(*queue.Config)) queue.Config { edit(&c); return c }
	link := &Link{Rate: meter.BitRate(4e6)}
	queues := []*Queue{
		{Config: queue.Config{Rate: meter.BitRate(1e6), Time: 10 * time.Millisecond}},
		{Config: with(early, func(c *queue.Config) { c.Rate, c.Bytes, c.Packets = meter.BitRate(1e7), 3000, 9 })},
		{Config: with(early, func(c *queue.Config) { c.Bytes = 5000 }), Link: link},
		{Config: queue.Config{Packets: 9}, Link: link, Weight: 3},
		{Config: queue.Config{Time: 20 * time.Millisecond}, Link: link, Priority: 1},
		{Config: queue.Config{Bytes: 3000}, Link: &Link{Rate: meter.BitRate(1e6)}},
	}
	for i := range 1 + r.IntN(6) {
		policy.Classes = append(policy.Classes, Class{
			Name: fmt.Sprint(i), Match: randomMatch(r, 12), Meter: meters[r.IntN(len(meters))],
			Green: randomAction(r, queues), Yellow: randomAction(r, queues), Red: randomAction(r, queues),
		})
	}
	return policy
}

// anyField returns a source of random PreColors.
func anyField(r *rand.Rand) func() PreColor {
	return func() PreColor {
		from := PreColor{From: Field(r.IntN(fields))}
		if r.IntN(2) == 0 {
			from.Map = map[uint32]meter.Color{}
			for range 8 {
				from.Map[randomValue(r, from.From)] = meter.Color(r.IntN(3))
			}
		}
		return from
	}
}

// randomFrame returns a frame with random headers, sometimes truncated.
func randomFrame(r *rand.Rand) []byte {
	payload := padTo(ports(uint16(r.Uint32()), uint16(r.Uint32())), 8+r.IntN(1400))
	proto := []byte{protoTCP, protoUDP, protoSCTP, 1}[r.IntN(4)]
	tos := byte(r.Uint32())
	t, packet := uint16(etherIPv4), v4{tos: tos, proto: proto, frag: uint16(r.IntN(2) * r.IntN(9)), options: 4 * r.IntN(11)}.packet(payload)
	ppp := uint16(pppIPv4)
	switch r.IntN(5) {
	case 0, 1:
		t, packet, ppp = etherIPv6, v6{class: tos, next: 60}.packet(extension(proto, 8), payload), pppIPv6
	case 2:
		if r.IntN(2) == 0 {
			t, packet, ppp = 0x0806, make([]byte, 28), 0xc021
		}
	}
	switch r.IntN(4) {
	case 0:
		t, packet = etherMPLS, concat(mplsLabel(r.Uint32N(1<<20), r.Uint32N(8), 0), mplsLabel(9, r.Uint32N(8), 1), packet)
	case 1:
		t, packet = etherPPPoE, concat(pppoe(ppp), packet)
	}
	for range r.IntN(4) {
		t, packet = etherVLAN, concat(tag(uint16(r.IntN(8)), uint16(r.IntN(2)), uint16(r.IntN(4096)), t), packet)
	}
	frame := concat(ethernet(t), packet)
	if r.IntN(10) == 0 {
		frame = frame[:r.IntN(len(frame))]
	}
	return frame
}

// fields is the number of fields that marks are written to.
const fields = int(SKBMark) + 1

// randomValue returns a value of a field.
func randomValue(r *rand.Rand, f Field) uint32 {
	largest, _ := f.Max()
	return uint32(r.Uint64N(uint64(largest) + 1))
}
