package walk

import (
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/image"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/kerneltest"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// fixedPolicies are policies that together use all features except queues.
func fixedPolicies() map[string]*dataplane.Policy {
	ranges := func(bounds ...uint64) []dataplane.Range {
		var out []dataplane.Range
		for i := 0; i < len(bounds); i += 2 {
			out = append(out, dataplane.Range{First: bounds[i], Last: bounds[i+1]})
		}
		return out
	}
	prefixes := func(list ...string) []netip.Prefix {
		var out []netip.Prefix
		for _, s := range list {
			out = append(out, netip.MustParsePrefix(s))
		}
		return out
	}
	mark := func(field dataplane.Field, value uint32) *dataplane.Action {
		return &dataplane.Action{Marks: []dataplane.Mark{{Field: field, Value: value}}}
	}
	chain := func(n int, params func(i int) meter.Params) *dataplane.Meter {
		var next *dataplane.Meter
		for i := n; i > 0; i-- {
			next = &dataplane.Meter{Name: fmt.Sprint("m", i), Params: params(i), Aware: true, Then: next}
		}
		return next
	}
	everyMatch := func() *dataplane.Policy {
		return &dataplane.Policy{Classes: []dataplane.Class{
			{Name: "dns", Match: dataplane.Match{SPort: ranges(53, 53)}, Meter: &dataplane.Meter{Params: meter.TokenBucket{Rate: meter.BitRate(64e3), Burst: 600}}},
			{Name: "high", Match: dataplane.Match{DPort: ranges(0, 79, 81, 442, 5000, 65535), Proto: ranges(6, 6)}},
			{Name: "pairs", Match: dataplane.Match{Src: prefixes("192.0.2.0/25", "10.0.0.0/8", "2001:db8::/48"), Dst: prefixes("0.0.0.0/1", "::/1")}},
			{Name: "from", Match: dataplane.Match{Src: prefixes("192.0.2.0/24", "2001:db8::/32", "141.142.0.0/16")}},
			{Name: "ef", Match: dataplane.Match{DSCP: ranges(46, 46, 10, 14)}, Green: mark(dataplane.DSCP, 0)},
			{Name: "tagged", Match: dataplane.Match{VLAN: ranges(1, 100, 4095, 4095), PCP: ranges(0, 3)}, Green: mark(dataplane.PCP, 6)},
			{Name: "pcp", Match: dataplane.Match{PCP: ranges(4, 7)}, Green: mark(dataplane.DEI, 1)},
			{Name: "types", Match: dataplane.Match{EtherType: ranges(0x0806, 0x0806, 0x8847, 0x8864)}, Green: mark(dataplane.MPLSTC, 5)},
			{Name: "large", Match: dataplane.Match{Length: ranges(1000, 1<<32-1)}},
			{Name: "icmp", Match: dataplane.Match{Proto: ranges(1, 1, 58, 58)}},
			{Name: "rest", Green: mark(dataplane.DSCP, 8)},
		}}
	}
	closed := everyMatch()
	closed.Classes, closed.DropUnclassified = closed.Classes[:6], true
	marked := everyMatch()
	marked.Classes = slices.Insert(marked.Classes, 2, dataplane.Class{
		Name: "marked", Match: dataplane.Match{Mark: ranges(1, 7, 1000, 1<<31)},
		Green: mark(dataplane.SKBMark, 77),
	})
	return map[string]*dataplane.Policy{
		"matches":      everyMatch(),
		"matches-mark": marked,
		"closed":       closed,
		"meters": {Classes: []dataplane.Class{
			{Name: "a", Match: dataplane.Match{Proto: ranges(6, 6)}, Meter: &dataplane.Meter{
				Name: "srtcm", Params: meter.SRTCM{CIR: meter.BitRate(123457), CBS: 3000, EBS: 2000},
				Aware: true,
			}, Yellow: mark(dataplane.DSCP, 12)},
			{
				Name: "b", Match: dataplane.Match{Proto: ranges(17, 17)}, Meter: &dataplane.Meter{
					Name: "trtcm",
					Params: meter.TRTCM{
						CIR: meter.BitRate(100003), CBS: 1500, PIR: meter.BitRate(200003), PBS: 4000,
					},
					Initial: dataplane.Fraction{Num: 1, Den: 3},
				},
				Red: &dataplane.Action{ECN: dataplane.CEOrDrop, Marks: []dataplane.Mark{
					{Field: dataplane.DSCP, Value: 14}, {Field: dataplane.DEI, Value: 1},
				}},
			},
			{
				Name: "c", Match: dataplane.Match{VLAN: ranges(0, 4095)}, Meter: &dataplane.Meter{
					Name: "4115",
					Params: meter.TRTCM4115{
						CIR: meter.BitRate(50e3), CBS: 1000, EIR: meter.BitRate(70e3), EBS: 1500,
					},
					Aware: true, PreColor: dataplane.PreColor{From: dataplane.DEI},
				},
				Red: &dataplane.Action{Marks: []dataplane.Mark{
					{Field: dataplane.PCP, Value: 1},
					{Field: dataplane.DEI, Value: 1},
					{Field: dataplane.DSCP, Value: 1},
				}},
			},
			{Name: "d", Meter: &dataplane.Meter{
				Name: "coupled",
				Params: meter.TRTCM4115{
					CIR: meter.BitRate(80e3), CBS: 1000,
					EIR: meter.Rate{Bytes: 7, Period: 3 * time.Millisecond}, EBS: 1500, Coupling: true,
				},
				Initial: dataplane.Fraction{Num: 0, Den: 1},
			}, Yellow: &dataplane.Action{ECN: dataplane.CE}, Green: &dataplane.Action{}},
		}},
		"precolors": {Length: dataplane.LengthRule{Overhead: 38, MPU: 84}, Classes: []dataplane.Class{
			{Name: "mpls", Match: dataplane.Match{EtherType: ranges(0x8847, 0x8848)}, Meter: &dataplane.Meter{
				Params: meter.SRTCM{CIR: meter.BitRate(123457), CBS: 0, EBS: 2000}, Aware: true,
				PreColor: dataplane.PreColor{
					From: dataplane.MPLSTC, Map: map[uint32]meter.Color{0: meter.Yellow, 3: meter.Red},
				},
			}, Yellow: mark(dataplane.MPLSTC, 7)},
			{Name: "pcp", Match: dataplane.Match{PCP: ranges(0, 7)}, Meter: &dataplane.Meter{
				Params:  meter.TokenBucket{Rate: meter.Rate{Bytes: 5, Period: time.Second}, Burst: 10},
				Packets: true, Aware: true,
				PreColor: dataplane.PreColor{
					From: dataplane.PCP, Map: map[uint32]meter.Color{0: meter.Yellow, 5: meter.Red},
				},
			}},
			{Name: "dscp", Meter: &dataplane.Meter{
				Params: meter.TRTCM{CIR: meter.BitRate(1e6), CBS: 3000, PIR: meter.BitRate(3e6), PBS: 3000},
				Aware:  true,
				PreColor: dataplane.PreColor{
					From: dataplane.DSCP,
					Map:  map[uint32]meter.Color{0: meter.Yellow, 46: meter.Red, 63: meter.Green},
				},
			}},
		}},
		"precolor-mark": {Classes: []dataplane.Class{{Name: "all", Meter: &dataplane.Meter{
			Name:   "first",
			Params: meter.TRTCM4115{CIR: meter.BitRate(1e6), CBS: 9000, EIR: meter.BitRate(1e6), EBS: 9000},
			Aware:  true,
			PreColor: dataplane.PreColor{From: dataplane.SKBMark, Map: map[uint32]meter.Color{
				1: meter.Yellow, 63: meter.Red, 64: meter.Yellow, 65: meter.Red, 1000: meter.Green,
				math.MaxUint32: meter.Red,
			}},
			Then: &dataplane.Meter{
				Name: "second", Params: meter.SRTCM{CIR: meter.BitRate(900e3), CBS: 3000, EBS: 0},
				Aware: true,
				// not used: the first meter's color is the input color
				PreColor: dataplane.PreColor{From: dataplane.SKBMark},
			},
		}, Green: mark(dataplane.SKBMark, 1<<31), Yellow: mark(dataplane.SKBMark, 0), Red: &dataplane.Action{
			ECN: dataplane.CE, Marks: []dataplane.Mark{{Field: dataplane.SKBMark, Value: math.MaxUint32}},
		}}}},
		"chain": {Length: dataplane.LengthRule{Base: dataplane.L1}, Classes: []dataplane.Class{
			{Name: "long", Match: dataplane.Match{Length: ranges(200, 1<<32-1)}, Meter: chain(image.MaxChain, func(i int) meter.Params {
				return meter.TRTCM{
					CIR: meter.BitRate(int64(2e6 - i*1e5)), CBS: 9000,
					PIR: meter.BitRate(int64(3e6 - i*1e5)), PBS: 9000,
				}
			})},
			{Name: "all", Match: dataplane.Match{Length: ranges(0, 1<<32-1)}, Meter: chain(3, func(i int) meter.Params {
				return meter.SRTCM{CIR: meter.BitRate(int64(200e3 - i*1e4)), CBS: 1000, EBS: 500}
			})},
		}},
		"frames": {Length: dataplane.LengthRule{Base: dataplane.L2, Overhead: -20}, Classes: []dataplane.Class{{Name: "all", Meter: &dataplane.Meter{
			Params: meter.TokenBucket{Rate: meter.BitRate(1e6), Burst: 5000},
		}, Red: &dataplane.Action{ECN: dataplane.CEOrDrop}}}},
	}
}

// oneClass is a policy of one class.
func oneClass(c dataplane.Class) *dataplane.Policy {
	c.Name = "c"
	return &dataplane.Policy{Classes: []dataplane.Class{c}}
}

// metersByMark is a policy with a class for each meter, selected by skb marks from 0 on.
func metersByMark(meters []*dataplane.Meter) *dataplane.Policy {
	policy := &dataplane.Policy{Length: dataplane.LengthRule{Overhead: -20}}
	for i, m := range meters {
		policy.Classes = append(policy.Classes, dataplane.Class{
			Name:  fmt.Sprint("mark ", i),
			Match: dataplane.Match{Mark: []dataplane.Range{{First: uint64(i), Last: uint64(i)}}},
			Meter: m,
		})
	}
	return policy
}

// dscpColors reads the input color from the DSCP: 1 is yellow, 2 red.
var dscpColors = dataplane.PreColor{
	From: dataplane.DSCP, Map: map[uint32]meter.Color{1: meter.Yellow, 2: meter.Red},
}

// meterChain is a chain of n meters.
func meterChain(n int) *dataplane.Meter {
	var m *dataplane.Meter
	for i := range n {
		m = &dataplane.Meter{
			Name: fmt.Sprint(n - i), Params: meter.TokenBucket{Rate: meter.BitRate(1e6), Burst: 1e6},
			Aware: true, Then: m,
		}
	}
	return m
}

// keyedChain is a chain of MaxChain keyed meters.
func keyedChain() *dataplane.Meter {
	first := meterChain(image.MaxChain)
	for m, k := first, 0; m != nil; m, k = m.Then, k+1 {
		m.Per, m.Keys = keyKinds[k%len(keyKinds)], 1
		if k%2 == 0 {
			m.Params = meter.SlidingCounter{Limit: maximal, Window: year}
		}
	}
	return first
}

// manyChains is a policy of n classes, each with its own chain of meters.
func manyChains(n, meters int) *dataplane.Policy {
	policy := &dataplane.Policy{}
	for i := range n {
		policy.Classes = append(policy.Classes, dataplane.Class{
			Name:  fmt.Sprint("c", i),
			Match: dataplane.Match{Length: []dataplane.Range{{First: uint64(i), Last: uint64(i)}}},
			Meter: meterChain(meters),
		})
	}
	return policy
}

// hostAddresses is a policy of one class that matches n addresses, none of them adjacent.
func hostAddresses(n int, v6 bool) *dataplane.Policy {
	var m dataplane.Match
	for i := range n {
		a := netip.AddrFrom4([4]byte{10, byte(i >> 15), byte(i >> 7), byte(i << 1)})
		if v6 {
			a = netip.AddrFrom16([16]byte{0x20, 1, 13: byte(i >> 15), 14: byte(i >> 7), 15: byte(i << 1)})
		}
		m.Dst = append(m.Dst, netip.PrefixFrom(a, a.BitLen()))
	}
	return oneClass(dataplane.Class{Match: m})
}

// withLength is a policy of one class with a length rule.
func withLength(rule dataplane.LengthRule) *dataplane.Policy {
	policy := oneClass(dataplane.Class{})
	policy.Length = rule
	return policy
}

// fullPolicy is a policy that matches all fields and uses all actions.
func fullPolicy(r *rand.Rand) *dataplane.Policy {
	policy := manyClasses(r, 300)
	policy.Length = dataplane.LengthRule{Base: dataplane.L1, Overhead: -4, MPU: 90}
	all := []dataplane.Range{{First: 0, Last: 7}}
	prefixes := randomPrefixes(r)
	policy.Classes[0].Match = dataplane.Match{
		Src: prefixes, Dst: prefixes, Proto: all, SPort: all, DPort: all, DSCP: all, VLAN: all, PCP: all,
		Mark: all, EtherType: all, Length: all,
	}
	policy.Classes[0].Meter = keyedChain()
	policy.Classes[0].Red = &dataplane.Action{ECN: dataplane.CEOrDrop, Marks: []dataplane.Mark{
		{Field: dataplane.DSCP, Value: 1}, {Field: dataplane.PCP, Value: 1}, {Field: dataplane.DEI, Value: 1}, {Field: dataplane.MPLSTC, Value: 1}, {Field: dataplane.SKBMark, Value: 1},
	}, Queue: &dataplane.Queue{Config: fullQueue}}
	return policy
}

// fullQueue is a queue that uses all features.
var fullQueue = queue.Config{
	Rate: kerneltest.EightMbit, Bytes: 9000, ECN: true, WRED: [3]queue.Early{{Max: 9000, Probability: 1}},
	CoDel: queue.CoDel{Target: time.Millisecond, Interval: time.Second},
}

// manyClasses is a policy of n classes by prefixes, ports and protocols. Each matches a small part
// of the packets of packetFor.
func manyClasses(r *rand.Rand, n int) *dataplane.Policy {
	policy := &dataplane.Policy{}
	for i := range n {
		c := dataplane.Class{Name: fmt.Sprint("c", i)}
		narrow := func() netip.Prefix {
			if r.IntN(2) == 0 {
				return netip.PrefixFrom(netip.AddrFrom4(randomAddr4(r)), 28+r.IntN(5)).Masked()
			}
			return netip.PrefixFrom(netip.AddrFrom16(randomAddr6(r)), 80+r.IntN(49)).Masked()
		}
		c.Match.Src = []netip.Prefix{narrow()}
		if r.IntN(3) == 0 {
			c.Match.Src = append(c.Match.Src, narrow())
		}
		if r.IntN(3) == 0 {
			c.Match.Dst = []netip.Prefix{
				randomPrefix(r), randomPrefix(r), netip.MustParsePrefix("10.0.0.0/15"),
				netip.MustParsePrefix("2001:db8::/47"),
			}
		}
		port := uint64(r.IntN(60000))
		switch r.IntN(4) {
		case 0:
			c.Match.DPort = []dataplane.Range{{First: port, Last: port + uint64(r.IntN(5000))}}
		case 1:
			c.Match.SPort = []dataplane.Range{{First: port, Last: port}, {First: 1024, Last: 65535}}
		case 2:
			c.Match.Proto = []dataplane.Range{{First: 6, Last: 17}}
		}
		if r.IntN(8) == 0 {
			c.Match.DSCP = []dataplane.Range{{First: 0, Last: uint64(r.IntN(64))}}
		}
		if i%100 == 0 {
			c.Meter = &dataplane.Meter{
				Name: c.Name, Params: meter.TokenBucket{Rate: meter.BitRate(1e6), Burst: 3000},
			}
		}
		policy.Classes = append(policy.Classes, c)
	}
	return policy
}
