package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"net/netip"
	"sync"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// customerAddrs returns the addresses of a customer: 10.x.y.z and 2001:db8:x:y::/64.
func customerAddrs(i int) (v4, v6 netip.Prefix) {
	a, b := [4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}, [16]byte{0x20, 1, 0xd, 0xb8, 0, byte(i >> 16), byte(i >> 8), byte(i)}
	return netip.PrefixFrom(netip.AddrFrom4(a), 32), netip.PrefixFrom(netip.AddrFrom16(b), 64)
}

const numPlans = 1000 // of customers

// newCustomers returns a pipeline or a program in the kernel, and packets to n customers, by
// turns IPv4 and IPv6. With one, all of them share a meter.
func newCustomers(n int, one, inKernel bool) (*sources, error) {
	params := func(i int) meter.TRTCM {
		rate := meter.BitRate(int64(1+i) * 1e9)
		return meter.TRTCM{CIR: rate, CBS: bucket, PIR: rate, PBS: bucket}
	}
	policy := &dataplane.Policy{Classes: []dataplane.Class{{Name: "all", Meter: &dataplane.Meter{Name: "m", Params: params(0)}}}}
	if !one {
		policy.Customers = &dataplane.Customers{}
		for i := range numPlans {
			policy.Customers.Plans = append(policy.Customers.Plans, &dataplane.ServicePlan{Name: fmt.Sprint(i), Params: params(i)})
		}
		for i := range n {
			v4, v6 := customerAddrs(i)
			policy.Customers.List = append(policy.Customers.List, dataplane.Customer{
				Name: fmt.Sprint(i), Plan: policy.Customers.Plans[i%numPlans], Prefixes: []netip.Prefix{v4, v6},
			})
		}
		policy.Classes[0].Match.Customer, policy.Classes[0].Meter.Params = true, nil
	}
	plan, err := dataplane.Compile(policy)
	if err != nil {
		return nil, err
	}
	s, size := &sources{n: uint32(n), now: int64(time.Second)}, burst
	if inKernel {
		w, err := kernel.NewWalker(plan, 0)
		if err != nil {
			return nil, err
		}
		s.engine, size = w, w.Batch()
	} else {
		s.engine = batches{dataplane.NewPipeline(plan)}
	}
	s.verdicts = make([]dataplane.Verdict, size)
	v6 := append(append(bytes.Clone(smallFrame[:12]), 0x86, 0xdd, 0x60, 0, 0, 0, 0, 8, 17, 64), make([]byte, 40)...)
	copy(v6[38:], []byte{0x20, 1, 0xd, 0xb8})
	for i := range size {
		s.packets = append(s.packets, dataplane.Packet{Data: bytes.Clone([][]byte{smallFrame, v6}[i%2]), Link: dataplane.LinkEthernet})
	}
	s.address = func(i int, customer uint32) {
		if i%2 == 0 {
			binary.BigEndian.PutUint32(s.packets[i].Data[30:], 10<<24|customer)
		} else {
			binary.BigEndian.PutUint32(s.packets[i].Data[42:], customer)
		}
	}
	for i := range n / size { // each customer has had a packet
		if err := s.process(func(k int) uint32 { return uint32(i*size + k) }); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// withCustomers is the time of a packet with n customers, or with one meter for all.
func withCustomers(n int, one, inKernel bool) side {
	return onSource(sync.OnceValues(func() (*sources, error) { return newCustomers(n, one, inKernel) }), (*sources).random)
}

// overOneCustomer is the time of a packet with n customers against that with one meter for all.
func overOneCustomer(what string, n int, bar, aim float64) figure {
	return timeRatio(what, bar, aim, withCustomers(n, false, false), withCustomers(n, true, false))
}

// kernelCustomerFigures are those of the program in the kernel: the difference in ns.
func kernelCustomerFigures() []figure {
	f := amount("kernel: 100,000 customers, IPv4 and IPv6, over one meter for all, random hits", 300, 150, " ns",
		withCustomers(100_000, false, true), withCustomers(100_000, true, true))
	f.measured = func(ours, one float64) float64 { return ours - one }
	return []figure{f}
}

func customerFigures() []figure {
	return []figure{
		overOneCustomer("pipeline: 100,000 customers, IPv4 and IPv6, random hits, against one meter for all", 100_000, 3, 2),
		overOneCustomer("pipeline: a million customers, IPv4 and IPv6, random hits, against one meter for all", 1_000_000, math.Inf(1), noAim),
	}
}
