package shared

import (
	"cmp"
	"fmt"
	"time"

	"github.com/a-seed-32e5a53f/shaper/meter/shared/lease"
)

// Event is a change of a budget's state, for an operator.
type Event struct {
	Budget string
	Host   string
	Kind   EventKind
	Err    error // error of Lost, Refused and Failed: one line with the store's name, without passwords
	Status Status
}

// EventKind is the kind of an Event. Each condition is reported once, when it starts; the kinds
// from Failed on at most once a minute. If a budget is Lost again within a minute, it is Found only
// after working for a while. So Lost and Found alternate, but not often.
type EventKind uint8

// Kinds of events.
const (
	nothing   EventKind = iota
	Joined              // the first share arrived
	Lost                // the lease ended: the rescue share applies
	Found               // the store answers again
	Refused             // the store refuses this host: the rescue share applies
	Failed              // the meter rejected a plan, or its counts could not be read
	Reset               // the store lost its state
	Disagreed           // another host's policy has a smaller size; see Status.Smallest
	Crowded             // see Status.Crowded
	Unguarded           // Status.Replicas is -1
	eventKinds
)

var kindNames = [eventKinds]string{
	"nothing", "joined", "lost", "found", "refused", "failed", "reset", "disagreed", "crowded", "unguarded",
}

// String returns the name in lower case.
func (k EventKind) String() string {
	if k < eventKinds {
		return kindNames[k]
	}
	return fmt.Sprintf("EventKind(%d)", uint8(k))
}

// Status is an agent's view of a budget.
type Status struct {
	Budget, Host string
	Floor        int64 // Terms.Floor
	Heard        bool  // the store answered
	Rescued      bool  // the lease ended
	Learning     bool  // the store is learning: no share grows
	// without demand, a host's burst is below one packet: there are too many hosts for the budget's burst
	Crowded     bool
	Size        lease.Amounts // size of the budget in force
	Share       lease.Amounts // share of this host
	Rescue      lease.Amounts // rescue share of this host
	Hosts, Late int64
	// number of the server's replicas; -1: the user lacks the right to INFO, and a failover may exceed
	// the budget
	Replicas int64
	Smallest string        // host whose policy has the smallest size, "" if all agree
	Refused  lease.Refusal // refusal in the last call
	// of all hosts together, if the store keeps its data and they have this host's Terms.Packet
	Bound       lease.Bound
	Without     lease.Bound // the same, if no host reaches the store
	Calls, Lost uint64      // number of calls, and of calls without an answer in time
	Err         error       // error of the last call; nil if it was answered and not refused
}

// reported is the state of a member's events. Times are in ns of the agent's
// clock.
type reported struct {
	firstCall   int64 // first call
	joined      bool
	state       EventKind // Lost or Refused while in this state, otherwise nothing
	lastLoss    int64     // last time the member was Lost or Refused, reported or not
	calmTime    int64     // minimum time from lastLoss to Found
	lastFound   int64     // last time it was Found
	nameRefused int64     // time at which the host's name was first refused, 0: not refused

	epoch      int64
	active     [eventKinds]bool  // the condition of a kind holds and was reported
	reportedAt [eventKinds]int64 // time of the last report
}

const minute = int64(time.Minute)

// record stores the result of a call and reports changes.
func (a *Agent) record(m *member, now int64, r *answer) {
	last, _ := m.host.Heard()
	a.update(m, now, r)
	s, t := &m.status, &m.reported
	a.reportState(m, now, r)
	a.mu.Lock()
	m.started = t.joined || t.state != nothing
	a.mu.Unlock()
	a.reportCondition(m, now, Failed, m.fault != nil, m.fault)
	a.reportCondition(m, now, Reset, t.epoch != 0 && t.epoch != last.Epoch, nil)
	a.reportCondition(m, now, Disagreed, s.Smallest != "", nil)
	a.reportCondition(m, now, Crowded, s.Crowded, nil)
	a.reportCondition(m, now, Unguarded, s.Replicas < 0, nil)
	t.epoch = last.Epoch
}

// update stores the result of a call in a member's status.
func (a *Agent) update(m *member, now int64, r *answer) {
	a.mu.Lock()
	defer a.mu.Unlock()
	last, heard := m.host.Heard()
	plan := m.host.Plan()
	s := &m.status
	s.Floor = m.Terms.Floor
	s.Err, s.Refused = cmp.Or(r.err, m.fault), r.Refused
	if r.err == nil && r.Refused != lease.Granted {
		s.Err = a.explain(refused{r.Refused, m.Host})
	}
	if !r.skipped {
		s.Calls++
		if r.err != nil {
			s.Lost++
		}
	}
	s.Heard, s.Rescued, s.Share, s.Rescue = heard, m.host.Rescued(now), plan.At(now), plan.Phase[2]
	if heard {
		s.Size, s.Hosts, s.Late, s.Smallest, s.Learning, s.Replicas = last.Size, last.Hosts, last.Late,
			last.Smallest, last.Learning, last.Replicas
		s.Crowded = crowded(&m.Terms, &last)
	} else {
		s.Size = m.Terms.Size
	}
	m.bound(now)
}

