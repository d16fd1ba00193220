package compiled

import "slices"

// ClassChange is the effect of a new policy on a class.
type ClassChange struct {
	Class  string `json:"class"`
	Effect string `json:"change"` // kept, new or gone
}

// Succession defines which part of a plan continues which part of the previous plan. For each part
// it contains the index of the previous part, or -1 for a part starting anew.
type Succession struct {
	Classes []int // continued classes keep their counters
	// continued meters keep their tokens, capped at the new bursts; several may continue the same one
	Stages  []int
	Queues  []int // continued queues become free at the same time as before
	Links   []int // continued links become free at the same time as before
	Changes []ClassChange
}

// Succeed returns the succession of the plan to the previous one.
//
// A class continues the class of the same name. The meters of its chain continue the
// meters of the previous chain at the same position, if both count bytes or both count
// packets. If several classes use a meter, the first such predecessor counts. A meter with a
// budget on a server continues the meter with the same budget, at any position. Queues
// and links continue those of the same name.
func (p *Plan) Succeed(before *Outline) Succession {
	s := Succession{
		Classes: noPredecessors(len(p.Classes)), Stages: noPredecessors(len(p.Stages)),
		Queues: noPredecessors(len(p.Queues)), Links: noPredecessors(len(p.Links)),
	}
	classes := indexNames(len(before.Classes), func(i int) string { return before.Classes[i].Name })
	leases := indexNames(len(before.Stages), func(i int) string {
		if !before.Stages[i].Leased {
			return ""
		}
		return before.Stages[i].BudgetName
	})
	for i := range p.Stages {
		if b := &p.Stages[i]; b.Leased {
			if was := leases.pop(b.BudgetName); was >= 0 && b.Packets == before.Stages[was].Packets {
				s.Stages[i] = was
			}
		}
	}
	for i := range p.Classes {
		name := p.Classes[i].Name
		was := classes.pop(name)
		if s.Classes[i] = was; was < 0 {
			s.Changes = append(s.Changes, ClassChange{name, "new"})
			continue
		}
		s.Changes = append(s.Changes, ClassChange{name, "kept"})
		stage, from := p.Classes[i].Stage, before.Classes[was].Stage
		for stage >= 0 && from >= 0 {
			if s.Stages[stage] < 0 && p.Stages[stage].Packets == before.Stages[from].Packets {
				s.Stages[stage] = from
			}
			stage, from = p.Stages[stage].Then, before.Stages[from].Then
		}
	}
	for i := range before.Classes {
		if name := before.Classes[i].Name; classes.pop(name) >= 0 {
			s.Changes = append(s.Changes, ClassChange{name, "gone"})
		}
	}
	queues := indexNames(len(before.Queues), func(i int) string { return before.Queues[i].Name })
	for i := range p.Queues {
		s.Queues[i] = queues.pop(p.Queues[i].Name)
	}
	links := indexNames(len(before.Links), func(i int) string { return before.Links[i] })
	for i := range p.Links {
		s.Links[i] = links.pop(p.Links[i].Name)
	}
	return s
}

// noPredecessors returns n times -1.
func noPredecessors(n int) []int { return slices.Repeat([]int{-1}, n) }

// nameIndex contains the indexes of the parts of each name, in order. Queues may have the
// same name.
type nameIndex map[string][]int

func indexNames(n int, name func(i int) string) nameIndex {
	out := nameIndex{}
	for i := range n {
		out[name(i)] = append(out[name(i)], i)
	}
	return out
}

// pop returns the first part of a name not returned so far, or -1.
func (x nameIndex) pop(name string) int {
	list := x[name]
	if len(list) == 0 {
		return -1
	}
	x[name] = list[1:]
	return list[0]
}
