package kernel

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/kerneltest"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/qdisc"
	"github.com/a-seed-32e5a53f/shaper/dataplane/nettest"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// leafNet is a policy with customers on links: site, with ap-0 to ap-2 below it.
type leafNet struct {
	links       []*dataplane.Link
	policy      *dataplane.Policy
	hosts, fair dataplane.Key
}

func newLeafNet(customers int, hosts, fair dataplane.KeyField) *leafNet {
	n := &leafNet{
		links: []*dataplane.Link{{Name: "site", Rate: meter.BitRate(100e6)}},
		hosts: dataplane.Key{By: hosts}, fair: dataplane.Key{By: fair},
	}
	for i := range 3 {
		n.links = append(n.links,
			&dataplane.Link{Name: fmt.Sprint("ap-", i), Link: n.links[0], Rate: meter.BitRate(20e6)})
	}
	var list []dataplane.Customer
	for i := range customers {
		addr := netip.AddrFrom4([4]byte{10, 9, byte(i >> 8), byte(i)})
		list = append(list, dataplane.Customer{
			Name:     fmt.Sprint("c", i),
			Prefixes: []netip.Prefix{netip.PrefixFrom(addr, 32)},
			Plan:     n.plan(1+i%3, 10e6),
		})
	}
	n.policy = kerneltest.CustomerPolicy(list)
	n.policy.Links = n.links
	return n
}

// plan returns a plan on a link with a rate in bit/s.
func (n *leafNet) plan(link int, rate int64) *dataplane.ServicePlan {
	p := &dataplane.ServicePlan{
		Name:  "plan",
		Queue: &queue.Config{Rate: meter.BitRate(rate), Time: 200 * time.Millisecond}, Link: n.links[link],
		Fair: n.fair, Hosts: n.hosts,
	}
	if n.hosts.By != dataplane.NoKey { // cake has CoDel: a target that these packets never reach
		p.Queue.CoDel, p.Queue.ECN = queue.CoDel{Target: time.Second, Interval: time.Second}, true
	}
	return p
}

// frames returns UDP frames to a customer, each with a number.
func (n *leafNet) frames(customer, first, count int) (out [][]byte) {
	for i := range count {
		frame := make([]byte, 14+1000)
		frame[0], frame[6] = 2, 2
		frame[12], frame[13] = 8, 0
		ip := frame[14:]
		ip[0], ip[8], ip[9] = 0x45, 64, 17
		binary.BigEndian.PutUint16(ip[2:], 1000)
		copy(ip[12:], []byte{10, 0, 0, 1, 10, 9, byte(customer >> 8), byte(customer)})
		binary.BigEndian.PutUint32(ip[28:], uint32(first+i))
		out = append(out, frame)
	}
	return out
}

// numbersOf returns the numbers of the frames of a customer, in order of arrival.
func numbersOf(frames []nettest.Frame, customer int) (out []int) {
	for _, f := range frames {
		if ip := f.Data[14:]; len(ip) > 32 && ip[16] == 10 && ip[17] == 9 && int(ip[19]) == customer {
			out = append(out, int(binary.BigEndian.Uint32(ip[28:])))
		}
	}
	return out
}

// TestQueueLeaves checks the leaves of customers on links through changes under load: each is below the class
// of its link, a change sends one class, a customer that moves leaves its packets behind until they are sent,
// and nothing is lost.
func TestQueueLeaves(t *testing.T) {
	kerneltest.NeedRoot(t)
	t.Parallel()
	for _, test := range []struct {
		kind        string // of the qdiscs in the leaves
		hosts, fair dataplane.KeyField
	}{
		{"bfifo", dataplane.NoKey, dataplane.NoKey},
		{qdisc.FQCoDel, dataplane.NoKey, dataplane.ByFlow},
		{qdisc.Cake, dataplane.ByDst, dataplane.ByFlow},
	} {
		t.Run(test.kind, func(t *testing.T) {
			t.Parallel()
			for _, kind := range []string{qdisc.HTB, test.kind} {
				if err := qdisc.Have(kind); err != nil && kind != "bfifo" {
					t.Skip(err)
				}
			}
			testLeaves(t, newLeafNet(6, test.hosts, test.fair), test.kind)
		})
	}
}

