package dataplane

// Change says what became of a class when a policy took the place of another.
type Change struct {
	Class string `json:"class"`
	What  string `json:"change"` // kept, new or gone
}

// Succession says which part of a plan continues which part of the one before: by index,
// the index of the part before, or -1 for a part that begins.
type Succession struct {
	Classes []int // keep their counters
	Stages  []int // keep their tokens, cut to the new bursts; several may continue one
	Queues  []int // are free when the queue before would have been
	Links   []int // likewise
	Changes []Change
}

// Succeed returns the succession of a plan after another one.
//
// A class continues the class of its name. The meters of its chain continue those of
// the chain before, place by place, if they count the same; a meter that several classes
// lead to continues the first. A meter whose budget is on a server continues that of the
// budget, wherever it is. Queues and links continue those of their names.
func (p *Plan) Succeed(before *Outline) Succession {
	s := Succession{
		Classes: begun(len(p.Classes)), Stages: begun(len(p.Stages)),
		Queues: begun(len(p.Queues)), Links: begun(len(p.Links)),
	}
	classes := indexes(len(before.Classes), func(i int) string { return before.Classes[i].Name })
	leases := indexes(len(before.Stages), func(i int) string {
		if !before.Stages[i].Leased {
			return ""
		}
		return before.Stages[i].BudgetName
	})
	for i := range p.Stages {
		if b := &p.Stages[i]; b.Leased {
			if was := leases.take(b.BudgetName); was >= 0 && b.Packets == before.Stages[was].Packets {
				s.Stages[i] = was
			}
		}
	}
	for i := range p.Classes {
		name := p.Classes[i].Name
		was := classes.take(name)
		if s.Classes[i] = was; was < 0 {
			s.Changes = append(s.Changes, Change{name, "new"})
			continue
		}
		s.Changes = append(s.Changes, Change{name, "kept"})
		from := before.Classes[was].Stage
		for at := p.Classes[i].Stage; at >= 0 && from >= 0; at, from = p.Stages[at].Then, before.Stages[from].Then {
			if s.Stages[at] < 0 && p.Stages[at].Packets == before.Stages[from].Packets {
				s.Stages[at] = from
			}
		}
	}
	for i := range before.Classes {
		if name := before.Classes[i].Name; classes.take(name) >= 0 {
			s.Changes = append(s.Changes, Change{name, "gone"})
		}
	}
	queues := indexes(len(before.Queues), func(i int) string { return before.Queues[i].Name })
	for i := range p.Queues {
		s.Queues[i] = queues.take(p.Queues[i].Name)
	}
	links := indexes(len(before.Links), func(i int) string { return before.Links[i] })
	for i := range p.Links {
		s.Links[i] = links.take(p.Links[i].Name)
	}
	return s
}

// begun is the succession of n parts that continue none.
func begun(n int) []int {
	out := make([]int, n)
	for i := range out {
		out[i] = -1
	}
	return out
}

// indices has the parts of a name, in order: names of queues need not differ.
type indices map[string][]int

func indexes(n int, name func(i int) string) indices {
	out := indices{}
	for i := range n {
		out[name(i)] = append(out[name(i)], i)
	}
	return out
}

// take returns the first part of a name that was not taken yet, or -1.
func (x indices) take(name string) int {
	list := x[name]
	if len(list) == 0 {
		return -1
	}
	x[name] = list[1:]
	return list[0]
}
