package compiled

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// WithRates returns a copy of the plan with other rates of queues and links, by name, for SetRates
// of a running shaper. A queue alone on a link of its own name has the link's rate. Limits in time
// stay times; times of CoDel follow the rate if Queue.TargetAtRate or IntervalAtRate says so.
// Everything else is shared with p, the Sources included: they have the rates and CoDel of the
// policy. The error joins a dataplane.FieldError for each rate that is invalid or cannot be set.
func (p *Plan) WithRates(queues, links map[string]meter.Rate) (*Plan, error) {
	var errs errorList
	queues, links = p.ownLinks(&errs, queues, links)
	out := *p
	out.Queues, out.Links = slices.Clone(p.Queues), slices.Clone(p.Links)
	queuesOf, linksOf := map[string]int{}, map[string]int{}
	for i := range out.Links {
		l := &out.Links[i]
		rate, given := links[l.Name]
		if linksOf[l.Name]++; !given {
			continue
		}
		if _, _, err := queue.Pace(rate); err != nil {
			errs.addError(l.Source, "rate", err)
			continue
		}
		l.Rate = rate
		for _, k := range l.Queues {
			q, err := &out.Queues[k], error(nil)
			if q.LinkQueue, err = q.Source.LinkQueue().Resolve(rate); err != nil {
				errs.addError(q.Source, "limit", err)
			}
			q.setDrain(rate)
		}
	}
	for i := range out.Queues {
		q := &out.Queues[i]
		rate, given := queues[q.Name]
		if queuesOf[q.Name]++; !given {
			continue
		}
		if q.Link >= 0 {
			errs.add(q.Source, "rate", fmt.Sprintf(
				"cannot be set: the queue is sent at the rate of link %q, so set that", p.Links[q.Link].Name))
			continue
		}
		q.Config.Rate = rate
		q.setDrain(rate)
		if _, err := queue.New(q.Config); err != nil {
			errs.addError(q.Source, "rate", err)
		}
	}
	errs.checkNames(p.Source, "queues", queues, queuesOf)
	errs.checkNames(p.Source, "links", links, linksOf)
	if errs != nil {
		return nil, errors.Join(errs...)
	}
	return &out, nil
}

// setDrain sets the rate at which the queue is sent.
func (q *Queue) setDrain(rate meter.Rate) {
	q.Drain = rate
	next := queue.CoDelAt(rate)
	if q.Source.TargetAtRate {
		q.CoDel.Target = next.Target
	}
	if q.Source.IntervalAtRate {
		q.CoDel.Interval = next.Interval
	}
}

// ownLinks moves the rates of queues alone on a link of their own name to those links: the link is
// the rate of a fair queue.
func (p *Plan) ownLinks(
	errs *errorList, queues, links map[string]meter.Rate,
) (ofQueues, ofLinks map[string]meter.Rate) {
	ofQueues, ofLinks = maps.Clone(queues), maps.Clone(links)
	for i := range p.Queues {
		q := &p.Queues[i]
		rate, given := queues[q.Name]
		if !given || q.Link < 0 || p.Links[q.Link].Name != q.Name || len(p.Links[q.Link].Queues) > 1 {
			continue
		}
		if other, both := links[q.Name]; both && other.Cmp(rate) != 0 {
			errs.add(q.Source, "rate",
				fmt.Sprintf("is also set for link %q, its own: reset that first", q.Name))
		}
		delete(ofQueues, q.Name)
		if ofLinks == nil {
			ofLinks = map[string]meter.Rate{}
		}
		ofLinks[q.Name] = rate
	}
	return ofQueues, ofLinks
}

// checkNames adds an error for each name in rates unless exactly one part of a plan is called by
// it. count gives the number of parts by name.
func (l *errorList) checkNames(
	policy *dataplane.Policy, kind string, rates map[string]meter.Rate, count map[string]int,
) {
	for _, name := range slices.Sorted(maps.Keys(rates)) {
		switch count[name] {
		case 1:
		case 0:
			l.add(policy, kind, fmt.Sprintf("do not contain %q, or no class uses it", name))
		default:
			l.add(policy, kind,
				fmt.Sprintf("contain %q %d times: names must differ to set a rate", name, count[name]))
		}
	}
}

// LinkQueues returns the queues of a link.
func (p *Plan) LinkQueues(l *Link) []queue.LinkQueue {
	out := make([]queue.LinkQueue, len(l.Queues))
	for i, q := range l.Queues {
		out[i] = p.Queues[q].LinkQueue
	}
	return out
}