// bound computes the current bounds, for the size in the last reply. If a host
// uses its rescue share without the store's knowledge, the share is added. It
// is also added for a while after the store has met the host, until the others
// have made room. The packets of other hosts are assumed to be as large as those
// of this one.
func (m *member) bound(now int64) {
	s, terms := &m.status, m.Terms
	terms.Size = s.Size
	if s.Rescued && (!s.Heard || s.Refused != lease.Granted && s.Refused != lease.Stale) {
		m.stranger, m.unknown = s.Rescue, now+terms.Lease()+terms.Interval/2
	} else if now >= m.unknown {
		m.stranger = lease.Amounts{}
	}
	present := lease.Kept
	if s.Replicas < 0 {
		present = lease.Behind
	}
	hosts := min(max(terms.Hosts, 1), lease.MaxHosts)
	if s.Heard {
		hosts = s.Hosts
	}
	s.Bound, s.Without = terms.Bound(present, 0), terms.Bound(lease.Gone, 0)
	for _, b := range []*lease.Bound{&s.Bound, &s.Without} {
		b.Sum = b.Sum.Plus(m.stranger)
		for i, burst := range s.Size.Burst {
			b.Sum.Burst[i] += hosts * min(b.Packet, burst)
		}
	}
}

// crowded reports whether a host without demand cannot send a packet. The
// floors of all hosts together are a quarter of the burst, and the floor of one
// host is at most two packets. lease.Reply.Check bounds the number of hosts.
func crowded(t *lease.Terms, r *lease.Reply) bool {
	for _, burst := range r.Size.Burst {
		if packet := t.Floor / 2; burst >= packet && burst/(4*max(r.Hosts, 1)) < packet {
			return true
		}
	}
	return false
}

// reportState reports Joined, and alternates between Lost or Refused and Found.
func (a *Agent) reportState(m *member, now int64, r *answer) {
	s, t := &m.status, &m.reported
	if t.firstCall == 0 {
		t.firstCall = now
	}
	if r.err == nil && r.Refused != lease.NameUsed {
		t.nameRefused = 0
	} else if r.Refused == lease.NameUsed && t.nameRefused == 0 {
		t.nameRefused = now
	}
	switch kind := t.lossKind(m, now, r); {
	case kind != nothing:
		t.lastLoss = now
		if kind == t.state || t.state == Refused {
			return
		}
		if t.state == nothing && t.lastFound != 0 && now-t.lastFound < minute {
			t.calmTime = min(max(2*t.calmTime, int64(time.Second)), minute)
		} else if t.state == nothing {
			t.calmTime = 0
		}
		t.state = kind
		a.notify(m, kind, s.Err)
	case s.Rescued || now-t.lastLoss < t.calmTime:
	case !t.joined && !s.Learning:
		t.joined, t.state, t.lastFound = true, nothing, now
		a.notify(m, Joined, nil)
	case t.joined && t.state != nothing:
		t.state, t.lastFound = nothing, now
		a.notify(m, Found, nil)
	}
}

// lossKind returns Lost or Refused if the member is down to its rescue share, otherwise nothing.
// For the duration of a lease, a host may also wait for its first answer, or for the lease of an
// earlier process with its name to end.
func (t *reported) lossKind(m *member, now int64, r *answer) EventKind {
	switch s, patience := &m.status, m.Terms.Lease()+m.Terms.Interval; {
	case !s.Rescued:
		return nothing
	case r.err == nil && r.Refused == lease.NameUsed && now-t.nameRefused < patience:
		return nothing
	case r.err == nil && r.Refused != lease.Stale:
		return Refused
	case r.pending && !s.Heard && now-t.firstCall < patience:
		return nothing
	}
	return Lost
}

// reportCondition reports a condition when it starts, at most once a minute.
func (a *Agent) reportCondition(m *member, now int64, kind EventKind, holds bool, err error) {
	t := &m.reported
	if holds && !t.active[kind] && (t.reportedAt[kind] == 0 || now-t.reportedAt[kind] >= minute) {
		t.active[kind], t.reportedAt[kind] = true, now
		a.notify(m, kind, err)
	}
	t.active[kind] = t.active[kind] && holds
}

func (a *Agent) notify(m *member, kind EventKind, err error) {
	if a.config.Notify == nil {
		return
	}
	event := Event{m.Name, m.Host, kind, err, m.status}
	if err := guard(func() error { a.config.Notify(event); return nil }); err != nil {
		a.mu.Lock()
		m.status.Err = err
		a.mu.Unlock()
	}
}

// refused is a refusal as an error.
type refused struct {
	lease.Refusal
	host string
}

func (r refused) Error() string {
	switch r.Refusal {
	case lease.NameUsed:
		return fmt.Sprintf("another shaper uses the host name %s: use a unique name for each", r.host)
	case lease.Interval:
		return "other hosts of the budget use another interval: use the same interval on all hosts"
	case lease.TooMany:
		return fmt.Sprintf("the budget has the maximum of %d hosts: drop hosts that are gone", lease.MaxHosts)
	}
	return r.String()
}

// Status returns the state after the agent's last call, in the order of its
// budgets.
func (a *Agent) Status() []Status {
	a.mu.Lock()
	defer a.mu.Unlock()
	out := make([]Status, len(a.members))
	for i, m := range a.members {
		out[i] = m.status
	}
	return out
}
