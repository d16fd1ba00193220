package lease

import "fmt"

// Reply is the store's answer. A host may use a Reply only if it passes Check.
type Reply struct {
	Refused  Refusal
	Time     int64 // store's clock, µs
	Epoch    int64 // changes if the store loses its state
	Share    Amounts
	Rescue   Amounts
	Spare    [2]int64 // rates the host may keep in addition to its demand
	Size     Amounts  // size of the budget: set by an operator, or the smallest of all hosts' policies
	Hosts    int64    // number of hosts known to the store
	Late     int64    // number of late hosts among them
	Learning bool
	Replicas int64  // number of the server's replicas, -1: unknown
	Smallest string // host with the smallest size, "" if all agree
}

// Refusal is the reason for which a store grants a host nothing.
type Refusal int64

// Refusals.
const (
	Granted  Refusal = iota
	NameUsed         // another process uses the host's name
	Interval         // the other hosts of the budget have another Interval or Deadline
	TooMany          // the budget is full, with MaxHosts hosts
	Stale            // a later request of the host arrived before
)

var refusals = [...]string{
	"granted", "another shaper uses the same host name",
	"other hosts of the budget use another interval or deadline", "the budget has too many hosts",
	"a later request of this host arrived before",
}

func (r Refusal) String() string {
	if r < 0 || int(r) >= len(refusals) {
		return fmt.Sprintf("Refusal(%d)", int64(r))
	}
	return refusals[r]
}

// MaxHosts is the maximum number of hosts of a budget.
const MaxHosts = 4096

// MaxNumber bounds times and other numbers of a store: IEEE 754 doubles, the numbers of Lua, are
// exact below it.
const MaxNumber = 1 << 53

// Check returns an error if Store.Call cannot have made the reply: a number is out of range, or
// an amount is above the size. A server can lie, or run another program; nothing of its replies
// may be used before this check, not even in arithmetic. The error describes a noun, as in
// "the store replied with 0 hosts".
func (r *Reply) Check() error {
	switch {
	case r.Refused < Granted || r.Refused > Stale:
		return fmt.Errorf("the unknown refusal %d", int64(r.Refused))
	case r.Refused != Granted:
		return nil // the other fields are not used
	case r.Time < 1 || r.Time > MaxNumber:
		return fmt.Errorf("the time %d", r.Time)
	case r.Epoch < 1 || r.Epoch > r.Time:
		return fmt.Errorf("the epoch %d at the time %d", r.Epoch, r.Time)
	case r.Hosts < 1 || r.Hosts > MaxHosts:
		return fmt.Errorf("%d hosts, not 1 to %d", r.Hosts, MaxHosts)
	case r.Late < 0 || r.Late > r.Hosts:
		return fmt.Errorf("%d late hosts of %d", r.Late, r.Hosts)
	case r.Replicas < -1 || r.Replicas > MaxNumber:
		return fmt.Errorf("%d replicas", r.Replicas)
	}
	for _, spare := range r.Spare {
		if spare < 0 || spare > maxSpare {
			return fmt.Errorf("a spare rate of %d bit/s", spare)
		}
	}
	for _, a := range []struct {
		name string
		*Amounts
	}{{"size", &r.Size}, {"share", &r.Share}, {"rescue share", &r.Rescue}} {
		if err := a.Check(); err != nil {
			return fmt.Errorf("a %s out of range: %w", a.name, err)
		}
		if *a.Amounts != a.Min(r.Size) {
			return fmt.Errorf("a %s above the budget: %v of %v", a.name, *a.Amounts, r.Size)
		}
	}
	return nil
}

// maxSpare is the largest Reply.Spare: a store computes it before it knows of a changed weight.
const maxSpare = MaxRate * MaxWeight
