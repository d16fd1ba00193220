package queue

import (
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/meter"
)

// part returns no rate, or one that is a simple multiple of another.
func (pick choices) part(rate meter.Rate) meter.Rate {
	r := meter.Rate{
		Bytes: rate.Bytes * int64(1+pick.n(4)), Period: rate.Period * time.Duration(1+pick.n(12)),
	}
	if _, err := newPace(r); err != nil || pick.n(2) == 0 {
		return meter.Rate{}
	}
	return r
}

// share returns the place of a node below a link.
func (pick choices) share(rate meter.Rate, links int) TreeLink {
	s := TreeLink{
		Parent: pick.n(links), Rate: pick.part(rate), Guarantee: pick.part(rate),
		Weight: int(pick.oneOf(1, 1, 2, 3, MaxWeight)), Priority: int(pick.oneOf(0, 0, 0, 1, MaxPriority)),
	}
	if s.Rate != (meter.Rate{}) && s.Guarantee.Bytes > 0 && s.Guarantee.Cmp(s.Rate) > 0 {
		s.Rate, s.Guarantee = s.Guarantee, s.Rate
	}
	return s
}

// places returns other places and rates for a tree whose queues are configs.
func (pick choices) places(rate meter.Rate, links int, configs []LinkQueue) ([]TreeLink, []LinkQueue) {
	tree := []TreeLink{{Rate: rate}}
	for i := range links - 1 {
		tree = append(tree, pick.share(rate, i+1))
	}
	queues := make([]LinkQueue, len(configs))
	for i, q := range configs {
		s := pick.share(rate, links)
		q.Parent, q.Rate, q.Guarantee = s.Parent, s.Rate, s.Guarantee
		q.Priority, q.Weight = s.Priority, s.Weight
		q.CoDel = pick.codel(rate)
		queues[i] = q
	}
	return tree, queues
}

// sameTree compares a tree of links with its model.
func sameTree(t testing.TB, pick choices, packets int) (fates [AdmitCE + 1]int) {
	rate := pick.oneRate()
	configs := make([]LinkQueue, 1+pick.n(6))
	for i := range configs {
		configs[i] = LinkQueue{Config: pick.config(rate), Fair: Fair(pick.oneOf(0, 0, 1, 2))}
	}
	links := 1 + pick.n(6)
	tree, queues := pick.places(rate, links, configs)
	l, err := NewTree[int](tree, queues)
	if err != nil {
		return fates // a limit is less than a byte at the lowest rate
	}
	m := newModelTree(tree, queues)
	now := int64(pick.n(65536))<<40 - 1<<55
	dropped, collected := 0, 0
	collect := func(now int64, all bool) {
		m.advanceTo(now, all)
		for {
			at, ok := l.Due()
			want, has := m.due()
			if len(m.decided) > 0 {
				want, has = m.decided[0].Depart, true
			}
			if ok != has || ok && at != want {
				t.Fatalf("%+v\n%+v\ngot due time %d (%v), want %d (%v)", tree, queues, at, ok, want, has)
			}
			if all {
				now = 1<<63 - 1
			}
			d, ok := l.Decide(now)
			if ok != (len(m.decided) > 0) || ok && d != m.decided[0] {
				t.Fatalf("%+v\n%+v\nby %d: got %+v (%v), want the first of %+v", tree, queues, now, d, ok, m.decided)
			}
			if !ok {
				return
			}
			m.decided = m.decided[1:]
			collected++
			fates[d.Fate]++
		}
	}
	for i := range packets {
		if pick.n(16) == 0 {
			next, moved := pick.places(pick.oneRate(), links, configs)
			change := func() error { return l.Change(now, next, moved) }
			if pick.n(2) == 0 { // of some queues
				next, change = tree, func() error {
					var list []QueueChange
					for i := range moved {
						if pick.n(3) == 0 {
							list = append(list, QueueChange{i, moved[i]})
						} else {
							moved[i] = queues[i]
						}
					}
					return l.ChangeQueues(now, list)
				}
			}
			if _, _, err := resolveTree(next, moved); err == nil {
				if err := change(); err != nil {
					t.Fatal(err)
				}
				tree, queues = next, moved
				m.change(now, tree, queues)
			}
		}
		p, queue := pick.packet(), pick.n(len(queues))
		got, want := l.Admit(now, queue, p, i), m.admit(now, queue, p, i)
		if got != want {
			t.Fatalf("%+v\n%+v\npacket %d, %+v into %d at %d: %v, model %v", tree, queues, i, p, queue, now, got, want)
		}
		if got.Dropped() {
			dropped++
			fates[got]++
		}
		if pick.n(4) > 0 {
			collect(now, false)
		}
		if l.queued()+l.decided.len+dropped+collected != i+1 {
			t.Fatalf("%d packets: %d dropped, %d queued, %d decided, %d of them collected", i+1, dropped,
				l.queued(), collected+l.decided.len, collected)
		}
		now += pick.gap(tree[0].Rate, p)
	}
	collect(0, true)
	if dropped+collected != packets {
		t.Fatalf("%d packets: %d dropped, %d decided", packets, dropped, collected)
	}
	return fates
}

func TestTreeAgainstModel(t *testing.T) { againstModel(t, sameTree) }

func FuzzTree(f *testing.F) { fuzzQueue(f, sameTree) }
