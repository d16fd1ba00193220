package walk

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/kerneltest"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// TestTunnels compares every program with the pipeline, for customers, meters and classes by what is in a
// tunnel over UDP. Packets are random tunnels, among parts of the captures.
func TestTunnels(t *testing.T) {
	kerneltest.NeedRoot(t)
	t.Parallel()
	r := kerneltest.Seeded(t)
	all := captured(t)
	for name, policy := range map[string]*dataplane.Policy{
		"customers by VNI":           customersInTunnels(r, dataplane.CustomerByVNI),
		"customers by TEID":          customersInTunnels(r, dataplane.CustomerByTEID),
		"customers by inner address": customersInTunnels(r, dataplane.CustomerByInner),
		"meters by VNI":              metersInTunnels(dataplane.ByVNI),
		"meters by TEID":             metersInTunnels(dataplane.ByTEID),
		"classes":                    classesOfTunnels(),
	} {
		for _, plane := range planes {
			packets := randomTunnels(r, max(kerneltest.Rounds(6000), 2000), all[len(all)-1].Time)
			for range 5 {
				first := r.IntN(len(all) - 40)
				packets = append(packets, all[first:first+40]...)
			}
			t.Run(name+"/"+plane.name, func(t *testing.T) {
				e := plane.open(t, policy)
				if h, ok := e.(*hooked); ok {
					h.checkVerified(t, name)
				}
				followPipeline(t, policy, e, packets)
				stats, err := e.Stats()
				if err != nil {
					t.Fatal(err)
				}
				if total := stats[0].Total(); total.Packets < 10 {
					t.Errorf("%d packets are of the first class", total.Packets)
				}
			})
		}
	}
}

var narrow = meter.TokenBucket{Rate: meter.BitRate(64_000), Burst: 2000}

// customersInTunnels is a policy of four customers.
func customersInTunnels(r *rand.Rand, key dataplane.CustomerKey) *dataplane.Policy {
	plan := &dataplane.ServicePlan{Name: "plan", Params: narrow}
	policy := kerneltest.CustomerPolicy(nil)
	policy.Customers.Key, policy.Customers.Nested = key, key.ByAddress()
	policy.Classes[0].Red = &dataplane.Action{Drop: true}
	for i := range uint64(4) {
		c := dataplane.Customer{Name: fmt.Sprint(i), Plan: plan}
		if key.ByAddress() {
			c.Prefixes = randomPrefixes(r)
		} else {
			c.IDs = []uint64{i, 1<<20 + i}
		}
		policy.Customers.List = append(policy.Customers.List, c)
	}
	if key.ByAddress() { // half of all addresses
		first := &policy.Customers.List[0]
		first.Prefixes = append([]netip.Prefix{
			netip.MustParsePrefix("10.0.0.0/15"), netip.MustParsePrefix("2001:db8::/47"),
		}, first.Prefixes...)
	}
	owner := map[string]string{} // a prefix belongs to one customer
	for i := range policy.Customers.List {
		c := &policy.Customers.List[i]
		kept := c.Prefixes[:0]
		for _, p := range c.Prefixes {
			if name, taken := owner[p.String()]; !taken || name == c.Name {
				owner[p.String()] = c.Name
				kept = append(kept, p)
			}
		}
		c.Prefixes = kept
	}
	return policy
}

func metersInTunnels(by dataplane.KeyField) *dataplane.Policy {
	return oneClass(dataplane.Class{
		Meter: &dataplane.Meter{
			Params: narrow, Per: dataplane.Key{By: by}, Keys: 4096,
		},
		Red: &dataplane.Action{Drop: true},
	})
}

func classesOfTunnels() *dataplane.Policy {
	ranges := func(list ...uint64) (out []dataplane.Range) {
		for i := 0; i < len(list); i += 2 {
			out = append(out, dataplane.Range{First: list[i], Last: list[i+1]})
		}
		return out
	}
	return &dataplane.Policy{Classes: []dataplane.Class{
		{Name: "a", Match: dataplane.Match{VNI: ranges(1, 2, 1<<24-1, 1<<24-1)}},
		{Name: "b", Match: dataplane.Match{TEID: ranges(0, 1)}},
		{Name: "c", Match: dataplane.Match{VNI: ranges(0, 1<<24-1), Proto: ranges(0, 255)}},
		{Name: "d", Match: dataplane.Match{TEID: ranges(3, 1<<32-1)}},
		{Name: "rest"},
	}}
}

