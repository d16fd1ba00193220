package compiled

import (
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// Outline contains the names and sizes of a plan, for people who read the counters of a shaper. It
// is plain data: a running shaper keeps it as JSON, so that its counters can be printed without
// compiling the policy. Indexes are those of the plan.
type Outline struct {
	DropUnclassified bool `json:",omitempty"`
	Classes          []ClassOutline
	Stages           []StageOutline
	Queues           []QueueOutline `json:",omitempty"`
	Links            []string       `json:",omitempty"` // names
	Above            []int          `json:",omitempty"` // index of the link above, by link; empty without trees
	Customers        int            `json:",omitempty"` // number of customers
}

// ClassOutline is a class of an Outline.
type ClassOutline struct {
	Name   string
	Stage  int    // index of the first meter of the chain, or -1
	Queues [3]int // index of the queue of each color; -1 for none, and for impossible colors
}

// StageOutline is a meter of an Outline.
type StageOutline struct {
	Name    string
	Kind    meter.Kind
	Packets bool `json:",omitempty"` // the meter counts packets instead of bytes
	Then    int  // index of the next meter of the chain, or -1
	Buckets []BucketOutline

	// For a meter per key.
	Key     dataplane.Key      `json:",omitzero"`
	Keys    int                `json:",omitempty"` // maximum number of keys
	Initial dataplane.Fraction `json:",omitzero"`
	Idle    bool               `json:",omitempty"`

	Customers bool `json:",omitempty"` // each customer is metered by its plan; Kind and Buckets are not valid

	BudgetName string `json:",omitempty"` // "" for none
	Leased     bool   `json:",omitempty"` // the budget is on a server
}

// Keyed reports whether the stage keeps a meter for each key.
func (s *StageOutline) Keyed() bool { return s.Key.By != dataplane.NoKey }

// BucketOutline is a bucket of a meter, or the limit of a meter without buckets.
type BucketOutline struct {
	Name string // of its tokens: Tc, Te or Tp, or meter.Bucket.TokensName
	Size int64  // tokens
}

// QueueOutline is a queue of an Outline.
type QueueOutline struct {
	Name string
	Link int // index of its link, or -1
}

// Chain returns the stages of the packets of a class, in order.
func (o *Outline) Chain(class int) (stages []int) {
	for i := o.Classes[class].Stage; i >= 0; i = o.Stages[i].Then {
		stages = append(stages, i)
	}
	return stages
}

// OfCustomers reports whether the packets of a class belong to customers, who are metered by
// their plans.
func (o *Outline) OfCustomers(class int) bool {
	first := o.Classes[class].Stage
	return first >= 0 && o.Stages[first].Customers
}

// Feeds returns how many pairs of class and color send packets to a queue.
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

// LinkAbove returns the index of the link above a link, or -1.
func (o *Outline) LinkAbove(link int) int {
	if len(o.Above) == 0 {
		return -1
	}
	return o.Above[link]
}

// Path returns the names of a link and of the links above it, the root first, such as site/ap-7.
func (o *Outline) Path(link int) string {
	path := o.Links[link]
	for link = o.LinkAbove(link); link >= 0; link = o.LinkAbove(link) {
		path = o.Links[link] + "/" + path
	}
	return path
}

// Valid reports whether all indexes are in range, and all chains and paths end.
func (o *Outline) Valid() bool {
	inRange := func(i, n int) bool { return -1 <= i && i < n }
	for i := range o.Classes {
		c := &o.Classes[i]
		if !inRange(c.Stage, len(o.Stages)) {
			return false
		}
		for _, q := range c.Queues {
			if !inRange(q, len(o.Queues)) {
				return false
			}
		}
	}
	ends := make([]bool, len(o.Stages)) // the chain from this stage ends
	for i := range o.Stages {
		for stage, n := i, 0; stage >= 0 && !ends[stage]; stage, n = o.Stages[stage].Then, n+1 {
			if n == len(o.Stages) || !inRange(o.Stages[stage].Then, len(o.Stages)) {
				return false
			}
		}
		ends[i] = true
	}
	for _, q := range o.Queues {
		if !inRange(q.Link, len(o.Links)) {
			return false
		}
	}
	for i, above := range o.Above {
		if above < -1 || above >= i { // links are listed after the link above
			return false
		}
	}
	return len(o.Above) == 0 || len(o.Above) == len(o.Links)
}
