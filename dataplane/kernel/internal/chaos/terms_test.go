//go:build linux && amd64

package chaos

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
)

// Terms are how customers and a queue are treated other than in their policy, as text: "c1 off, c2
// closed, slow 40mbit". They have two sources that must agree: packets and the kernel's classes, and the
// list of changes.
const (
	unchanged = ""          // all as in the policy
	offTerm   = "off"       // every packet is dropped
	closed    = "closed"    // packets above the burst of plan closed are dropped
	slowTerm  = "slow "     // and the rate of queue slow
	scheduled = "c3 closed" // the schedule of policies with rules, which no list contains
)

// customers are the addresses at the far end, by name.
var customers = map[string]net.IP{"c1": {10, 0, 0, 11}, "c2": {10, 0, 0, 12}, "c3": {10, 0, 0, 13}}

// Sizes of UDP payloads: the burst of plan closed, 500 bytes, is between them.
const (
	smallPayload = 8
	largePayload = 1000
)

// customersTable is the file of customers of policies with a c in the name. In policies with rules, c1 has a
// quota and c3 a schedule.
const customersTable = "customer,address,plan\nc1,10.0.0.11,counted\nc2,10.0.0.12,open\nc3,10.0.0.13,timed\n"

// quotaBytes is the quota of c1. The packets of 100 calls of customerTerms do not use it up.
const quotaBytes = 100 * (largePayload + smallPayload + 100)

// withCustomers adds customers to a policy; with rules, two of their plans have a quota or a schedule.
func withCustomers(policy string, rules bool) string {
	quota, when := "", ""
	if rules {
		quota = fmt.Sprintf(", quota: {limit: %dB, every: month, then: closed}", quotaBytes)
		when = `, when: {at: "00:00-24:00", plan: closed}`
	}
	const limited = "  - name: limited\n"
	policy = strings.Replace(policy, limited, "  - {name: customers, per: customer, meter: plan}\n"+limited,
		1)
	return policy + "customers: {file: c.csv, key: dst}\nplans:\n" +
		"  open: {type: token-bucket, rate: 1gbit, burst: 1MB}\n" +
		"  counted: {type: token-bucket, rate: 1gbit, burst: 1MB" + quota + "}\n" +
		"  timed: {type: token-bucket, rate: 1gbit, burst: 1MB" + when + "}\n" +
		"  closed: {type: token-bucket, rate: 80kbit, burst: 500B}\n"
}

// changeFile is a file of changes for shaper set --file.
const (
	changeFile     = "changes.txt"
	changeFileText = "customer c1 off\ncustomer c2 plan=closed\n"
)

// change is a change as shaper set --json prints it.
type change struct {
	Kind, Name, Plan, State string

	Parameters map[string]string
	Off        *bool
	Until      time.Time
}

// States of changes that are not simply in force.
const (
	interrupted = "interrupted" // by a kill: perhaps in force
	hidden      = "not in force"
)

// termsOf returns the terms that a list of changes implies.
func termsOf(list []change) string {
	var out []string
	for _, c := range list {
		switch {
		case strings.HasPrefix(c.State, hidden):
		case c.Kind == "queue" && c.Parameters["rate"] != "":
			out = append(out, slowTerm+c.Parameters["rate"])
		case c.Off != nil && *c.Off:
			out = append(out, c.Name+" "+offTerm)
		case c.Plan == closed, c.Parameters["burst"] != "":
			out = append(out, c.Name+" "+closed)
		}
	}
	slices.Sort(out)
	return strings.Join(out, ", ")
}

// unsure are the names in a list whose change was interrupted.
func unsure(list []change) (names []string) {
	for _, c := range list {
		if strings.HasPrefix(c.State, interrupted) {
			names = append(names, c.Name)
		}
	}
	return names
}

// without returns terms without those of names.
func without(terms string, names []string) string {
	list := slices.DeleteFunc(strings.Split(terms, ", "), func(term string) bool {
		name, _, _ := strings.Cut(term, " ")
		return slices.Contains(names, name)
	})
	return strings.Join(list, ", ")
}

// listed returns the changes that shaper set lists. ok is false if there is no shaper. The fault may be
// in the answer of the victim, so a failure is repeated once.
func (a *attempt) listed() (list []change, ok bool) {
	r, _ := a.w.runCommand("set", a.s.device(), "--json")
	if r.code() != 0 {
		r, _ = a.w.runCommand("set", a.s.device(), "--json")
	}
	if r.code() != 0 {
		return nil, false
	}
	for d := json.NewDecoder(strings.NewReader(r.stdout())); ; {
		var c change
		err := d.Decode(&c)
		if err == io.EOF {
			return list, true
		}
		if err != nil {
			a.problem("list: not JSON: %v: %s", err, r.stdout())
			return nil, false
		}
		list = append(list, c)
	}
}

// terms returns the terms in force. A change may be in progress.
func (w *world) terms() string {
	found := ""
	for range 3 {
		var seen [2]string
		for i := range seen {
			seen[i] = strings.Join(append(w.prober.customerTerms(), w.queueTerms()...), ", ")
		}
		if found = seen[0]; found == seen[1] {
			break
		}
		found = fmt.Sprintf("%s, then %s", seen[0], seen[1])
	}
	return found
}

