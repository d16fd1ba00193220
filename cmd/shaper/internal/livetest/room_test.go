package livetest

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// policyOfClasses returns a policy with n classes whose last class matches all traffic.
func policyOfClasses(n int) *dataplane.Policy {
	p := &dataplane.Policy{}
	for i := range n - 1 {
		p.Classes = append(p.Classes, dataplane.Class{
			Name:  fmt.Sprint("class ", i),
			Match: dataplane.Match{Mark: []dataplane.Range{{First: uint64(i + 1), Last: uint64(i + 1)}}},
			Meter: &dataplane.Meter{
				Name:   fmt.Sprint("class ", i),
				Params: meter.TokenBucket{Rate: meter.BitRate(8000), Burst: 1500},
			},
		})
	}
	p.Classes = append(p.Classes, dataplane.Class{
		Name: "all",
		Meter: &dataplane.Meter{
			Name: "all", Params: meter.TokenBucket{Rate: meter.BitRate(1e12), Burst: 1e9},
		},
	})
	return p
}

// TestLiveReloadMapSizes checks that no packet is lost or counted twice while policies with
// more and fewer classes, and so larger and smaller maps, replace each other under traffic. The
// shaper that attached and one that found it reload alternately.
func TestLiveReloadMapSizes(t *testing.T) {
	skipInVM(t)
	m := placement{"tcx", "egress"}
	m.skipIfUnsupported(t)
	p := newPair(t)
	_, at := p.addresses(m, false)
	listenUDP(t, p.far, at) // no ICMP errors reach the senders
	inNear := func(f func() error) {
		t.Helper()
		var err error
		p.near.Do(func() { err = f() })
		if err != nil {
			t.Fatal(err)
		}
	}
	find := func() *kernel.Shaper {
		t.Helper()
		var found []*kernel.Shaper
		inNear(func() (err error) {
			found, err = kernel.List()
			return err
		})
		if len(found) != 1 {
			t.Fatalf("%d shapers are listed: want one", len(found))
		}
		return found[0]
	}
	var s *kernel.Shaper
	inNear(func() (err error) {
		s, _, err = kernel.Attach(kernel.Config{Interface: "v0", Direction: kernel.Egress, Hook: kernel.TCX},
			compilePlan(t, policyOfClasses(1)))
		return err
	})
	other := find()
	defer other.Close()
	var stop atomic.Bool
	sent := make(chan packetCount)
	const senders, size = 2, 100
	for range senders {
		conn := newSender(t, p.near, at, 0, 0)
		go func() {
			var c packetCount
			for payload := make([]byte, size-28); !stop.Load(); {
				if _, err := conn.Write(payload); err == nil {
					c.Packets++
					c.Bytes += size
				}
				if c.Packets%16 == 0 {
					time.Sleep(time.Millisecond / 4) // leaves the CPUs to the verifier
				}
			}
			sent <- c
		}()
	}
	counted := func(s *kernel.Shaper) (c packetCount) {
		t.Helper()
		all, err := s.Stats()
		if err != nil {
			t.Error(err)
		}
		for i := range all {
			total := all[i].Total()
			c.Packets += total.Packets
			c.Bytes += total.Bytes
		}
		return c
	}
	last := packetCount{}
	for _, n := range []int{1, 20, 3, 100, 400, 2, 1024, 1} {
		s, other = other, s
		inNear(func() error {
			_, err := s.Reload(compilePlan(t, policyOfClasses(n)), nil, time.Time{})
			return err
		})
		now := counted(s)
		if now.Packets < last.Packets {
			t.Errorf("%d classes: counted %+v, before the reload %+v", n, now, last)
		}
		eventually(t, func() error { // some traffic for each policy
			if c := counted(s); c.Packets < now.Packets+100 {
				return fmt.Errorf("counted %+v, of them %+v before the policy of %d classes", c, now, n)
			}
			return nil
		})
		last = now
	}
	stop.Store(true)
	want := packetCount{}
	for range senders {
		c := <-sent
		want.Packets += c.Packets
		want.Bytes += c.Bytes
	}
	if got := counted(s); got != want {
		t.Errorf("counted %+v of %+v", got, want)
	}
	found := find()
	defer found.Close()
	if got := counted(found); got != want {
		t.Errorf("a shaper found by kernel.List counts %+v of %+v", got, want)
	}
	inNear(s.Detach)
}
