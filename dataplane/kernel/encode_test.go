package kernel

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/bpf"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

func oneClass(c dataplane.Class) *dataplane.Policy {
	c.Name = "c"
	return &dataplane.Policy{Classes: []dataplane.Class{c}}
}

// chained is n meters, one after the other.
func chained(n int) *dataplane.Meter {
	var m *dataplane.Meter
	for i := range n {
		m = &dataplane.Meter{Name: fmt.Sprint(n - i), Params: meter.TokenBucket{Rate: bps(1e6), Burst: 1e6}, Aware: true, Then: m}
	}
	return m
}

// classes are n of them, each with a chain of so many meters of its own.
func classes(n, meters int) *dataplane.Policy {
	policy := &dataplane.Policy{}
	for i := range n {
		policy.Classes = append(policy.Classes, dataplane.Class{
			Name:  fmt.Sprint("c", i),
			Match: dataplane.Match{Length: []dataplane.Range{{First: uint32(i), Last: uint32(i)}}},
			Meter: chained(meters),
		})
	}
	return policy
}

// hosts are classes of n addresses, none beside another.
func hosts(n int, v6 bool) *dataplane.Policy {
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

// TestRefusals holds that what the programs cannot do is refused by the field
// that asks for it, with a reason.
func TestRefusals(t *testing.T) {
	t.Parallel()
	slow := &dataplane.Queue{Name: "slow", Config: queue.Config{Rate: bps(1e6), Packets: 10}}
	toMark := &dataplane.Action{Marks: []dataplane.Mark{{Field: dataplane.SKBMark, Value: 1}}}
	fromMark := &dataplane.Meter{Params: meter.TokenBucket{Rate: bps(1e6), Burst: 1e6}, Aware: true, PreColor: dataplane.PreColor{From: dataplane.SKBMark}}
	byMark := dataplane.Match{Mark: []dataplane.Range{{First: 1, Last: 2}}}
	behind := chained(2)
	behind.Then.PreColor.From = dataplane.SKBMark
	for _, test := range []struct {
		name   string
		policy *dataplane.Policy
		hooks  []entry // that refuse it
		field  string
		object any    // its type
		reason string // a part of it
	}{
		{"queue", oneClass(dataplane.Class{Yellow: &dataplane.Action{Queue: slow}}), []entry{xdpEntry}, "queue", &dataplane.Action{}, string(UseTC)},
		{"classes", classes(MaxClasses+1, 0), allEntries, "classes", &dataplane.Policy{}, "1025 are more than the 1024"},
		{"chain", oneClass(dataplane.Class{Meter: chained(MaxChain + 1)}), allEntries, "then", &dataplane.Meter{}, "chain of 9"},
		{"meters", classes(maxStates/2/3+1, 3), allEntries, "meters", &dataplane.Policy{}, "2049 are more than the 2048"},
		{"match mark", oneClass(dataplane.Class{Match: byMark}), []entry{xdpEntry}, "mark", &dataplane.Match{}, string(UseTC)},
		{"write mark", oneClass(dataplane.Class{Red: toMark}), []entry{xdpEntry}, "mark", &dataplane.Action{}, string(UseTC)},
		{"precolor mark", oneClass(dataplane.Class{Meter: fromMark}), []entry{xdpEntry}, "precolor", &dataplane.Meter{}, string(UseTC)},
		{"precolor mark behind", oneClass(dataplane.Class{Meter: behind}), []entry{xdpEntry}, "precolor", &dataplane.Meter{}, string(UseTC)},
		{"bounds", hosts(maxBounds/2+1, false), allEntries, "classes", &dataplane.Policy{}, "bounds"},
		{"bounds of IPv6", hosts(maxBounds/2+1, true), allEntries, "classes", &dataplane.Policy{}, "bounds"},
	} {
		for _, hook := range allEntries {
			_, err := encodePolicy(test.policy, hook, "")
			if !slices.Contains(test.hooks, hook) {
				if err != nil {
					t.Errorf("%s at hook %d: %v", test.name, hook, err)
				}
				continue
			}
			faults := fieldErrors(err)
			if len(faults) != 1 {
				t.Errorf("%s at hook %d: %v: want one fault", test.name, hook, err)
				continue
			}
			if f := faults[0]; f.Field != test.field || fmt.Sprintf("%T", f.Object) != fmt.Sprintf("%T", test.object) || !strings.Contains(f.Reason+": "+string(remedyOf(err)), test.reason) {
				t.Errorf("%s at hook %d: %T %s: %s: %s", test.name, hook, f.Object, f.Field, f.Reason, remedyOf(err))
			}
		}
	}
}

var allEntries = []entry{egressEntry, ingressEntry, xdpEntry}

func withLength(rule dataplane.LengthRule) *dataplane.Policy {
	policy := oneClass(dataplane.Class{})
	policy.Length = rule
	return policy
}

// TestAllFaults holds that all that is wrong is said at once.
func TestAllFaults(t *testing.T) {
	t.Parallel()
	policy := oneClass(dataplane.Class{
		Match: dataplane.Match{Mark: []dataplane.Range{{First: 1, Last: 2}}},
		Meter: chained(MaxChain + 1),
		Green: &dataplane.Action{Marks: []dataplane.Mark{{Field: dataplane.SKBMark, Value: 1}}},
	})
	_, err := encodePolicy(policy, xdpEntry, "")
	var got []string
	for _, f := range fieldErrors(err) {
		got = append(got, f.Field)
	}
	slices.Sort(got)
	if want := []string{"mark", "mark", "then"}; !slices.Equal(got, want) {
		t.Errorf("%v: want %v", got, want)
	}
}

// TestLimits holds that what is at a limit, but not above, works.
func TestLimits(t *testing.T) {
	needRoot(t)
	t.Parallel()
	for _, test := range []struct {
		name   string
		policy *dataplane.Policy
	}{
		{"classes and meters", classes(MaxClasses, maxStates/2/MaxClasses)},
		{"chain", oneClass(dataplane.Class{Meter: chained(MaxChain)})},
		{"bounds", hosts(maxBounds/2-1, false)},
		{"bounds of IPv6", hosts(maxBounds/2-1, true)},
		{"long", withLength(dataplane.LengthRule{Base: dataplane.L1, Overhead: 1 << 15, MPU: 1 << 15})},
		{"short", withLength(dataplane.LengthRule{Overhead: -1 << 15})},
	} {
		t.Run(test.name, func(t *testing.T) {
			var packets []dataplane.Packet
			for i := range 100 {
				b := ipv4(be16(ethernet(), 0x800), 0, 0, 17, 26+11*i, 0, from4, [4]byte{10, byte(i) & 1, byte(i), byte(i)})
				packets = append(packets, dataplane.Packet{Data: append(b, make([]byte, 26+11*i)...), Link: dataplane.LinkEthernet})
				b = ipv6(be16(ethernet(), 0x86dd), 0, 17, 8, from6, [16]byte{0x20, 1, 13: byte(i) & 1, 14: byte(i), 15: byte(i)})
				packets = append(packets, dataplane.Packet{Data: append(b, make([]byte, 8)...), Link: dataplane.LinkEthernet})
			}
			for _, plane := range planes {
				switch {
				case plane.name == "walk-1", inVM && plane.name != "walk-7":
				case plane.name != "walk-512" && plane.name != "walk-7" && len(metersOf(test.policy)) > 100: // to read them takes long
					plane.open(t, test.policy)
				default:
					follow(t, test.policy, plane.open(t, test.policy), packets)
				}
			}
		})
	}
}

// TestLoads holds that programs load as they are attached, not handed anything,
// and with room to spare: older kernels look at several times as many
// instructions before they are content.
func TestLoads(t *testing.T) {
	needRoot(t)
	t.Parallel()
	r := seeded(t)
	policies := fixed()
	policies["many"] = manyClasses(r, 300)
	policies["all"] = everything(r)
	policies["queues"] = allInto(askingAll)
	const most = 1_000_000 // which the kernel takes
	for name, policy := range policies {
		for _, hook := range allEntries {
			for _, link := range []dataplane.LinkType{dataplane.LinkEthernet, dataplane.LinkRaw} {
				if hook == xdpEntry && usesMark(policy) || policy.Length.Accepts(link) != nil ||
					inVM && (hook != egressEntry || link == dataplane.LinkRaw || name != "frames" && name != "all" && name != "queues") {
					continue
				}
				begin := time.Now()
				h := newHooked(t, policy, hook, func(c *bpf.ShaperConstants) { c.Handed, c.Link = 0, uint8(link) })
				took := time.Since(begin)
				info, err := h.program.Info()
				if err != nil {
					t.Fatal(err)
				}
				n, _ := info.VerifiedInstructions()
				t.Logf("%s, hook %d, link %v: %d instructions were verified in %v", name, hook, link, n, took.Round(time.Millisecond))
				if n > most/5 && !inVM {
					t.Errorf("%s, hook %d, link %v: %d instructions were verified: want at most a fifth of %d", name, hook, link, n, most)
				}
			}
		}
	}
}

// everything is a policy that asks for all fields, and for all that can be done
// to a packet.
func everything(r *rand.Rand) *dataplane.Policy {
	policy := manyClasses(r, 300)
	policy.Length = dataplane.LengthRule{Base: dataplane.L1, Overhead: -4, MPU: 90}
	all := []dataplane.Range{{First: 0, Last: 7}}
	prefixes := randomPrefixes(r)
	policy.Classes[0].Match = dataplane.Match{
		Src: prefixes, Dst: prefixes, Proto: all, SPort: all, DPort: all, DSCP: all, VLAN: all, PCP: all, Mark: all, EtherType: all, Length: all,
	}
	policy.Classes[0].Meter = keyedChain()
	policy.Classes[0].Red = &dataplane.Action{ECN: dataplane.CEOrDrop, Marks: []dataplane.Mark{
		{Field: dataplane.DSCP, Value: 1}, {Field: dataplane.PCP, Value: 1}, {Field: dataplane.DEI, Value: 1}, {Field: dataplane.MPLSTC, Value: 1}, {Field: dataplane.SKBMark, Value: 1},
	}, Queue: &dataplane.Queue{Config: askingAll}}
	return policy
}

// askingAll is a queue that asks for all that one can do.
var askingAll = queue.Config{
	Rate: mega, Bytes: 9000, ECN: true, WRED: [3]queue.Early{{Max: 9000, Probability: 1}},
	CoDel: queue.CoDel{Target: time.Millisecond, Interval: time.Second},
}
