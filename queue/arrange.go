package queue

import (
	"errors"
	"fmt"
	"slices"

	"github.com/a-seed-32e5a53f/shaper/meter"
)

// MaxLevels is the maximum number of levels of a tree, the queues included.
const MaxLevels = 8

// resolveTree returns the queues with limits in bytes, or all errors of a tree.
func resolveTree(links []TreeLink, queues []LinkQueue) ([]LinkQueue, error) {
	reach, err := reachable(links)
	if err != nil {
		for _, s := range queues {
			err = errors.Join(err, s.check(), checkShare(s.Rate, s.Guarantee, s.Priority, s.Weight))
		}
		return nil, err
	}
	resolved := make([]LinkQueue, len(queues))
	for i, s := range queues {
		if s.Parent < 0 || s.Parent >= len(links) {
			err = errors.Join(err, &meter.FieldError{Field: "link", Reason: fmt.Sprintf("%d does not exist", s.Parent)})
			continue
		}
		q, invalid := s.Resolve(reach[s.Parent])
		resolved[i], err = q, errors.Join(err, invalid)
	}
	return resolved, err
}

// Check joins the errors of a link, as meter.FieldErrors of rate, guarantee, priority and weight.
func (l TreeLink) Check(root bool) error {
	if !root {
		return checkShare(l.Rate, l.Guarantee, l.Priority, l.Weight)
	}
	_, err := newPace(l.Rate)
	if l.Guarantee != (meter.Rate{}) || l.Priority != 0 || l.Weight != 0 {
		err = errors.Join(err, &meter.FieldError{
			Field: "link", Reason: "is missing: guarantee, priority and weight are for a link below another one",
		})
	}
	return err
}

// newRootPace returns the pace of a root. That of an unlimited one is always free.
func newRootPace(r meter.Rate) (pace, error) {
	if r == meter.Unlimited {
		return pace{den: 1}, nil
	}
	return newPace(r)
}

// reachable returns the highest rate that each link of a tree can reach: the lowest of its own rate and
// those of the links above it.
func reachable(links []TreeLink) ([]meter.Rate, error) {
	if len(links) == 0 {
		return nil, &meter.FieldError{Field: "links", Reason: "must contain the root"}
	}
	var err error
	if links[0] != (TreeLink{Rate: meter.Unlimited}) {
		err = links[0].Check(true)
	}
	add := func(field, reason string) {
		err = errors.Join(err, &meter.FieldError{Field: field, Reason: reason})
	}
	for _, s := range links[1:] {
		if s.Parent < 0 || s.Parent >= len(links) {
			add("link", fmt.Sprintf("%d does not exist", s.Parent))
		}
		err = errors.Join(err, s.Check(false))
	}
	if err != nil {
		return nil, err
	}
	reach := make([]meter.Rate, len(links))
	for i := range links {
		rate, level := links[i].Rate, 2 // of the queues
		for k := i; k > 0; level++ {
			if level > MaxLevels {
				add("link", fmt.Sprintf("is more than %d levels below the root, or below itself", MaxLevels))
				return nil, err
			}
			k = links[k].Parent
			rate = Lowest(rate, links[k].Rate)
		}
		reach[i] = rate
	}
	return reach, nil
}

// arrange puts the nodes into their places in a tree at now.
func (l *Link[T]) arrange(now int64, links []TreeLink, queues []LinkQueue) {
	for i := range links[1:] {
		l.setCeiling(int32(i+1), links[i+1].Rate, now)
	}
	for i := range queues {
		l.setCeiling(l.queues[i].node, queues[i].Rate, now)
	}
	l.adopt(now, newPlaces(links, queues))
}

// newPlaces returns the places of the nodes of a tree: those of links before those of queues.
func newPlaces(links []TreeLink, queues []LinkQueue) []place {
	places := []place{{parent: -1, rate: bytesPerSecond(links[0].Rate)}}
	for _, s := range links[1:] {
		places = append(places, newPlace(s.Parent, s.Rate, s.Guarantee, s.Priority, s.Weight))
	}
	for i := range queues {
		s := &queues[i]
		places = append(places, newPlace(s.Parent, s.Rate, s.Guarantee, s.Priority, s.Weight))
	}
	return places
}