// randomTunnels have times from start on, of packets whose tunnels are mostly valid.
func randomTunnels(r *rand.Rand, n int, start int64) []dataplane.Packet {
	out := make([]dataplane.Packet, n)
	for i := range out {
		start += r.Int64N(1e7)
		payload := randomTunnel(r)
		proto := kerneltest.Pick[byte](r, 17, 17, 17, 17, 17, 17, 17, 6, 136)
		port := kerneltest.Pick[uint16](r, 4789, 8472, 6081, 2152, 2152, 4790)
		header := kerneltest.Be16(nil, 1234, port, uint16(8+len(payload)), 0)
		total := len(header) + len(payload)
		b := ethernet()
		if r.IntN(2) == 0 {
			fragment := kerneltest.Pick[uint16](r, 0, 0, 0, 0, 0x2000, 1)
			b = ipv4(kerneltest.Be16(b, 0x800), kerneltest.Pick(r, 0, 0, 3), 0, proto, total, fragment,
				randomAddr4(r), randomAddr4(r))
		} else {
			b = ipv6(kerneltest.Be16(b, 0x86dd), 0, proto, total, randomAddr6(r), randomAddr6(r))
		}
		b = append(append(b, header...), payload...)
		p := dataplane.Packet{Link: dataplane.LinkEthernet, Time: start, Mark: kerneltest.Pick(r, marks...)}
		p.WireLen = len(b) + kerneltest.Pick(r, 0, 0, 0, r.IntN(40))
		if r.IntN(6) == 0 {
			b = b[:r.IntN(len(b)+1)]
		}
		if p.Data = b; r.IntN(10) == 0 { // padding
			p.Data = append(b, make([]byte, max(0, p.WireLen-len(b)))...)
		}
		out[i] = p
	}
	return out
}

// randomTunnel returns what follows the header of UDP: a tunnel of any kind with an IP packet, and sometimes
// something else. The port may be that of another kind.
func randomTunnel(r *rand.Rand) []byte {
	var id [4]byte
	id[kerneltest.Pick(r, 2, 2, 2, 3, 3, 3, 0, 1)] = byte(r.IntN(5))
	inner, version := randomInner(r)
	ethertype := map[int]uint16{4: 0x800, 6: 0x86dd, 0: 0x806}[version]
	frame := randomEthernet(r)
	for range kerneltest.Pick(r, 0, 0, 0, 1, 2, 3) {
		frame = kerneltest.Be16(frame, kerneltest.Pick[uint16](r, 0x8100, 0x88a8, 0x9100), uint16(r.Uint32()))
	}
	frame = append(kerneltest.Be16(frame, ethertype), inner...)
	var b []byte
	switch r.IntN(3) {
	case 0: // VXLAN
		b = append([]byte{kerneltest.Pick[byte](r, 8, 8, 8, 0, 0xff), 0, 0, 0}, id[:]...)
		b = append(b, frame...)
	case 1: // GENEVE
		options := kerneltest.Pick(r, 0, 0, 1, 5, 63)
		b = []byte{kerneltest.Pick[byte](r, 0, 0, 0, 0x40) | byte(options), 0}
		payload := frame
		if r.IntN(2) == 0 {
			payload = inner
			b = kerneltest.Be16(b, kerneltest.Pick(r, ethertype, ethertype, 0))
		} else {
			b = kerneltest.Be16(b, 0x6558)
		}
		b = append(append(b, id[:]...), make([]byte, 4*options)...)
		b = append(b, payload...)
	default: // GTP-U
		flags := kerneltest.Pick[byte](r, 0x30, 0x30, 0x31, 0x32, 0x34, 0x37, 0x20, 0x50)
		b = append([]byte{flags, kerneltest.Pick[byte](r, 255, 255, 255, 254, 1), 0, 0}, id[:]...)
		if flags&7 != 0 {
			extensions := kerneltest.Pick(r, 0, 1, 2, 4, 5)
			if flags&4 == 0 {
				extensions = 0
			}
			kind := func(left int) byte { return kerneltest.Pick[byte](r, 0x85, 0xc0) * byte(min(left, 1)) }
			b = append(b, 0, 1, 2, kind(extensions))
			for ; extensions > 0; extensions-- {
				size := kerneltest.Pick(r, 1, 1, 2, 7)
				header := make([]byte, 4*size)
				header[0], header[len(header)-1] = byte(size), kind(extensions-1)
				if r.IntN(20) == 0 {
					header[0] = kerneltest.Pick[byte](r, 0, 255)
				}
				b = append(b, header...)
			}
		}
		b = append(b, inner...)
	}
	if r.IntN(8) == 0 {
		b = b[:r.IntN(len(b)+1)]
	}
	return b
}

// randomInner returns an IP packet and its version, or other bytes and 0.
func randomInner(r *rand.Rand) (b []byte, version int) {
	payload := make([]byte, r.IntN(100))
	switch r.IntN(5) {
	case 0, 1:
		b, version = ipv4(nil, 0, 0, 17, len(payload), 0, randomAddr4(r), randomAddr4(r)), 4
	case 2, 3:
		b, version = ipv6(nil, 0, 17, len(payload), randomAddr6(r), randomAddr6(r)), 6
	}
	if r.IntN(20) == 0 {
		version = kerneltest.Pick(r, 4, 6)
	}
	return append(b, payload...), version
}
