package main

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"sync"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

const (
	numCustomers = 100_000
	numPlans     = 1000
)

// smallFrame6 is an IPv6 UDP frame of 64 bytes without FCS.
var smallFrame6 = func() []byte {
	frame := make([]byte, 64)
	copy(frame, smallFrame[:12])
	copy(frame[12:], []byte{0x86, 0xdd, 0x60, 0, 0, 0, 0, 10, 17, 64})
	frame[59] = 10 // length in the UDP header
	return frame
}()

// customers returns customers with an address and an IPv6 prefix each.
func customers(n int) *dataplane.Customers {
	out := &dataplane.Customers{Key: dataplane.ByDestination}
	for i := range numPlans {
		out.Plans = append(out.Plans, &dataplane.ServicePlan{
			Name:   fmt.Sprint("plan", i),
			Params: meter.TokenBucket{Rate: meter.BitRate(int64(i+1) * 1e9), Burst: bucket},
		})
	}
	for i := range n {
		var v6 [16]byte
		v6[0], v6[1] = 0x20, 0x01
		binary.BigEndian.PutUint32(v6[4:], uint32(i))
		out.List = append(out.List, dataplane.Customer{
			Name: fmt.Sprint(i), Plan: out.Plans[i%numPlans],
			Prefixes: []netip.Prefix{
				netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), 32),
				netip.PrefixFrom(netip.AddrFrom16(v6), 64),
			},
		})
	}
	return out
}

// newSubscribers has a policy with a meter for each customer, or with one meter for all.
func newSubscribers(each, inKernel bool) (*sources, error) {
	class := dataplane.Class{Name: "all", Meter: &dataplane.Meter{Name: "m"}}
	policy := &dataplane.Policy{}
	if each {
		class.Match.Customer, policy.Customers = true, customers(numCustomers)
	} else {
		class.Meter.Params = meter.TokenBucket{Rate: meter.BitRate(1e12), Burst: bucket}
	}
	policy.Classes = []dataplane.Class{class}
	plan, err := compiled.Compile(policy)
	if err != nil {
		return nil, err
	}
	s, err := runPlan(plan, numCustomers, inKernel, smallFrame, smallFrame6)
	if err != nil {
		return nil, err
	}
	s.address = func(i int, customer uint32) {
		if data := s.packets[i].Data; i%2 == 0 {
			binary.BigEndian.PutUint32(data[30:], 10<<24|customer)
		} else {
			binary.BigEndian.PutUint32(data[38:], 0x20010000)
			binary.BigEndian.PutUint32(data[42:], customer)
		}
	}
	return s, nil
}

func subscriberFigures() []figure {
	with := func(each bool) side {
		return onSource(sync.OnceValues(func() (*sources, error) { return newSubscribers(each, true) }),
			(*sources).random)
	}
	return []figure{more("kernel: 100,000 customers (IPv4 and IPv6) over one meter for all, random hits", 300,
		150, with(true), with(false))}
}
