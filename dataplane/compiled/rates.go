package compiled

import (
	"errors"
	"fmt"
	"maps"
	"math/big"
	"reflect"
	"slices"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// Share changes the rate of a link or a queue, and its place among the children of its link. What is nil
// stays.
type Share struct {
	Rate, Guarantee  *meter.Rate
	Priority, Weight *int
}

// WithRates is WithShares of rates.
func (p *Plan) WithRates(queues, links map[string]meter.Rate) (*Plan, error) {
	return p.WithShares(sharesOf(queues), sharesOf(links))
}

func sharesOf(rates map[string]meter.Rate) map[string]Share {
	out := map[string]Share{}
	for name, rate := range rates {
		out[name] = Share{Rate: &rate}
	}
	return out
}

// Shares are changes of queues and links by name.
type Shares struct{ Queues, Links map[string]Share }

// WithShares returns a copy of the plan with other rates, guarantees, priorities and weights of queues and
// links, by name, for SetRates of a running shaper. A queue alone on a link of its own name has the link's
// rate. Limits in time stay times; times of CoDel follow the rate if Queue.TargetAtRate or IntervalAtRate
// says so.
// Everything else is shared with p, the Sources included: they have the rates and CoDel of the
// policy. The error joins a dataplane.FieldError for each value that is invalid or cannot be set.
func (p *Plan) WithShares(queues, links map[string]Share) (*Plan, error) {
	shares := Shares{queues, links}
	return p.WithSharesOf(shares, shares)
}

// WithSharesOf is WithShares with others for packets to the customers and for those from them.
func (p *Plan) WithSharesOf(down, up Shares) (*Plan, error) {
	next, err := p.withShares(down)
	if err != nil || p.Up == nil && reflect.DeepEqual(down, up) {
		return next, err
	}
	if next.Up, err = p.upward().withShares(up); err != nil {
		return nil, inUpward(p.upward().Source, err)
	}
	return next, nil
}

// withShares is WithShares for one direction.
func (p *Plan) withShares(shares Shares) (*Plan, error) {
	var errs errorList
	queues, links := p.ownLinks(&errs, shares.Queues, shares.Links)
	out := *p
	out.Queues, out.Links = slices.Clone(p.Queues), slices.Clone(p.Links)
	queuesOf, linksOf := map[string]int{}, map[string]int{}
	for i := range out.Links {
		l := &out.Links[i]
		share, given := links[l.Name]
		if linksOf[l.Name]++; !given {
			continue
		}
		share.apply(&l.Rate, &l.Guarantee, &l.Priority, &l.Weight)
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
		share, given := queues[q.Name]
		queuesOf[q.Name]++
		if given && !share.fits(p, q, &errs) {
			continue
		}
		share.apply(&q.Config.Rate, &q.Guarantee, &q.Priority, &q.Weight)
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

// apply changes the values that are given.
func (s *Share) apply(rate, guarantee *meter.Rate, priority, weight *int) {
	set(rate, s.Rate)
	set(guarantee, s.Guarantee)
	set(priority, s.Priority)
	set(weight, s.Weight)
}

func set[T any](to, value *T) {
	if value != nil {
		*to = *value
	}
}

// fits reports whether a queue can have the values that are given; if not, it adds errors.
func (s *Share) fits(p *Plan, q *Queue, errs *errorList) bool {
	before := len(*errs)
	switch {
	case q.Link < 0:
		const reason = "cannot be set: the queue is on no link"
		for _, v := range []struct {
			name  string
			given bool
		}{{"guarantee", s.Guarantee != nil}, {"priority", s.Priority != nil}, {"weight", s.Weight != nil}} {
			if v.given {
				errs.add(q.Source, v.name, reason)
			}
		}
	case s.Rate != nil && q.Rate == meter.Rate{}:
		errs.add(q.Source, "rate", fmt.Sprintf(
			"cannot be set: the queue is sent at the rate of link %q, so set that", p.Links[q.Link].Name))
	}
	return len(*errs) == before
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
	source.Rate, source.Guarantee, source.Priority, source.Weight = q.Rate, q.Guarantee, q.Priority, q.Weight
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
	errs *errorList, queues, links map[string]Share,
) (ofQueues, ofLinks map[string]Share) {
	ofQueues, ofLinks = maps.Clone(queues), maps.Clone(links)
	for i := range p.Queues {
		q := &p.Queues[i]
		share, given := queues[q.Name]
		if !given || q.Link < 0 || p.Links[q.Link].Name != q.Name || q.Rate != (meter.Rate{}) || !p.alone(q) {
			continue
		}
		if share.Guarantee != nil || share.Priority != nil || share.Weight != nil {
			errs.add(q.Source, "rate", "is all that can be set: the queue is alone on its link")
		}
		if share.Rate == nil {
			continue
		}
		if other, both := links[q.Name]; both && other.Rate != nil && other.Rate.Cmp(*share.Rate) != 0 {
			errs.add(q.Source, "rate",
				fmt.Sprintf("is also set for link %q, its own: reset that first", q.Name))
		}
		delete(ofQueues, q.Name)
		if ofLinks == nil {
			ofLinks = map[string]Share{}
		}
		ofLinks[q.Name] = share
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
	policy *dataplane.Policy, kind string, rates map[string]Share, count map[string]int,
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
