package image

import (
	"math"

	"github.com/a-seed-32e5a53f/shaper/bpf"
)

// stateParameter is a number with the name by which it is saved: a *uint8, *uint32, *uint64 or *int64.
type stateParameter struct {
	name  string
	value any
}

func (p stateParameter) get() uint64 {
	switch v := p.value.(type) {
	case *uint8:
		return uint64(*v)
	case *uint32:
		return uint64(*v)
	case *int64:
		return uint64(*v)
	default:
		return *v.(*uint64)
	}
}

// set reports whether the number fits.
func (p stateParameter) set(n uint64) bool {
	switch v := p.value.(type) {
	case *uint8:
		*v = uint8(n)
		return n <= math.MaxUint8
	case *uint32:
		*v = uint32(n)
		return n <= math.MaxUint32
	case *int64:
		*v = int64(n)
	case *uint64:
		*v = n
	}
	return true
}

// stateParameters lists the parameters of a plan on which the meaning of a customer's state depends:
// those of its meter, or the pace and the CoDel of its queue.
func stateParameters(p *bpf.ShaperPlan) []stateParameter {
	c, e, q := &p.Profile.Buckets[0], &p.Profile.Buckets[1], &p.Queue
	return []stateParameter{
		{"paced", &p.Paced},
		{"c-num", &c.Num},
		{"c-den", &c.Den},
		{"c-size", &c.Size},
		{"c-over", &c.Over},
		{"c-full", &c.Full},
		{"e-num", &e.Num},
		{"e-den", &e.Den},
		{"e-size", &e.Size},
		{"e-over", &e.Over},
		{"e-full", &e.Full},
		{"horizon", &p.Profile.Horizon},
		{"window", &p.Profile.Window},
		{"coupled", &p.Profile.Coupled},
		{"peak", &p.Profile.Peak},
		{"excess", &p.Profile.Excess},
		{"limit", &p.Profile.Limit},
		{"sliding", &p.Profile.Sliding},
		{"pace-ns", &q.Paces[0].Ns},
		{"pace-rest", &q.Paces[0].Rest},
		{"pace-den", &q.Paces[0].Den},
		{"codel-time", &q.Time},
		{"codel-target", &q.Target},
		{"codel-interval", &q.Interval},
		{"codel-ecn", &q.Ecn},
	}
}

// statesOf returns copies of plans with nothing but their stateParameters. A customer keeps its
// state between plans with equal copies.
func statesOf(plans []bpf.ShaperPlan) []bpf.ShaperPlan {
	out := make([]bpf.ShaperPlan, len(plans))
	for i := range plans {
		to := stateParameters(&out[i])
		for j, p := range stateParameters(&plans[i]) {
			to[j].set(p.get())
		}
	}
	return out
}

// columns lists the numbers of a saved customer. The state of a queue is that of bpf.ShaperBacklog
// at the same offsets: Next, Frac and FirstAbove, then DropNext, both counts, and four flags with
// the version.
func (c *savedCustomer) columns() []stateParameter {
	return []stateParameter{
		{"id", &c.ID},
		{"plan", &c.Plan},
		{"word-c", &c.Word[0]},
		{"word-e", &c.Word[1]},
		{"stamp", &c.Stamp},
		{"codel-drop-next", &c.Queue[0]},
		{"codel-counts", &c.Queue[1]},
		{"codel-flags", &c.Queue[2]},
	}
}
