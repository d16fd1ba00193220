package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// customerAddrs returns the addresses of a customer: 10.x.y.z and 2001:db8:x:y::/64.
func customerAddrs(i int) (v4, v6 netip.Prefix) {
	a, b := [4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}, [16]byte{0x20, 1, 0xd, 0xb8, 0, byte(i >> 16), byte(i >> 8), byte(i)}
	return netip.PrefixFrom(netip.AddrFrom4(a), 32), netip.PrefixFrom(netip.AddrFrom16(b), 64)
}

// newCustomers returns a pipeline and packets to n customers, by turns IPv4 and IPv6. With
// one, all of them share a meter.
func newCustomers(n int, one bool) (*sources, error) {
	params := meter.TRTCM{CIR: meter.BitRate(1e9), CBS: bucket, PIR: meter.BitRate(1e9), PBS: bucket}
	policy := &dataplane.Policy{Classes: []dataplane.Class{{Name: "all", Meter: &dataplane.Meter{Name: "m", Params: params}}}}
	if !one {
		plan := &dataplane.ServicePlan{Name: "p", Params: params}
		policy.Customers = &dataplane.Customers{}
		for i := range n {
			v4, v6 := customerAddrs(i)
			policy.Customers.List = append(policy.Customers.List, dataplane.Customer{Name: fmt.Sprint(i), Plan: plan, Prefixes: []netip.Prefix{v4, v6}})
		}
		policy.Classes[0].Match.Customer, policy.Classes[0].Meter.Params = true, nil
	}
	plan, err := dataplane.Compile(policy)
	if err != nil {
		return nil, err
	}
	s := &sources{n: uint32(n), now: int64(time.Second), engine: batches{dataplane.NewPipeline(plan)}, verdicts: make([]dataplane.Verdict, burst)}
	v6 := append(append(bytes.Clone(smallFrame[:12]), 0x86, 0xdd, 0x60, 0, 0, 0, 0, 8, 17, 64), make([]byte, 40)...)
	copy(v6[38:], []byte{0x20, 1, 0xd, 0xb8})
	for i := range burst {
		s.packets = append(s.packets, dataplane.Packet{Data: bytes.Clone([][]byte{smallFrame, v6}[i%2]), Link: dataplane.LinkEthernet})
	}
	s.address = func(i int, customer uint32) {
		if i%2 == 0 {
			binary.BigEndian.PutUint32(s.packets[i].Data[30:], 10<<24|customer)
		} else {
			binary.BigEndian.PutUint32(s.packets[i].Data[42:], customer)
		}
	}
	for i := range n / burst { // each customer has had a packet
		if err := s.process(func(k int) uint32 { return uint32(i*burst + k) }); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// overOneCustomer is the time of a packet with n customers against that with one meter for all.
func overOneCustomer(what string, n int) figure {
	with := func(one bool) side {
		return onSource(sync.OnceValues(func() (*sources, error) { return newCustomers(n, one) }), (*sources).random)
	}
	return timeRatio(what, 3, 2, with(false), with(true))
}

func customerFigures() []figure {
	return []figure{
		overOneCustomer("pipeline: 100,000 customers, IPv4 and IPv6, random hits, against one meter for all", 100_000),
		overOneCustomer("pipeline: a million customers, IPv4 and IPv6, random hits, against one meter for all", 1_000_000),
	}
}
