package shared

import (
	"cmp"
	"fmt"
	"time"

	"github.com/a-seed-32e5a53f/shaper/meter/shared/lease"
)

// Event is something that an operator wants to know.
type Event struct {
	Budget string
	Host   string
	Kind   EventKind
	Err    error // of Lost, Refused and Failed, in one line that names the store; no password is in it
	Status Status
}

// EventKind says what happened. Each is reported once, when it begins, and those from
// Failed on no more than once a minute. A budget that is Lost again within a minute is
// not Found before it has been well for a while, so that Lost and Found take turns, but
// not often.
type EventKind uint8

// Kinds of events.
const (
	nothing   EventKind = iota
	Joined              // the first share arrived
	Lost                // the lease is over: the rescue share holds
	Found               // the store answers again
	Refused             // the store refuses this host: the rescue share holds
	Failed              // the meter did not take a plan, or its counts could not be read
	Reset               // the store lost its state
	Disagreed           // another host gave a smaller size, Status.Smallest
	Crowded             // Status.Crowded
	Unguarded           // Status.Replicas is -1
	eventKinds
)

var kindNames = [eventKinds]string{"nothing", "joined", "lost", "found", "refused", "failed", "reset", "disagreed", "crowded", "unguarded"}

func (k EventKind) String() string { return kindNames[k] }

// Status is what an agent knows of a budget.
type Status struct {
	Budget, Host string
	Floor        int64         // Terms.Floor
	Heard        bool          // the store has answered
	Rescued      bool          // the lease is over
	Learning     bool          // the store learns what hosts hold: no share grows
	Crowded      bool          // a host without demand has a burst below one packet: too many hosts for the budget's burst
	Size         lease.Amounts // that is in force
	Share        lease.Amounts // that this host may use now
	Rescue       lease.Amounts // that it falls to
	Hosts, Late  int64
	Replicas     int64         // of the server; -1: the user lacks the right to INFO, and a failover may exceed the budget
	Smallest     string        // host that gave the smallest size, "" if all agree
	Refused      lease.Refusal // of the last call
	Bound        lease.Bound   // of all hosts together, this one among them, if the store keeps its data
	Without      lease.Bound   // the same if no host reaches the store
	Calls, Lost  uint64        // calls made, and those of them without an answer in time
	Err          error         // of the last call, nil if it was answered and not refused
}

// told is what was reported of a member. Times are in ns of the agent's clock.
type told struct {
	began  int64 // first call
	joined bool
	out    EventKind // Lost or Refused, otherwise nothing
	ill    int64     // when it was last Lost or Refused, whether or not that was reported
	calm   int64     // so long after ill it is Found
	found  int64     // when it last was
	named  int64     // when the host's name was first refused, 0 if it is not

	epoch int64
	holds [eventKinds]bool  // the condition of a kind holds, and was reported
	at    [eventKinds]int64 // when it was last reported
}

const minute = int64(time.Minute)

// note keeps what a call has brought, and reports what is new.
func (a *Agent) note(m *member, now int64, r *answer) {
	last, heard := m.host.Heard()
	plan := m.host.Plan()
	a.mu.Lock()
	s := &m.status
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
		s.Size, s.Hosts, s.Late, s.Smallest, s.Learning, s.Replicas = last.Size, last.Hosts, last.Late, last.Smallest, last.Learning, last.Replicas
		s.Crowded = crowded(&m.Terms, &last)
	}
	m.bound(now)
	a.mu.Unlock()

	t := &m.told
	a.turns(m, now, r)
	a.mu.Lock()
	m.started = t.joined || t.out != nothing
	a.mu.Unlock()
	a.once(m, now, Failed, m.fault != nil, m.fault)
	a.once(m, now, Reset, t.epoch != 0 && t.epoch != last.Epoch, nil)
	a.once(m, now, Disagreed, s.Smallest != "", nil)
	a.once(m, now, Crowded, s.Crowded, nil)
	a.once(m, now, Unguarded, s.Replicas < 0, nil)
	t.epoch = last.Epoch
}

