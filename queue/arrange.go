package queue

import (
	"errors"
	"fmt"

	"github.com/a-seed-32e5a53f/shaper/meter"
)

// MaxLevels is the maximum number of levels of a tree, the queues included.
const MaxLevels = 8

// resolveTree returns the highest rates that links can reach, and the queues with limits in bytes, or all
// errors of a tree.
func resolveTree(links []TreeLink, queues []LinkQueue) ([]meter.Rate, []LinkQueue, error) {
	reach, err := reachable(links)
	if err != nil {
		for _, s := range queues {
			err = errors.Join(err, s.check(), checkShare(s.Rate, s.Guarantee, s.Priority, s.Weight))
		}
		return nil, nil, err
	}
	resolved := make([]LinkQueue, len(queues))
	var errs []error
	for i := range queues {
		if resolved[i], err = queues[i].below(reach); err != nil {
			errs = append(errs, err)
		}
	}
	return reach, resolved, errors.Join(errs...)
}

// below returns the queue with limits in bytes. reach has the rates that the links can reach.
func (s LinkQueue) below(reach []meter.Rate) (LinkQueue, error) {
	if s.Parent < 0 || s.Parent >= len(reach) {
		return s, &meter.FieldError{Field: "link", Reason: fmt.Sprintf("%d does not exist", s.Parent)}
	}
	return s.Resolve(reach[s.Parent])
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

// newPlaces returns the places of the nodes of a tree: those of links before those of queues.
func newPlaces(links []TreeLink, queues []LinkQueue) []place {
	places := []place{{parent: -1, rate: bytesPerSecond(links[0].Rate)}}
	for i := range links[1:] {
		places = append(places, links[i+1].place())
	}
	for i := range queues {
		places = append(places, queues[i].place())
	}
	return places
}

func (l *TreeLink) place() place {
	return newPlace(l.Parent, l.Rate, l.Guarantee, l.Priority, l.Weight)
}

func (s *LinkQueue) place() place {
	return newPlace(s.Parent, s.Rate, s.Guarantee, s.Priority, s.Weight)
}

func newPlace(link int, rate, guarantee meter.Rate, priority, weight int) place {
	p := place{parent: int32(link), priority: uint8(priority), weight: uint16(weight), rate: maxPart}
	if rate != (meter.Rate{}) {
		p.rate, p.limited = bytesPerSecond(rate), true
	}
	if guarantee != (meter.Rate{}) {
		p.guarantee, p.limited = bytesPerSecond(guarantee), true
	}
	return p
}