func testLeaves(t *testing.T, n *leafNet, kind string) {
	w := nettest.NewWire(t)
	plan := kerneltest.Compiled(t, n.policy)
	sniffer, sent := w.Far.Sniff("v0"), 0
	send := func(count int) {
		t.Helper()
		w.Near.Inject("v0", n.frames(1, sent, count)...)
		sent += count
	}
	w.Do(func() error {
		s, _, err := Attach(Config{Interface: "v0", Direction: Egress, Hook: TC}, plan)
		if err != nil {
			return err
		}
		defer s.Close()
		defer func() { _ = s.Detach() }()
		// places returns the rates and links of the leaves below links, by class.
		places := func() (out []string) {
			classes, err := qdisc.Classes(s.Place.Index)
			if err != nil {
				t.Fatal(err)
			}
			for id, parent := range classes {
				for i, link := range s.Links[1:] {
					if parent == qdisc.Handle(link) {
						out = append(out, fmt.Sprintf("%x ap-%d", id, i))
					}
				}
			}
			slices.Sort(out)
			return out
		}
		set := func(name string, to *dataplane.ServicePlan) {
			t.Helper()
			service, err := plan.Variant(plan.Customers.Service(plan.Customers.Number(name)), to, false)
			if err != nil {
				t.Fatal(err)
			}
			plan = plan.WithServices(map[uint32]*compiled.Service{plan.Customers.Number(name): service})
			if err := s.SetCustomerPlans([]compiled.CustomerService{{Name: name, Plan: service}},
				func() *compiled.Plan { return plan }); err != nil {
				t.Fatal(err)
			}
		}
		await := func(most uint32) { // until at most so many packets are queued
			for {
				n, err := qdisc.Queued(s.Place.Index)
				if err != nil {
					t.Fatal(err)
				}
				if n <= most {
					return
				}
				time.Sleep(time.Millisecond)
			}
		}
		before := places()
		if len(before) != 6 {
			t.Errorf("got leaves %q, want 6", before)
		}
		send(100)
		set("c1", n.plan(2, 5e6))
		if got := places(); !slices.Equal(got, before) {
			t.Errorf("a rate: got leaves %q, want %q", got, before)
		}
		if !s.treeKnown() {
			t.Error("the owner does not know the tree after a change")
		}
		send(20)
		set("c1", n.plan(3, 5e6)) // 120 packets of 1000 bytes at 5 Mbit/s take 0.2 s
		send(20)
		retire := func() {
			for end := time.Now().Add(kerneltest.Patient); len(s.retired) > 0 && time.Now().Before(end); {
				time.Sleep(time.Millisecond)
				if err := s.PrepareCustomerPlans(); err != nil {
					t.Fatal(err)
				}
			}
		}
		retire()
		after := places()
		if len(after) != 6 || slices.Equal(after, before) {
			t.Errorf("after the move: got leaves %q, before %q", after, before)
		}
		// A leaf that dropped packets is left.
		w.Near.Inject("v0", n.frames(1, 2000, 600)...)
		was, err := s.Customer("c1")
		if err != nil {
			return err
		}
		set("c1", n.plan(2, 5e6))
		retire()
		if now, err := s.Customer("c1"); err != nil || now.Dropped.Packets < was.Dropped.Packets ||
			was.Dropped.Packets == 0 {
			t.Errorf("drops before a move: %+v, after: %+v, error %v", was.Dropped, now.Dropped, err)
		}
		// A reload moves a leaf that dropped packets.
		w.Near.Inject("v0", n.frames(1, 1000, 600)...)
		dropped, err := s.Customer("c1")
		if err != nil {
			return err
		}
		await(10) // packets, which leave in far less than the second that a reload waits
		n.policy.Customers.List[1].Plan = n.plan(1, 10e6)
		n.links[1].Rate = meter.BitRate(30e6)
		plan = kerneltest.Compiled(t, n.policy)
		if _, err := s.Reload(plan, nil, time.Time{}); err != nil {
			return err
		}
		if got := places(); len(got) != 6 {
			t.Errorf("after a reload: got leaves %q, want 6", got)
		}
		if now, err := s.Customer("c1"); err != nil || now.Dropped.Packets < dropped.Dropped.Packets ||
			dropped.Dropped.Packets == 0 {
			t.Errorf("drops before a reload: %+v, after: %+v, error %v", dropped.Dropped, now.Dropped, err)
		}
		set("c1", n.plan(1, 8e6)) // the known tree is that of the reload
		if s.Lost != (Discarded{}) {
			t.Errorf("lost %v", s.Lost)
		}
		await(0)
		// Another program removes a class: the next change makes it again.
		id := places()[0][:8]
		w.Near.Run("tc", "class", "del", "dev", "v0", "classid", id[:4]+":"+id[4:])
		if problems, err := s.Problems(); err != nil || len(problems) != 1 {
			t.Errorf("got problems %v, error %v, want a missing class", problems, err)
		}
		if err := s.Repair(func(json.RawMessage) (*compiled.Plan, error) { return plan, nil }); err != nil {
			t.Error(err)
		}
		if problems, err := s.Problems(); err != nil || len(problems) != 0 {
			t.Errorf("after a repair: got problems %v, error %v", problems, err)
		}
		// A full leaf drops, and the counters show it: 200 ms of 8 Mbit/s hold 200 packets.
		send(300)
		await(0) // cake and fq_codel drop while they send, too
		counters, err := s.Customers(plan.Customers)
		if err != nil {
			return err
		}
		one, err := s.Customer("c1")
		if err != nil {
			return err
		}
		classes, err := s.Stats()
		if err != nil {
			return err
		}
		if shown := w.Shown(); strings.Count(shown, "qdisc "+kind+" ") != 6 {
			t.Errorf("got qdiscs\n%s\nwant %s in 6 leaves", shown, kind)
		}
		d := counters[1].Dropped.Packets
		if d <= dropped.Dropped.Packets || d > 1450 || one != counters[1] || classes[0].Behind.Packets != d {
			t.Errorf("got %d drops, of the customer alone %+v, of its class %+v, want the same, more than %d",
				d, one, classes[0].Behind, dropped.Dropped.Packets)
		}
		return nil
	})
	frames := sniffer.Stop()
	got := numbersOf(frames, 1)
	for i := range 140 {
		if !slices.Contains(got, i) {
			t.Errorf("packet %d is lost", i)
		}
	}
	slices.Sort(got)
	if n := len(slices.Compact(slices.Clone(got))); n != len(got) {
		t.Errorf("%d packets arrived twice", len(got)-n)
	}
}
