package walk

import (
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/image"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/kerneltest"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// randomPolicy is a policy of up to 8 classes. With mark it can use the skb mark and queues.
func randomPolicy(r *rand.Rand, mark bool) *dataplane.Policy {
	policy := &dataplane.Policy{DropUnclassified: r.IntN(3) == 0}
	if r.IntN(2) == 0 {
		policy.Length = dataplane.LengthRule{
			Base: dataplane.LengthBase(r.IntN(3)), Overhead: r.IntN(100) - 60, MPU: r.IntN(3) * 50,
		}
	}
	var shared [image.MaxChain - 1]*dataplane.Meter // each can be chained to an earlier one
	for i := range shared {
		shared[i] = randomMeter(r, mark)
		shared[i].Name, shared[i].Aware = fmt.Sprint("shared ", i), true
		if i > 0 && r.IntN(3) > 0 {
			shared[i].Then = shared[i-1-r.IntN(min(i, 2))]
		}
	}
	var queues []*dataplane.Queue
	for range r.IntN(4) {
		if mark {
			queues = append(queues, randomQueue(r))
		}
	}
	for i := range 1 + r.IntN(8) {
		c := dataplane.Class{Name: fmt.Sprint("c", i)}
		if r.IntN(5) > 0 {
			c.Match = randomMatch(r, mark)
		}
		switch r.IntN(5) {
		case 0:
		case 1:
			c.Meter = shared[r.IntN(len(shared))]
		default:
			c.Meter = randomMeter(r, mark)
			if r.IntN(2) == 0 {
				c.Meter.Then = shared[r.IntN(len(shared))]
			}
		}
		for _, a := range []**dataplane.Action{&c.Green, &c.Yellow, &c.Red} {
			if r.IntN(3) > 0 {
				*a = randomAction(r, mark)
				if len(queues) > 0 && !(*a).Drop && r.IntN(2) == 0 {
					(*a).Queue = queues[r.IntN(len(queues))]
				}
			}
		}
		policy.Classes = append(policy.Classes, c)
	}
	return policy
}

// randomMeter is a meter of a random type, in a third of cases by a key.
func randomMeter(r *rand.Rand, mark bool) *dataplane.Meter {
	m := &dataplane.Meter{Aware: r.IntN(2) == 0}
	burst := func() int64 { return kerneltest.Pick[int64](r, 1, 64, 1500, 3000, 9216, 100_000) }
	rate := func() meter.Rate {
		return meter.Rate{Bytes: 1 + r.Int64N(1_000_000)/(1+r.Int64N(1000)), Period: kerneltest.Pick(r,
			8*time.Second, 8*time.Millisecond, time.Second, 7*time.Millisecond, time.Minute)}
	}
	window := func() time.Duration {
		return kerneltest.Pick(r, time.Microsecond, 999*time.Microsecond, 7*time.Millisecond, time.Second,
			time.Minute, 366*24*time.Hour)
	}
	switch r.IntN(8) {
	case 5:
		m.Params = meter.TokenBucket{Rate: rate(), Burst: burst(), GCRA: r.IntN(2) == 0}
	case 6:
		m.Params = meter.FixedWindow{Limit: kerneltest.Pick(r, burst(), 1<<47), Window: window()}
	case 7:
		m.Params = meter.SlidingCounter{
			Limit: kerneltest.Pick(r, burst(), 10*burst(), 1<<47), Window: window(),
		}
	case 0:
		m.Params = meter.SRTCM{CIR: rate(), CBS: burst(), EBS: burst() - 1}
	case 1:
		slow := 1 + r.Int64N(1e7)
		m.Params = meter.TRTCM{
			CIR: meter.BitRate(slow), CBS: burst(), PIR: meter.BitRate(slow + r.Int64N(1e7)), PBS: burst(),
		}
	case 2:
		m.Params = meter.TRTCM4115{
			CIR: meter.BitRate(r.Int64N(1e7)), CBS: burst(),
			EIR: meter.BitRate(r.Int64N(3) * r.Int64N(1e7)), EBS: burst() - 1,
		}
	case 3:
		m.Params = meter.TRTCM4115{
			CIR: rate(), CBS: burst() - 1, EIR: meter.BitRate(999e3), EBS: burst(), Coupling: true,
		}
	case 4:
		m.Params = meter.TokenBucket{Rate: rate(), Burst: burst(), GCRA: r.IntN(2) == 0}
	}
	if _, err := m.Params.Profile(); err != nil { // the rates have no common unit
		m.Params = meter.TokenBucket{Rate: meter.BitRate(12345), Burst: burst()}
	}
	if r.IntN(4) == 0 {
		m.Packets = true
	}
	if r.IntN(3) == 0 {
		m.Initial = dataplane.Fraction{Num: r.Int64N(8), Den: 7}
	}
	if r.IntN(3) == 0 {
		m.Keys = 4096
		keys := []dataplane.KeyField{
			dataplane.BySrc, dataplane.ByDst, dataplane.ByFlow, dataplane.ByVLAN, dataplane.ByDSCP,
			dataplane.ByAddress, dataplane.ByMAC, dataplane.ByVLANMAC, dataplane.ByVNI, dataplane.ByTEID,
			dataplane.ByMark,
		}
		if !mark {
			keys = keys[:len(keys)-1]
		}
		m.Per = dataplane.Key{By: kerneltest.Pick(r, keys...)}
		if m.Per.By.HasPrefix() && r.IntN(2) == 0 {
			m.Per.V4, m.Per.V6 = uint8(r.IntN(33)), uint8(r.IntN(129))
		}
		m.Initial = kerneltest.Pick(r, dataplane.Fraction{}, dataplane.Fraction{Den: 1})
	}
	m.PreColor.From = dataplane.Field(r.IntN(4))
	if mark {
		m.PreColor.From = dataplane.Field(r.IntN(5))
	}
	if r.IntN(2) == 0 {
		m.PreColor.Map = map[uint32]meter.Color{}
		for range r.IntN(6) {
			v := uint32(0)
			switch m.PreColor.From {
			case dataplane.DSCP:
				v = r.Uint32N(64)
			case dataplane.DEI:
				v = r.Uint32N(2)
			case dataplane.SKBMark:
				v = kerneltest.Pick(r, marks...)
			default:
				v = r.Uint32N(8)
			}
			m.PreColor.Map[v] = meter.Color(r.IntN(3))
		}
	}
	return m
}

// randomMatch matches few of the fields.
func randomMatch(r *rand.Rand, mark bool) dataplane.Match {
	var m dataplane.Match
	ranges := func(most uint64) []dataplane.Range {
		var out []dataplane.Range
		for range 1 + r.IntN(3) {
			a, b := r.Uint64N(most+1), r.Uint64N(most+1)
			out = append(out, kerneltest.Pick(r, dataplane.Range{First: min(a, b), Last: max(a, b)},
				dataplane.Range{First: a, Last: a}, dataplane.Range{First: 0, Last: b}))
		}
		return out
	}
	for _, key := range []func(){
		func() { m.Src = randomPrefixes(r) },
		func() { m.Dst = randomPrefixes(r) },
		func() {
			m.Proto = append(ranges(255),
				kerneltest.Pick(r, dataplane.Range{First: 6, Last: 6}, dataplane.Range{First: 17, Last: 17}))
		},
		func() { m.SPort = append(ranges(65535), dataplane.Range{First: 1, Last: uint64(r.IntN(3))}) },
		func() { m.DPort = append(ranges(65535), dataplane.Range{First: 53, Last: 53}) },
		func() { m.DSCP = ranges(63) },
		func() { m.VLAN = ranges(4095) },
		func() { m.PCP = ranges(7) },
		func() { m.InnerVLAN = ranges(4095) },
		func() { m.TCPFlags = ranges(255) },
		func() { m.ICMPType = ranges(0x1ffff) },
		func() { m.MAC = randomMACs(r) },
		func() { m.SrcMAC = randomMACs(r) },
		func() { m.DstMAC = append(randomMACs(r), ranges(dataplane.MaxMAC)...) },
		func() { m.VNI = append(ranges(1<<24-1), dataplane.Range{First: 0, Last: 3}) },
		func() { m.TEID = append(ranges(math.MaxUint32), dataplane.Range{First: 0, Last: 3}) },
		func() {
			m.EtherType = append(ranges(65535),
				dataplane.Range{First: 0x800, Last: kerneltest.Pick[uint64](r, 0x800, 0x86dd)})
		},
		func() {
			m.Length = append(ranges(1600),
				dataplane.Range{First: 1000, Last: kerneltest.Pick[uint64](r, 1000, 1500, 1<<32-1)})
		},
	} {
		if r.IntN(6) == 0 {
			key()
		}
	}
	if mark && r.IntN(6) == 0 {
		v := uint64(kerneltest.Pick(r, marks...))
		m.Mark = append(ranges(math.MaxUint32), dataplane.Range{First: v, Last: v})
	}
	for i, p := range m.SPort { // the added range may be reversed
		m.SPort[i] = dataplane.Range{First: min(p.First, p.Last), Last: max(p.First, p.Last)}
	}
	return m
}

// randomMACs are some of the addresses of frametest.Ethernet and of those next to them.
func randomMACs(r *rand.Rand) (list []dataplane.Range) {
	for range 1 + r.IntN(3) {
		v := 0x020000000000 + r.Uint64N(4)
		list = append(list, dataplane.Range{First: v, Last: v + r.Uint64N(2)})
	}
	return list
}

// randomQueue is a queue that randomPackets often fills.
func randomQueue(r *rand.Rand) *dataplane.Queue {
	q := &dataplane.Queue{Config: queue.Config{
		Rate: kerneltest.Pick(r, meter.BitRate(1+r.Int64N(1e6)), meter.BitRate(8e6),
			meter.Rate{Bytes: 7, Period: 3 * time.Millisecond}, meter.BitRate(1e9)),
		ECN: r.IntN(2) == 0, Seed: r.Uint64(),
	}}
	limit := int64(0)
	switch r.IntN(3) {
	case 0:
		q.Time = time.Duration(1 + r.Int64N(1e9)/(1+r.Int64N(1e4)))
		limit = int64(q.Time)
	case 1:
		q.Bytes = 1 + r.Int64N(100_000)
		limit = q.Bytes
	case 2:
		q.Packets = 1 + r.Int64N(60)
		limit = q.Packets
	}
	for color := range q.WRED {
		if r.IntN(2) == 0 {
			continue
		}
		most := 1 + r.Int64N(limit)
		q.WRED[color] = queue.Early{
			Min: r.Int64N(most + 1), Max: most, Probability: r.Uint32N(queue.Certain + 1),
		}
	}
	if r.IntN(2) == 0 {
		q.CoDel = queue.CoDel{
			Target: time.Duration(1 + r.Int64N(1e7)), Interval: time.Duration(1 + r.Int64N(3e7)),
		}
	}
	return q
}

// randomAction is a random drop, ECN mark or set of marks.
func randomAction(r *rand.Rand, mark bool) *dataplane.Action {
	if r.IntN(4) == 0 {
		return &dataplane.Action{Drop: r.IntN(2) == 0}
	}
	a := &dataplane.Action{ECN: dataplane.ECN(r.IntN(3))}
	values := []uint32{64, 8, 2, 8, math.MaxUint32}
	if !mark {
		values = values[:4]
	}
	for _, field := range r.Perm(len(values)) {
		if r.IntN(3) == 0 {
			a.Marks = append(a.Marks,
				dataplane.Mark{Field: dataplane.Field(field), Value: r.Uint32N(values[field])})
		}
	}
	return a
}

// describeClass formats a class with its meters and actions.
func describeClass(c *dataplane.Class) string {
	s := fmt.Sprintf("class %s match %+v", c.Name, c.Match)
	for m := c.Meter; m != nil; m = m.Then {
		s += fmt.Sprintf("\n  meter %q %T%+v aware %v precolor %+v initial %v packets %v per %v", m.Name,
			m.Params, m.Params, m.Aware, m.PreColor, m.Initial, m.Packets, m.Per)
	}
	for i, a := range []*dataplane.Action{c.Green, c.Yellow, c.Red} {
		if a != nil {
			s += fmt.Sprintf("\n  %v %+v", meter.Color(i), *a)
		}
	}
	return s
}
