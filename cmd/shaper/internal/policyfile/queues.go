package policyfile

import (
	"fmt"
	"math/big"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// link reads an entry of links.
func (l *loader) link(link *dataplane.Link, n *yaml.Node) {
	rate := false
	var above, share *yaml.Node
	var guarantee rates
	ok := l.mapping(n, "a link", append(keys{
		{"rate", func(n *yaml.Node) {
			rate = true
			link.Rate, link.Up.Rate = l.rates(n, "rate").split()
		}},
		{"link", func(n *yaml.Node) { above = n }},
	}, l.shareKeys(&share, &guarantee, &link.Priority, &link.Weight)...))
	link.Guarantee, link.Up.Guarantee = guarantee.split()
	switch {
	case !ok:
	case above != nil:
		link.Link = l.linkNamed(above)
	case !rate:
		l.fail(n, "link %q needs a rate, such as rate: 100mbit, or a link above it", link.Name)
	case share != nil:
		l.fail(share, "guarantee, priority and weight need a link: link %q has no link above it", link.Name)
	}
}

// shareKeys reads the place of a queue or a link among the children of its link. found is set to the
// last key.
func (l *loader) shareKeys(found **yaml.Node, guarantee *rates, priority, weight *int) keys {
	number := func(what string, least int, to *int) func(*yaml.Node) {
		return func(n *yaml.Node) {
			*found = n
			*to = l.atLeast(n, what, least)
		}
	}
	return keys{
		{"guarantee", func(n *yaml.Node) {
			*found = n
			*guarantee = l.rates(n, "guarantee")
		}},
		{"priority", number("priority", 0, priority)},
		{"weight", number("weight", 1, weight)},
	}
}

// atLeast reads a whole number.
func (l *loader) atLeast(n *yaml.Node, what string, least int) int {
	v, ok := parsed(l, n, what, parseInt)
	if ok && v < least {
		l.fail(n, "%s must be at least %d", what, least)
	}
	return v
}

// queue reads an entry of queues.
func (l *loader) queue(name string, n *yaml.Node) {
	q := &dataplane.Queue{Name: name}
	l.queues[name] = q
	l.file.Policy.Queues = append(l.file.Policy.Queues, q)
	l.keepPlaces(q, n)
	var rate, limit, wred, link, share, fair, codel *yaml.Node
	var guarantee rates
	joinPrefixes(n)
	ok := l.mapping(n, "a queue", append(keys{
		{"rate", func(n *yaml.Node) {
			rate = n
			q.Rate, q.Up.Rate = l.rates(n, "rate").split()
		}},
		{"link", func(n *yaml.Node) { link = n }},
		{"limit", func(n *yaml.Node) { limit = n }},
		{"wred", func(n *yaml.Node) { wred = n }},
		{"codel", func(n *yaml.Node) { codel = n }},
		{"fair", func(n *yaml.Node) {
			fair = n
			q.Hosts, q.Fair = l.fair(n)
		}},
		{"ecn", func(n *yaml.Node) { q.ECN, _ = l.boolean(n, "ecn") }},
		{"seed", func(n *yaml.Node) { q.Seed, _ = parsed(l, n, "seed", parseSeed) }},
	}, l.shareKeys(&share, &guarantee, &q.Priority, &q.Weight)...))
	q.Guarantee, q.Up.Guarantee = guarantee.split()
	if fair == nil && rate != nil && link == nil && wred == nil {
		q.Fair.By = dataplane.ByFlow
	}
	switch {
	case !ok:
		return
	case rate == nil && link == nil:
		l.fail(n, "queue %q needs a rate, such as rate: 20mbit, or a link", name)
	case link != nil:
		q.Link = l.linkNamed(link)
	case share != nil:
		l.fail(share, "guarantee, priority and weight need a link: queue %q has its own rate", name)
	case q.Fair.By != dataplane.NoKey:
		l.addLink(q, rate)
	}
	if codel != nil || q.Fair.By != dataplane.NoKey {
		q.TargetAtRate, q.IntervalAtRate = l.codel(&q.CoDel, codel, q.Drain())
	}
	if limit == nil {
		l.fail(n, "queue %q needs a limit, such as limit: 100ms (or 64KiB, or 100p)", name)
		return
	}
	if a, ok := l.amount(limit, "limit"); ok {
		if a.n == 0 {
			l.fail(limit, "limit must be above zero")
			return
		}
		a.setLimit(&q.Config)
		if wred != nil {
			l.wred(q, a, wred)
		}
	}
}

// fair reads a key, or two: of the hosts, and of the flows of a host.
func (l *loader) fair(n *yaml.Node) (hosts, flows dataplane.Key) {
	switch {
	case n.Kind == yaml.SequenceNode && len(n.Content) == 2:
		hosts, _ = parsed(l, target(n.Content[0]), "fair", parseFair)
		flows, _ = parsed(l, target(n.Content[1]), "fair", parseFair)
	case n.Kind == yaml.SequenceNode:
		l.fail(n, "fair needs a key, or a list of two, such as [dst, flow]: each dst the same, then each flow of it")
	case n.Value != "false":
		flows, _ = parsed(l, n, "fair", parseFair)
	}
	return hosts, flows
}

// linkNamed returns the link named by a key, or nil if there is none.
func (l *loader) linkNamed(n *yaml.Node) *dataplane.Link {
	name, ok := l.text(n, "link")
	if !ok {
		return nil
	}
	link := l.links[name]
	if link == nil {
		l.fail(n, "no link named %q%s: define it under links:", name,
			l.didYouMean("link", name, func() []string { return sorted(l.links) }))
	}
	return link
}

// addLink adds a link for a fair queue with its own rate: only queues of links can be fair.
func (l *loader) addLink(q *dataplane.Queue, rate *yaml.Node) {
	if l.links[q.Name] != nil {
		l.fail(rate,
			"fair queue %q gets a link of the same name, but another link has that name: rename one, or write link: %[1]s, or fair: false",
			q.Name)
		return
	}
	q.Link = &dataplane.Link{Name: q.Name, Rate: q.Rate, Up: q.Up}
	q.Rate, q.Up = meter.Rate{}, dataplane.Upward{}
	l.file.Policy.Links = append(l.file.Policy.Links, q.Link)
	l.parts[q.Link] = l.parts[q]
}

// amount is a size of a backlog.
type amount struct {
	axis queue.Axis
	n    int64 // ns, bytes or packets
}

// setLimit makes the amount the limit of a queue.
func (a amount) setLimit(c *queue.Config) {
	switch a.axis {
	case queue.ByTime:
		c.Time = time.Duration(a.n)
	case queue.ByBytes:
		c.Bytes = a.n
	case queue.ByPackets:
		c.Packets = a.n
	}
}

// amount reads a time, a size, or a number of packets such as 100p.
func (l *loader) amount(n *yaml.Node, what string) (amount, bool) {
	s, ok := l.text(n, what)
	if !ok {
		return amount{}, false
	}
	_, unit, _, known := splitQuantity(s)
	switch {
	case isDuration(s), unit == "m":
		d, ok := parsed(l, n, what, ParseDuration)
		return amount{queue.ByTime, int64(d)}, ok
	case known && unit == "p":
		v, ok := parsed(l, n, what, parsePacketCount)
		return amount{queue.ByPackets, v}, ok
	}
	v, ok := parsed(l, n, what, ParseSize)
	return amount{queue.ByBytes, v}, ok
}

func parsePacketCount(s string) (int64, error) {
	number, _, value, _ := splitQuantity(s)
	if !value.IsInt() || !value.Num().IsInt64() {
		return 0, fmt.Errorf("%s is not a whole number of packets", number)
	}
	return value.Num().Int64(), nil
}

var axisNames = [...]string{
	queue.ByTime: "a time", queue.ByBytes: "a size", queue.ByPackets: "packets, such as 20p",
}

// wred reads thresholds by color. They have the unit of the limit.
func (l *loader) wred(q *dataplane.Queue, limit amount, n *yaml.Node) {
	known := keys{}
	for color := meter.Green; color <= meter.Red; color++ {
		known = append(known, entry{color.String(), func(n *yaml.Node) {
			var has [3]bool
			bound := func(i int, key string, to *int64) func(*yaml.Node) {
				return func(n *yaml.Node) {
					has[i] = true
					if a, ok := l.amount(n, key); ok {
						if a.axis != limit.axis && a.n != 0 {
							l.fail(n, "%s must be %s, like the queue's limit", key, axisNames[limit.axis])
						}
						*to = a.n
					}
				}
			}
			e, before := &q.WRED[color], len(l.errs)
			l.mapping(n, "wred of a color", keys{
				{"min", bound(0, "min", &e.Min)},
				{"max", bound(1, "max", &e.Max)},
				{"probability", func(n *yaml.Node) {
					has[2] = true
					e.Probability, _ = parsed(l, n, "probability", parseProbability)
				}},
			})
			switch {
			case len(l.errs) > before:
			case has != [3]bool{true, true, true}:
				l.fail(n,
					"wred needs min, max and probability, such as {min: 30ms, max: 80ms, probability: 0.1}")
			case e.Max == 0:
				l.fail(n, "wred needs a max above zero")
			case e.Min > e.Max:
				l.fail(n, "wred has min above max: it begins to drop at min, and drops all from max on")
			case e.Max > limit.n:
				l.fail(n, "wred has a max above the queue's limit, at which all packets are dropped anyway")
			}
		}})
	}
	l.mapping(n, "wred", known)
}

// parseProbability rounds to the nearest 1/queue.Certain.
func parseProbability(s string) (uint32, error) {
	_, unit, value, ok := splitQuantity(s)
	if !ok || unit != "" || value.Cmp(big.NewRat(1, 1)) > 0 {
		return 0, fmt.Errorf("%q is not a number between 0 and 1", s)
	}
	value.Mul(value, big.NewRat(queue.Certain, 1)).Add(value, big.NewRat(1, 2))
	return uint32(new(big.Int).Quo(value.Num(), value.Denom()).Uint64()), nil
}

// codel reads true or false, or target and interval, whose defaults depend on the rate. A nil node
// means true. It reports which of them depend on it.
func (l *loader) codel(c *queue.CoDel, n *yaml.Node, rate meter.Rate) (target, interval bool) {
	*c = queue.CoDelAt(rate)
	if n == nil {
		return true, true
	}
	if n.Kind == yaml.ScalarNode {
		switch n.Value {
		case "true":
			return true, true
		case "false":
			*c = queue.CoDel{}
		default:
			l.fail(n,
				"codel must be true, false, or a mapping such as {target: 5ms, interval: 100ms}, not %s",
				kindName(n))
		}
		return false, false
	}
	target, interval = true, true
	var last *yaml.Node
	l.mapping(n, "codel", keys{
		{"target", func(n *yaml.Node) {
			target, interval = false, false
			c.Target, _ = parsed(l, n, "target", ParseDuration)
			c.Interval = queue.CoDelOf(c.Target).Interval
		}},
		{"interval", func(n *yaml.Node) { last = n }},
	})
	if last != nil {
		interval = false
		c.Interval, _ = parsed(l, last, "interval", ParseDuration)
	}
	return target, interval
}
