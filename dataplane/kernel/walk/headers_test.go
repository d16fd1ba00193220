package walk

import (
	"encoding/binary"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/kerneltest"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// TestFarHeaders compares the programs with the pipeline for headers beyond a packet's linear
// bytes or beyond the reach of direct access.
func TestFarHeaders(t *testing.T) {
	kerneltest.NeedRoot(t)
	t.Parallel()
	policy := &dataplane.Policy{Classes: []dataplane.Class{
		{
			Name: "port", Match: dataplane.Match{DPort: []dataplane.Range{{First: 80, Last: 80}}},
			Meter: &dataplane.Meter{
				Params: meter.TokenBucket{Rate: meter.BitRate(1e9), Burst: 300_000}, Aware: true,
			},
			Green: &dataplane.Action{
				ECN: dataplane.CE, Marks: []dataplane.Mark{{Field: dataplane.DSCP, Value: 9}},
			},
		},
		{Name: "rest"},
	}}
	var packets []dataplane.Packet
	for n := 1; n <= 16; n++ {
		for _, size := range []byte{0, 30, 100, 221, 255} { // length of a header, units of 8 bytes minus one
			b := ipv6(kerneltest.Be16(ethernet(), 0x86dd), 0x2d, 60, 0, [16]byte{1}, [16]byte{2})
			for i := range n {
				next := byte(60)
				if i == n-1 {
					next = 6
				}
				header := make([]byte, 8*(int(size)+1))
				header[0], header[1] = next, size
				b = append(b, header...)
			}
			b = tcp(b, 0, 1234, 80)
			packets = append(packets,
				dataplane.Packet{Data: b, Link: dataplane.LinkEthernet, Time: int64(len(packets))})
			// Truncated between the ports.
			packets = append(packets, dataplane.Packet{
				Data: b[:len(b)-17], Link: dataplane.LinkEthernet, Time: int64(len(packets)),
			})
		}
	}
	for _, plane := range planes {
		t.Run(plane.name, func(t *testing.T) { followPipeline(t, policy, plane.open(t, policy), packets) })
	}
}

// TestOddHeaders compares the programs with the pipeline for fragments, whose flow has no ports,
// for PPP protocols of one byte, and for truncated IPv4 options.
func TestOddHeaders(t *testing.T) {
	kerneltest.NeedRoot(t)
	t.Parallel()
	m := &dataplane.Meter{
		Params: meter.TokenBucket{Rate: meter.BitRate(8), Burst: 3}, Packets: true,
		Per: dataplane.Key{By: dataplane.ByFlow},
	}
	policy := &dataplane.Policy{Classes: []dataplane.Class{
		{Name: "port", Match: dataplane.Match{DPort: []dataplane.Range{{First: 80, Last: 80}}}, Meter: m},
		{Name: "rest", Meter: m, Green: &dataplane.Action{Marks: []dataplane.Mark{{Field: dataplane.DSCP, Value: 9}}}},
	}}
	var packets []dataplane.Packet
	add := func(b []byte, wire int) {
		packets = append(packets,
			dataplane.Packet{Data: b, WireLen: wire, Link: dataplane.LinkEthernet, Time: int64(len(packets))})
	}
	ports := udp(nil, 1000, 80, 0)
	for range 2 {
		for _, proto := range []byte{6, 17, 1} {
			for _, place := range []uint16{0, 0x2000, 0x2001, 0x1fff, 0x4000, 0x8000} {
				add(append(ipv4(kerneltest.Be16(ethernet(), 0x800), 0, 0, proto, 8, place, from4, to4),
					ports...), 0)
			}
			for _, place := range []uint16{0, 1, 2, 4, 6, 8, 9, 0xfff8} {
				for _, behind := range [][]byte{nil, {proto, 0, 1, 4, 0, 0, 0, 0}} {
					next := proto
					if behind != nil {
						next = 60
					}
					b := ipv6(kerneltest.Be16(ethernet(), 0x86dd), 0, 44, 16+len(behind), from6, to6)
					add(slices.Concat(b, kerneltest.Be16([]byte{next, 0}, place, 0, 1), behind, ports), 0)
					b = ipv6(kerneltest.Be16(ethernet(), 0x86dd), 0, 44, 24+len(behind), from6, to6)
					add(slices.Concat(b, kerneltest.Be16([]byte{44, 0}, place^1, 0, 1),
						kerneltest.Be16([]byte{next, 0}, place, 0, 1), behind, ports), 0)
				}
			}
		}
		for _, proto := range [][]byte{
			{0x21},
			{0x57},
			{0, 0x21},
			{0, 0x57},
			{0xc0, 0x21},
			{0xfd},
			{0x21, 0x21},
			{0x20, 0x21},
			{0x57, 0x57},
		} {
			for _, ip := range [][]byte{
				ipv4(nil, 0, 0, 17, 8, 0, from4, to4), ipv6(nil, 0, 17, 8, from6, to6),
			} {
				b := slices.Concat(kerneltest.Be16(ethernet(), 0x8864, 0x1100, 1, 50), proto, ip, ports)
				for n := range b[14:] {
					add(b[:14+n], 0)
					add(b[:14+n], 100)
				}
			}
		}
		b := append(ipv4(kerneltest.Be16(ethernet(), 0x800), 10, 0, 17, 8, 0, from4, to4), ports...)
		for n := range b[14:] {
			for _, wire := range []int{0, 60, 73, 74, 75, 200} {
				add(b[:14+n], wire)
			}
		}
	}
	for _, plane := range planes {
		t.Run(plane.name, func(t *testing.T) { followPipeline(t, policy, plane.open(t, policy), packets) })
	}
}

// TestLongestPackets compares the programs with the pipeline for lengths near and beyond the
// largest number of 32 bits.
func TestLongestPackets(t *testing.T) {
	kerneltest.NeedRoot(t)
	t.Parallel()
	var packets []dataplane.Packet
	for _, wire := range []int{
		0, 60, 14 + 200, 1<<15 - 1, 1<<31 - 1, 1 << 31, 1<<32 - 1 - 1<<15, 1<<32 - 25, 1<<32 - 24, 1<<32 - 23,
		1<<32 - 1,
	} {
		b := append(ipv4(kerneltest.Be16(ethernet(), 0x800), 0, 0, 17, 8, 0, from4, to4),
			udp(nil, 1000, 80, 0)...)
		packets = append(packets, dataplane.Packet{Data: b, WireLen: wire, Link: dataplane.LinkEthernet})
	}
	for _, base := range []dataplane.LengthBase{dataplane.L3, dataplane.L2, dataplane.L1} {
		for _, overhead := range []int{0, 1 << 15, -1 << 15} {
			rule := dataplane.LengthRule{Base: base, Overhead: overhead}
			policy := &dataplane.Policy{Length: rule, Classes: []dataplane.Class{
				{Name: "short", Match: dataplane.Match{Length: []dataplane.Range{{First: 0, Last: 200}}}},
				{Name: "long", Match: dataplane.Match{Length: []dataplane.Range{{First: 1<<32 - 1, Last: 1<<32 - 1}}}},
				{Name: "rest", Meter: &dataplane.Meter{Params: meter.FixedWindow{Limit: 1 << 34, Window: time.Second}}},
			}}
			t.Run(fmt.Sprintf("%+v", rule), func(t *testing.T) {
				t.Parallel()
				followPipeline(t, policy, walker(7)(t, policy), packets)
			})
		}
	}
}

// TestEveryChecksum compares the programs with the pipeline for every value of the IPv4 header
// checksum, valid or not. The marks change many, few and no bits.
func TestEveryChecksum(t *testing.T) {
	kerneltest.NeedRoot(t)
	t.Parallel()
	dscp := func(value uint32, ecn dataplane.ECN) *dataplane.Policy {
		return oneClass(dataplane.Class{
			Green: &dataplane.Action{
				ECN: ecn, Marks: []dataplane.Mark{{Field: dataplane.DSCP, Value: value}},
			},
		})
	}
	for name, policy := range map[string]*dataplane.Policy{
		"ce":         oneClass(dataplane.Class{Green: &dataplane.Action{ECN: dataplane.CE}}),
		"dscp 63":    dscp(63, dataplane.NoECN),
		"ce, dscp 0": dscp(0, dataplane.CE),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var packets []dataplane.Packet
			for _, tos := range []byte{0x00, 0x01, 0xfc, 0xff} {
				for sum := range 1 << 16 {
					b := ipv4(kerneltest.Be16(ethernet(), 0x800), 0, tos, 17, 0, 0, from4, to4)
					binary.BigEndian.PutUint16(b[24:], uint16(sum))
					packets = append(packets, dataplane.Packet{Data: b, Link: dataplane.LinkEthernet})
				}
			}
			followPipeline(t, policy, walker(512)(t, policy), packets)
		})
	}
}