// customerTerms sends a small and a large packet to each customer.
func (p *prober) customerTerms() (out []string) {
	from, far := &p.side[0], &p.side[1]
	p.round++
	send := func(conn *net.UDPConn, address net.IP, size int) {
		payload := make([]byte, size)
		binary.NativeEndian.PutUint64(payload, p.round)
		_, _ = conn.WriteToUDP(payload, &net.UDPAddr{IP: address, Port: portOther}) // a drop may be an error
	}
	names := slices.Sorted(maps.Keys(customers))
	for _, size := range []int{smallPayload, largePayload} {
		for _, name := range names {
			send(from.sender, customers[name], size)
		}
	}
	send(from.sender, far.address, smallPayload)
	if !p.arrives(far, portOther, patience) {
		return []string{"no packet passes"}
	}
	limit := grace()
	for _, name := range names {
		small, large := p.reaches(name, &limit)
		switch {
		case !small && !large:
			out = append(out, name+" "+offTerm)
		case small && !large:
			out = append(out, name+" "+closed)
		case !small:
			out = append(out, name+" drops small packets only")
		}
	}
	return out
}

// reaches reports which packets of this round reach a customer within limit. It is 0 once a packet has
// not arrived: the others had the same time.
func (p *prober) reaches(name string, limit *time.Duration) (small, large bool) {
	conn := p.customers[name]
	_ = conn.SetReadDeadline(time.Now().Add(*limit + time.Millisecond))
	for b := make([]byte, 2*largePayload); !small || !large; {
		n, err := conn.Read(b)
		if err != nil {
			*limit = 0
			break
		}
		if binary.NativeEndian.Uint64(b) == p.round {
			small, large = small || n == smallPayload, large || n == largePayload
		}
	}
	return small, large
}

// spend sends c1 twice the bytes of its quota, a few at a time.
func (p *prober) spend() {
	payload := make([]byte, largePayload)
	for range 2 * quotaBytes / largePayload {
		_, _ = p.side[0].sender.WriteToUDP(payload, &net.UDPAddr{IP: customers["c1"], Port: portOther})
		time.Sleep(time.Millisecond)
	}
}

// changedRate is a rate of queue slow that no policy has, in bytes per second.
const (
	changedRate     = 5_000_000
	changedRateTerm = slowTerm + "40mbit"
)

// queueTerms returns whether the leaf of queue slow has the changed rate, within the 1/16384 by which a
// leaf is faster.
func (w *world) queueTerms() []string {
	var classes []netlink.Class
	w.inside(func() {
		if l, err := netlink.LinkByName("v0"); err == nil {
			classes, _ = retry(func() ([]netlink.Class, error) { return netlink.ClassList(l, 0) })
		}
	})
	for _, c := range classes {
		if h, ok := c.(*netlink.HtbClass); ok && h.Rate >= changedRate &&
			h.Rate <= changedRate+changedRate/1000 {
			return []string{changedRateTerm}
		}
	}
	return nil
}

// withSchedule adds the terms of the schedule, which no list contains, to those of a list.
func (s *scenario) withSchedule(listed string) string {
	switch {
	case !s.ruled:
		return listed
	case listed == "":
		return scheduled
	}
	return listed + ", " + scheduled
}

// judgeTerms checks that the list of changes matches the rates in force at egress, and that both are
// among may. Without a shaper at egress, no change may be in force.
func (a *attempt) judgeTerms(shaping bool, rows map[string][]row, may []string) {
	if !a.s.customers {
		return
	}
	if !shaping {
		if found := a.w.terms(); found != unchanged && !a.guardless() {
			a.problem("terms: nothing is attached, but %q is in force", found)
		}
		return
	}
	list, _ := a.listed()
	for _, r := range slices.Concat(slices.Collect(maps.Values(rows))...) {
		if got, want := termsOf(r.Changes), termsOf(list); !r.left() && got != want && r.OverQuota == 0 {
			a.problem("terms: the list of changes is %q, but status prints %q", want, got)
		}
	}
	if text := a.termsDiffer(may); text != "" {
		a.problem("%s", text)
	}
	if unsure(list) == nil {
		return
	}
	if !a.excused() {
		a.problem("interrupted: %+v, but nothing was killed", list)
	}
	r, ok := a.w.runCommand("reload", a.s.device())
	list, _ = a.listed()
	if !ok || r.code() != 0 || unsure(list) != nil {
		a.problem("interrupted: after a reload with exit code %d the changes are %+v: %s", r.code(), list,
			r.stderr())
	}
	if text := a.termsDiffer(may); text != "" {
		a.problem("after a reload: %s", text)
	}
}

// termsDiffer compares the list of changes with the terms in force, and both with may. It describes a
// difference; "" means none. It ignores the customers and queues of interrupted changes.
func (a *attempt) termsDiffer(may []string) string {
	var listed, found string
	var names []string
	for range 2 { // a change may end meanwhile
		before, ok := a.listed()
		found = a.w.terms()
		after, okAfter := a.listed()
		added, okAdded := a.addedCustomers()
		if !ok || !okAfter || !okAdded {
			return "list: neither shaper set nor shaper customer lists the changes"
		}
		before, after = append(before, added...), append(after, added...)
		names = unsure(after)
		if listed = a.s.withSchedule(termsOf(after)); termsOf(before) == termsOf(after) {
			break
		}
	}
	switch {
	case without(found, names) != without(listed, names):
		return fmt.Sprintf("terms: the list of changes is %q, but %q is in force", listed, found)
	case !a.guardless() && names == nil &&
		!slices.ContainsFunc(may, func(m string) bool { return a.s.withSchedule(m) == found }):
		return fmt.Sprintf("terms: %q is in force, want one of %q", found, may)
	}
	return ""
}

// allowedTerms are the changes that can be in force when the victim has ended.
func (a *attempt) allowedTerms() []string {
	if a.s.mayTerms == nil || a.victim.code() == 0 && a.s.then == nil { // a change by then may have failed
		return []string{a.s.terms}
	}
	return a.s.mayTerms
}
