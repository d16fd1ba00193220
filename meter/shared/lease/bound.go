package lease

import "fmt"

// Case is a failure of a store: a row of the table of bounds in
// docs/SHARING.md.
type Case int

// Cases.
const (
	Kept     Case = iota // the store keeps its data; hosts, links and the server process may fail
	Gone                 // no host reaches the store for longer than a lease
	Promoted             // a replica with all increases took over
	Behind               // a replica took over without some increases
	Lost                 // the store lost all its data
	Ahead                // the store's clock jumped ahead
	Back                 // the store's clock jumped back
	Split                // two servers answer, each for some of the hosts
)

var caseNames = [...]string{"kept", "gone", "promoted", "behind", "lost", "ahead", "back", "split"}

// String returns the name in lower case.
func (c Case) String() string {
	if 0 <= c && int(c) < len(caseNames) {
		return caseNames[c]
	}
	return fmt.Sprintf("Case(%d)", int(c))
}

// Bound is the most that all hosts of a budget pass together.
type Bound struct {
	// Sum is the most that all hosts known to the store can use at any time.
	Sum Amounts
	// Once is the number of tokens passed in addition to Sum, each time the case occurs.
	Once [2]int64
	// Stranger is the amount that a host uses in addition while the store does not know it, and for
	// one lease and half an interval after that. Such a host started and never received a reply, or
	// is refused, or did not reach the store since the loss of its data. If the host received a
	// reply before, its own rescue share applies instead.
	Stranger Amounts
	// Packet is the number of tokens passed by this host in addition, once: its rescue share passes
	// a packet, even if the store reserved less. Each host adds its own. 0 without rescue shares.
	Packet int64
}

// Bound returns the bound in a case. by is the size of a clock jump in ns;
// other cases ignore it.
func (t *Terms) Bound(c Case, by int64) Bound {
	rescue := t.Size.Part(t.Rescue, million)
	b := Bound{Sum: t.Size, Stranger: t.rescue(t.Hosts), Packet: t.Packet}
	if rescue.Rate == [2]int64{} {
		b.Packet = 0
	}
	switch c {
	case Gone:
		b.Sum = rescue
	case Split:
		b.Sum = t.Size.Plus(t.Size)
	case Behind:
		b.Once = during(t.Size, t.Lease())
	case Ahead:
		if by <= 2*t.Interval { // larger jumps are detected
			b.Once = during(t.Size, by)
		}
	case Back:
		b.Once = during(rescue, min(by, t.Lease()+4*t.Interval))
	}
	return b
}

// during returns the tokens passed by a in a time, starting with full buckets.
func during(a Amounts, ns int64) (tokens [2]int64) {
	for i := range tokens {
		tokens[i] = a.Burst[i] + int64(float64(a.Rate[i])*float64(ns)/8e9)
	}
	return tokens
}