// bound finds the bounds of the present. The size is that of the last reply. A host that
// uses its rescue share without the store's knowledge adds it, also for a while after the
// store has met it: the others must make room first.
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
	s.Bound, s.Without = terms.Bound(present, 0), terms.Bound(lease.Gone, 0)
	s.Bound.Sum, s.Without.Sum = s.Bound.Sum.Plus(m.stranger), s.Without.Sum.Plus(m.stranger)
}

// crowded reports whether a host without demand cannot send a packet. The floors of all
// hosts together are a quarter of the burst, and that of one is two packets at most.
func crowded(t *lease.Terms, r *lease.Reply) bool {
	for _, burst := range r.Size.Burst {
		if packet := t.Floor / 2; burst >= packet && burst/(4*max(r.Hosts, 1)) < packet {
			return true
		}
	}
	return false
}

// turns reports Joined, and Lost or Refused and Found in turns.
func (a *Agent) turns(m *member, now int64, r *answer) {
	s, t := &m.status, &m.told
	if t.began == 0 {
		t.began = now
	}
	if r.err == nil && r.Refused != lease.NameUsed {
		t.named = 0
	} else if r.Refused == lease.NameUsed && t.named == 0 {
		t.named = now
	}
	switch ill := t.illness(m, now, r); {
	case ill != nothing:
		t.ill = now
		if ill == t.out || t.out == Refused {
			return
		}
		if t.out == nothing && t.found != 0 && now-t.found < minute {
			t.calm = min(max(2*t.calm, int64(time.Second)), minute)
		} else if t.out == nothing {
			t.calm = 0
		}
		t.out = ill
		a.notify(m, ill, s.Err)
	case s.Rescued || now-t.ill < t.calm:
	case !t.joined && !s.Learning:
		t.joined, t.out, t.found = true, nothing, now
		a.notify(m, Joined, nil)
	case t.joined && t.out != nothing:
		t.out, t.found = nothing, now
		a.notify(m, Found, nil)
	}
}

// illness is Lost or Refused if the member has no more than its rescue share, otherwise
// nothing. For a lease it may be that a host waits for its first answer, or for
// the end of the lease of a process that used its name before.
func (t *told) illness(m *member, now int64, r *answer) EventKind {
	switch s, patience := &m.status, m.Terms.Lease()+m.Terms.Interval; {
	case !s.Rescued:
		return nothing
	case r.err == nil && r.Refused == lease.NameUsed && now-t.named < patience:
		return nothing
	case r.err == nil && r.Refused != lease.Stale:
		return Refused
	case r.pending && !s.Heard && now-t.began < patience:
		return nothing
	}
	return Lost
}

// once reports a condition when it begins, but no more than once a minute.
func (a *Agent) once(m *member, now int64, kind EventKind, holds bool, err error) {
	t := &m.told
	if holds && !t.holds[kind] && (t.at[kind] == 0 || now-t.at[kind] >= minute) {
		t.holds[kind], t.at[kind] = true, now
		a.notify(m, kind, err)
	}
	t.holds[kind] = t.holds[kind] && holds
}

func (a *Agent) notify(m *member, kind EventKind, err error) {
	if a.config.Notify != nil {
		a.config.Notify(Event{m.Name, m.Host, kind, err, m.status})
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
		return fmt.Sprintf("another shaper uses the host name %s: give each a name of its own", r.host)
	case lease.Interval:
		return "other hosts of the budget use another interval: give all the same"
	case lease.TooMany:
		return fmt.Sprintf("the budget has %d hosts: drop those that are gone", lease.MaxHosts)
	}
	return r.String()
}

// Status returns what the agent knew after its last call, in the order of its budgets.
func (a *Agent) Status() []Status {
	a.mu.Lock()
	defer a.mu.Unlock()
	out := make([]Status, len(a.members))
	for i, m := range a.members {
		out[i] = m.status
	}
	return out
}
