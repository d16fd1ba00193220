package dataplane

import "github.com/a-seed-32e5a53f/shaper/meter"

// Outline is the part of a Plan by which people read the counters of its shaper: names
// and sizes. It is plain data, to be kept beside a running shaper.
type Outline struct {
	DropUnclassified bool `json:",omitempty"`
	Classes          []ClassOutline
	Stages           []StageOutline
	Queues           []QueueOutline `json:",omitempty"`
	Links            []string       `json:",omitempty"` // names
}

// ClassOutline is a class of an Outline.
type ClassOutline struct {
	Name   string
	Stage  int    // first meter of its chain, or -1
	Queues [3]int // by color: the queue of its packets, or -1; -1 for colors that no packet of the class has
}

// StageOutline is a meter of an Outline.
type StageOutline struct {
	Name    string
	Kind    meter.Kind
	Packets bool `json:",omitempty"` // it counts packets instead of bytes
	Then    int  // next meter of the chain, or -1
	Buckets []BucketOutline

	// Of a meter for each key.
	Key     Key   `json:",omitzero"`
	Keys    int   `json:",omitempty"` // bound of the table
	Initial Share `json:",omitzero"`
	Idle    bool  `json:",omitempty"`

	BudgetName string `json:",omitempty"` // "" for none
	Leased     bool   `json:",omitempty"` // the budget is on a server
}

// Keyed reports whether the stage has a meter for each key.
func (s *StageOutline) Keyed() bool { return s.Key.By != NoKey }

// BucketOutline is a bucket of a meter, or its limit.
type BucketOutline struct {
	Name string // Tc, Te or Tp, or as meter.Bucket has it
	Size int64  // tokens
}

// QueueOutline is a queue of an Outline.
type QueueOutline struct {
	Name string
	Link int // index of its link, or -1
}

// Chain returns the stages of a class, in the order in which its packets go through
// them.
func (o *Outline) Chain(class int) (stages []int) {
	for i := o.Classes[class].Stage; i >= 0; i = o.Stages[i].Then {
		stages = append(stages, i)
	}
	return stages
}

// Feeds returns how many colors of classes a queue has packets of.
func (o *Outline) Feeds(queue int) (n int) {
	for i := range o.Classes {
		for _, q := range o.Classes[i].Queues {
			if q == queue {
				n++
			}
		}
	}
	return n
}

// Valid reports whether all indexes are in range, and all chains end.
func (o *Outline) Valid() bool {
	in := func(i, n int) bool { return -1 <= i && i < n }
	for i := range o.Classes {
		c := &o.Classes[i]
		if !in(c.Stage, len(o.Stages)) {
			return false
		}
		for _, q := range c.Queues {
			if !in(q, len(o.Queues)) {
				return false
			}
		}
	}
	ends := make([]bool, len(o.Stages))
	for i := range o.Stages {
		for at, n := i, 0; at >= 0 && !ends[at]; at, n = o.Stages[at].Then, n+1 {
			if n == len(o.Stages) || !in(o.Stages[at].Then, len(o.Stages)) {
				return false
			}
		}
		ends[i] = true
	}
	for _, q := range o.Queues {
		if !in(q.Link, len(o.Links)) {
			return false
		}
	}
	return true
}
