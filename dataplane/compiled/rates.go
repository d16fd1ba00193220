package compiled

import (
	"errors"
	"fmt"
	"maps"
	"math/big"
	"slices"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// Rates are rates of queues and links by name.
type Rates struct{ Queues, Links map[string]meter.Rate }

// WithRates returns a copy of the plan with other rates of queues and links, by name, for SetRates
// of a running shaper. A queue alone on a link of its own name has the link's rate. Limits in time
// stay times; times of CoDel follow the rate if Queue.TargetAtRate or IntervalAtRate says so.
// Everything else is shared with p, the Sources included: they have the rates and CoDel of the
// policy. The error joins a dataplane.FieldError for each rate that is invalid or cannot be set.
func (p *Plan) WithRates(queues, links map[string]meter.Rate) (*Plan, error) {
	rates := Rates{queues, links}
	return p.WithRatesOf(rates, rates)
}

// WithRatesOf is WithRates with other rates for packets to the customers and for those from them.
func (p *Plan) WithRatesOf(down, up Rates) (*Plan, error) {
	next, err := p.withRates(down)
	same := maps.Equal(down.Queues, up.Queues) && maps.Equal(down.Links, up.Links)
	if err != nil || p.Up == nil && same {
		return next, err
	}
	if next.Up, err = p.upward().withRates(up); err != nil {
		return nil, inUpward(p.upward().Source, err)
	}
	return next, nil
}

// withRates is WithRates for one direction.
func (p *Plan) withRates(rates Rates) (*Plan, error) {
	var errs errorList
	queues, links := p.ownLinks(&errs, rates.Queues, rates.Links)
	out := *p
	out.Queues, out.Links = slices.Clone(p.Queues), slices.Clone(p.Links)
	queuesOf, linksOf := map[string]int{}, map[string]int{}
	for i := range out.Links {
		l := &out.Links[i]
		rate, given := links[l.Name]
		if linksOf[l.Name]++; !given {
			continue
		}
		l.Rate = rate
		if err := l.Check(l.Above < 0); err != nil {
			errs.addError(l.Source, "rate", err)
		}
	}
	changed := func(link int) bool {
		for i := link; i >= 0; i = out.Links[i].Above {
			if _, given := links[out.Links[i].Name]; given {
				return true
			}
		}
		return false
	}
	for i := range out.Queues {
		q := &out.Queues[i]
		rate, given := queues[q.Name]
		queuesOf[q.Name]++
		switch {
		case !given:
		case q.Link >= 0 && q.Rate == meter.Rate{}:
			errs.add(q.Source, "rate", fmt.Sprintf(
				"cannot be set: the queue is sent at the rate of link %q, so set that", p.Links[q.Link].Name))
			continue
		default:
			q.Config.Rate = rate
		}
		if given || changed(q.Link) {
			out.setRate(q, &errs)
		}
	}
	if out.Customers != nil {
		for i := range out.Customers.Plans {
			s := &out.Customers.Plans[i]
			if link := out.LinkOf(s); changed(link) {
				out.checkLimit(s, link, &errs)
			}
		}
	}
	out.checkGuarantees(&errs)
	errs.checkNames(p.Source, "queues", queues, queuesOf)
	errs.checkNames(p.Source, "links", links, linksOf)
	if errs != nil {
		return nil, errors.Join(errs...)
	}
	return &out, nil
}

// setRate adapts a queue to its rate and those of its link and the links above.
func (p *Plan) setRate(q *Queue, errs *errorList) {
	if q.Link < 0 {
		q.setDrain(q.Rate)
		if _, err := queue.New(q.Config); err != nil {
			errs.addError(q.Source, "rate", err)
		}
		return
	}
	reach := p.Reach(q.Link)
	if !validRate(reach) {
		return // an error of the link
	}
	source := q.Source.LinkQueue()
	source.Rate = q.Rate
	parent := q.Parent
	var err error
	if q.LinkQueue, err = source.Resolve(reach); err != nil {
		errs.addError(q.Source, "limit", err)
	}
	q.Parent = parent
	q.setDrain(queue.Lowest(q.Rate, reach))
}

// checkGuarantees refuses guarantees of queues that do not fit into their link.
func (p *Plan) checkGuarantees(errs *errorList) {
	for i := range p.Links {
		l := &p.Links[i]
		sum := new(big.Rat)
		for _, q := range l.Queues {
			if g := p.Queues[q].Guarantee; g.Period > 0 {
				sum.Add(sum, big.NewRat(g.Bytes, int64(g.Period)))
			}
		}
		rate := p.Reach(i)
		if validRate(rate) && sum.Cmp(big.NewRat(rate.Bytes, int64(rate.Period))) > 0 {
			errs.add(l.Source, "rate",
				fmt.Sprintf("of %v is below the sum of the guarantees of its queues: lower them", rate))
		}
	}
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
		if !given || q.Link < 0 || p.Links[q.Link].Name != q.Name || q.Rate != (meter.Rate{}) || !p.alone(q) {
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

// alone reports whether no other queue and no link is on the link of a queue.
func (p *Plan) alone(q *Queue) bool {
	return len(p.Links[q.Link].Queues) == 1 &&
		!slices.ContainsFunc(p.Links, func(l Link) bool { return l.Above == q.Link })
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