func newPlace(link int, rate, guarantee meter.Rate, priority, weight int) place {
	p := place{parent: int32(link), priority: uint8(priority), weight: int64(weight), rate: maxPart}
	if rate != (meter.Rate{}) {
		p.rate, p.limited = bytesPerSecond(rate), true
	}
	if guarantee != (meter.Rate{}) {
		p.guarantee, p.limited = bytesPerSecond(guarantee), true
	}
	return p
}

func (l *Link[T]) setCeiling(n int32, rate meter.Rate, now int64) {
	v := &l.nodes[n]
	p := &v.ceiling
	if rate == (meter.Rate{}) {
		v.held = l.heldBy(n, now)
		*p = pace{}
		return
	}
	if p.num == 0 {
		*p = pace{instant: instant{next: now}, begun: true}
	}
	next, _ := newPace(rate)
	p.change(&next)
}

// adopt moves the nodes to places. Nodes whose link and priority stay the same keep their turn; others
// start anew, as do all if the packet being sent would otherwise end in another place.
func (l *Link[T]) adopt(now int64, places []place) {
	stays := func(n int32) bool {
		v, p := &l.nodes[n], &places[n]
		return v.parent == p.parent && v.priority == p.priority
	}
	for n := l.sending; n > 0; n = l.nodes[n].parent {
		if !stays(n) {
			l.finish()
			break
		}
	}
	tree := newParts(places)
	turned := make([]bool, len(l.links)) // by link: whether its guarantees fit has changed
	for i := range l.links {
		turned[i] = l.links[i].clear(&tree.parts, now)
	}
	for i := range l.queues {
		q := &l.queues[i]
		l.links[l.nodes[places[q.node].parent].link].backlog.add(q.packets, q.bytes)
	}
	for n := range places {
		v, p := &l.nodes[n], &places[n]
		if !stays(int32(n)) {
			v.virtual = 0
			if v.state == ready {
				v.state = blocked // placed anew
			}
		}
		v.parent, v.priority, v.weight = p.parent, p.priority, p.weight
		v.timed, v.shared = nowhere, nowhere
		if served := tree.served[n]; served != v.served {
			v.start, v.served = instant{next: v.start.due()}, served
		}
		if n > 0 {
			l.above(v).levels[v.priority].weight += v.weight
			if turned[l.nodes[v.parent].link] {
				v.start.notBefore(now)
			}
		}
	}
	upward := tree.upward()
	for _, n := range slices.Backward(upward[:len(upward)-1]) {
		v := &l.nodes[n]
		v.depth = l.nodes[v.parent].depth + 1
	}
	for _, n := range upward {
		l.gather(tree.children(n), now)
	}
}

// clear removes all children of a link. It reports whether it has changed whether their guarantees fit.
func (c *children) clear(p *parts, now int64) (turned bool) {
	turned = c.excess != p.excess[c.node]
	c.timed, c.excess = p.timed[c.node], p.excess[c.node]
	if turned {
		c.clock, c.clockAt = now, now
	}
	c.active, c.busy, c.blocked = 0, 0, c.blocked[:0]
	c.backlog, c.counted = Count{}, p.counted[c.node]
	c.waiting.clear()
	for i := range c.levels {
		v := &c.levels[i]
		v.weight, v.count = 0, 0
		v.waiting.clear()
	}
	return turned
}

func (w *waiting) clear() { w.future, w.ready = w.future[:0], w.ready[:0] }

// gather adds the children of a link to it. Their own children are gathered.
func (l *Link[T]) gather(list []int32, now int64) {
	var others []int32
	for _, n := range list {
		v := &l.nodes[n]
		has, since := l.outlook(v)
		switch {
		case !has:
			v.held, v.state = l.heldBy(n, now), idle
		case v.state == ready && since <= now:
			l.above(v).active++
			l.enter(n) // it keeps its turn
		default:
			l.above(v).active++
			others = append(others, n)
		}
	}
	for _, n := range others {
		v := &l.nodes[n]
		if v.state == idle {
			v.ceiling.notBefore(now)
			v.hold(v.free(), now)
		}
		_, since := l.outlook(v)
		l.place(n, max(since, now), now)
	}
}
