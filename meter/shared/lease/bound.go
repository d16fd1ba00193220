package lease

// Case is what can happen to a store: a row of the table of bounds in docs/SHARING.md.
type Case int

// Cases.
const (
	Kept     Case = iota // it keeps its data; hosts, links and the server itself may fail
	Gone                 // no host reaches it for longer than a lease
	Promoted             // a replica took over that had all increases
	Behind               // a replica took over that lacked some
	Lost                 // all its data
	Ahead                // its clock jumped ahead
	Back                 // its clock jumped back
	Split                // two servers answer, each some of the hosts
)

// Bound is the most that all hosts of a budget let through.
type Bound struct {
	// Sum is what all hosts that the store knows can use together, at any time.
	Sum Amounts
	// Once is how many tokens they let through beyond Sum, for each time that it happens.
	Once [2]int64
	// Stranger is what a host uses besides, for as long as the store does not know it and
	// for another lease and half an interval: one that started and never heard of the
	// store, is refused, or has not reached a store since that lost its data. If the host
	// has heard of a store, its own rescue share takes the place of this.
	Stranger Amounts
}

// Bound is the bound of a case. by is how far a clock jumped, ns; other cases have none.
func (t *Terms) Bound(c Case, by int64) Bound {
	b := Bound{Sum: t.Size, Stranger: t.rescue(t.Hosts)}
	switch rescue := t.Size.Part(t.Rescue, million); c {
	case Gone:
		b.Sum = rescue
	case Split:
		b.Sum = t.Size.Plus(t.Size)
	case Behind:
		b.Once = during(t.Size, t.Lease())
	case Ahead:
		if by <= 2*t.Interval { // further ones are noticed
			b.Once = during(t.Size, by)
		}
	case Back:
		b.Once = during(rescue, min(by, t.Lease()+4*t.Interval))
	}
	return b
}

// during is how many tokens a passes in a time, if it is full when that begins.
func during(a Amounts, ns int64) (tokens [2]int64) {
	for i := range tokens {
		tokens[i] = a.Burst[i] + int64(float64(a.Rate[i])*float64(ns)/8e9)
	}
	return tokens
}
