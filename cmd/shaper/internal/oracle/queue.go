package oracle

import (
	"errors"
	"fmt"
	"math/big"
	"slices"
	"strconv"

	"go.yaml.in/yaml/v3"
)

// Units of a queue's limit.
const (
	inTime    = "time"
	inBytes   = "bytes"
	inPackets = "packets"
)

// holdsAtMost is the maximum number of packets of any queue.
const holdsAtMost = 65536

// queue is a queue with its own rate, or a queue of a link.
type queue struct {
	axis  string
	limit *big.Rat // ns, bytes or packets
	wred  [3]*wred // by color; nil: none
	codel *codel   // nil: none
	ecn   bool     // ECN-capable victims get CE instead of being dropped
	seed  uint64
	drawn uint64 // number of random numbers drawn

	// With its own rate.
	rate   *big.Rat // bytes per nanosecond
	next   *big.Rat // earliest departure of the next packet; nil before the first packet
	inside []*queued

	// On a link.
	link    *node
	place   *node
	waiting []*queued             // in the order of arrival
	key     func(frame) [5]uint64 // key of a fair queue's flows
	hosts   func(frame) [5]uint64 // key of the hosts that share the queue; nil: none
	all     flow
}

// wred is the early drop of one color.
type wred struct {
	min, max *big.Rat // in the unit of the limit
	share    *big.Int // probability at max, in 1/2^24
}

// queued is a packet in a queue. Its outcome is written to its row.
type queued struct {
	*row
	arrival *big.Int // on the clock
	capable bool     // ECN-capable
	color   color

	droppedAt *big.Int // by a link
}

// refuses lets a customer's own queue decide before the meters. It reports whether the queue drops
// the packet. Otherwise the queue stays as it was.
func (q *queue) refuses(p *queued) bool {
	if q.link != nil {
		q.link.enter().reach(p.arrival)
		return !q.room(p)
	}
	try, as := *q, *p.row
	if q.codel != nil {
		own := *q.codel
		try.codel = &own
	}
	try.inside = slices.Clone(q.inside)
	trial := *p
	trial.row = &as
	if try.offer(&trial); !as.dropped {
		return false
	}
	q.offer(p)
	return true
}

// offer passes an arriving packet to the queue.
func (q *queue) offer(p *queued) {
	if q.link != nil {
		q.link.enter().offer(q, p)
		return
	}

	now := new(big.Rat).SetInt(p.arrival)
	start := now
	if q.next != nil && q.next.Cmp(now) > 0 {
		start = q.next
	}
	depart := ceil(start)
	wait := new(big.Int).Sub(depart, p.arrival)

	q.inside = slices.DeleteFunc(q.inside, func(other *queued) bool {
		return other.sent.Cmp(p.arrival) <= 0
	})
	backlog := q.backlog(q.inside, wait)
	if q.breaks(p, backlog, len(q.inside)) {
		p.drop("queue-full")
	} else if q.early(p, backlog) && q.codel != nil && q.codel.victim(depart, wait) {
		q.strike(p, "codel")
	}
	if p.dropped {
		p.refund(p.arrival)
		return
	}
	q.next = new(big.Rat).Add(start, sending(p.length, q.rate))
	p.leave(depart)
	q.inside = append(q.inside, p)
}

// backlog returns the backlog in the unit of the limit.
func (q *queue) backlog(waiting []*queued, wait *big.Int) *big.Rat {
	switch q.axis {
	case inTime:
		return new(big.Rat).SetInt(wait)
	case inPackets:
		return whole(int64(len(waiting)))
	}
	bytes := int64(0)
	for _, p := range waiting {
		bytes += p.length
	}
	return whole(bytes)
}

// breaks reports whether a packet exceeds the limit with a given backlog.
func (q *queue) breaks(p *queued, backlog *big.Rat, packets int) bool {
	with := new(big.Rat).Set(backlog) // including this packet
	switch q.axis {
	case inBytes:
		with.Add(with, whole(p.length))
	case inPackets:
		with.Add(with, whole(1))
	}
	return with.Cmp(q.limit) > 0 || q.axis != inTime && int64(packets)+1 > q.holds()
}

// early applies WRED to the backlog before the packet. It returns false if the packet is
// dropped.
func (q *queue) early(p *queued, backlog *big.Rat) bool {
	w := q.wred[p.color]
	switch {
	case w == nil || backlog.Cmp(w.min) < 0:
		return true
	case backlog.Cmp(w.max) >= 0: // whether ECN-capable or not
		p.drop("wred")
		return false
	case w.hits(backlog, q.draw()):
		return q.strike(p, "wred")
	}
	return true
}

// holds returns the maximum number of packets of a queue with a limit in bytes or packets.
func (q *queue) holds() int64 {
	if q.axis == inPackets {
		return holdsAtMost
	}
	twenties := floor(new(big.Rat).Quo(q.limit, whole(20)))
	if !twenties.IsInt64() {
		return holdsAtMost
	}
	return min(holdsAtMost, max(1, twenties.Int64()))
}

// hits reports whether a random number r of 24 bits makes a victim at a backlog between min and
// max: r / 2^24 is below the probability there, which rises linearly.
func (w *wred) hits(backlog *big.Rat, r uint64) bool {
	left := new(big.Rat).Sub(w.max, w.min)
	left.Mul(left, whole(int64(r)))
	right := new(big.Rat).Sub(backlog, w.min)
	right.Mul(right, new(big.Rat).SetInt(w.share))
	return left.Cmp(right) < 0
}

// draw returns the queue's next random number of 24 bits.
func (q *queue) draw() uint64 {
	q.drawn++
	return splitmix64(q.seed+q.drawn*0x9E3779B97F4A7C15) >> 40
}

func splitmix64(z uint64) uint64 {
	z = (z ^ z>>30) * 0xBF58476D1CE4E5B9
	z = (z ^ z>>27) * 0x94D049BB133111EB
	return z ^ z>>31
}

// control asks the flow's CoDel about a packet departing from a link at t. It returns false if the
// packet is dropped.
func (q *queue) control(p *queued, t *big.Int, f *flow) bool {
	return f.codel == nil || !f.codel.victim(t, f.standing(p, t)) || q.strike(p, "codel")
}

// strike sets CE in a victim if possible. Otherwise it drops the packet and returns false.
func (q *queue) strike(p *queued, reason string) bool {
	if q.ecn && p.capable {
		p.ecn = true
		return true
	}
	p.drop(reason)
	return false
}

// sending returns the transmission time of a packet at a rate, in ns.
func sending(length int64, rate *big.Rat) *big.Rat {
	return new(big.Rat).Quo(whole(length), rate)
}

// speed returns the rate of a queue, or the lowest up to the root of its link.
func (q *queue) speed() *big.Rat {
	if q.link != nil {
		return q.place.reach()
	}
	return q.rate
}

// parseQueue reads a queue of a policy or of a plan. The queue of a plan is first in, first out, unless it
// says otherwise.
func parseQueue(n *yaml.Node, links map[string]*node, plan bool) (*queue, error) {
	entries, err := mapping(n, "rate", "link", "priority", "weight", "limit", "wred", "codel", "ecn", "seed",
		"fair", "guarantee")
	if err != nil {
		return nil, err
	}
	q := &queue{}
	switch on := entries["link"]; {
	case on != nil:
		if q.link = links[on.Value]; q.link == nil {
			return nil, at(n, fmt.Errorf("no link %q", on.Value))
		}
	case entries["rate"] == nil:
		return nil, at(n, errors.New("a queue has a rate or a link"))
	case entries["priority"] != nil || entries["weight"] != nil || entries["guarantee"] != nil:
		return nil, at(n, errors.New("priority, weight and guarantee are for queues of a link"))
	default:
		if q.rate, err = parseSpeed(entries["rate"]); err != nil {
			return nil, err
		}
	}
	key := "false"
	if entries["link"] == nil && entries["wred"] == nil && !plan {
		key = "flow"
	}
	if node := entries["fair"]; node != nil {
		key = node.Value
		if node.Kind == yaml.SequenceNode && len(node.Content) == 2 {
			if q.hosts, err = parseFair(node.Content[0].Value); err != nil {
				return nil, at(n, err)
			}
			key = node.Content[1].Value
		}
	}
	if key != "false" {
		if q.key, err = parseFair(key); err != nil {
			return nil, at(n, err)
		}
		if q.link == nil {
			q.link = newRoot(q.rate)
		}
	}
	if q.link != nil {
		if q.place, err = parsePlace(entries, q.link, entries["link"] != nil); err != nil {
			return nil, at(n, err)
		}
		q.place.queue = q
	}

	integer := func(key, otherwise string, low, high uint64) uint64 {
		s, e := optional(entries, key, otherwise)
		i, e2 := strconv.ParseUint(s, 10, 64)
		if i < low || i > high {
			e2 = fmt.Errorf("%s: not from %d to %d", key, low, high)
		}
		err = errors.Join(err, e, e2)
		return i
	}
	q.seed = integer("seed", "0", 0, 1<<64-1)
	ecn, e := optional(entries, "ecn", "false")
	limit, e2 := optional(entries, "limit", "")
	if err := errors.Join(err, e, e2); err != nil {
		return nil, at(n, err)
	}
	if ecn != "true" && ecn != "false" {
		return nil, at(n, fmt.Errorf("ecn: %q is not true or false", ecn))
	}
	q.ecn = ecn == "true"

	var speed *big.Rat // converts times to bytes; nil: they stay times
	if q.link != nil {
		speed = q.speed()
	}
	axis, _, err := parseLevel(limit, speed)
	if err != nil {
		return nil, at(n, err)
	}
	level := func(n *yaml.Node) (*big.Rat, error) {
		if n == nil {
			return nil, errors.New("a limit, min or max is missing")
		}
		here, value, err := parseLevel(n.Value, speed)
		if err == nil && here != axis {
			err = fmt.Errorf("%q is not in %s as the limit", n.Value, axis)
		}
		return value, err
	}
	if q.limit, err = level(entries["limit"]); err != nil {
		return nil, at(n, err)
	}
	if q.limit.Sign() == 0 {
		return nil, at(n, errors.New("limit: not above zero"))
	}
	if axis == inPackets && q.limit.Cmp(whole(holdsAtMost)) > 0 {
		return nil, at(n, fmt.Errorf("limit: more than %d packets", holdsAtMost))
	}
	q.axis = axis
	if q.link != nil && axis == inTime {
		q.axis = inBytes
	}

	if node := entries["wred"]; node != nil {
		colors, err := mapping(node, "green", "yellow", "red")
		if err != nil {
			return nil, err
		}
		for color, name := range []string{"green", "yellow", "red"} {
			if colors[name] == nil {
				continue
			}
			w, err := parseWRED(colors[name], level)
			if err == nil && w.max.Cmp(q.limit) > 0 {
				err = errors.New("max above the limit")
			}
			if err != nil {
				return nil, at(node, err)
			}
			q.wred[color] = w
		}
	}
	if node := entries["codel"]; node != nil {
		if q.codel, err = parseCodel(node, q.speed()); err != nil {
			return nil, err
		}
	} else if q.key != nil {
		q.codel, _ = parseCodel(&yaml.Node{Kind: yaml.MappingNode}, q.speed())
	}
	return q, nil
}

func parseWRED(n *yaml.Node, level func(*yaml.Node) (*big.Rat, error)) (*wred, error) {
	entries, err := mapping(n, "min", "max", "probability")
	if err != nil {
		return nil, err
	}
	w := &wred{}
	if w.min, err = level(entries["min"]); err != nil {
		return nil, err
	}
	if w.max, err = level(entries["max"]); err != nil {
		return nil, err
	}
	if w.min.Cmp(w.max) > 0 {
		return nil, errors.New("min above max")
	}
	s, err := optional(entries, "probability", "")
	if err != nil {
		return nil, err
	}
	p, unit, err := split(s)
	if err != nil || unit != "" || p.Cmp(whole(1)) > 0 {
		return nil, fmt.Errorf("%q is not a probability", s)
	}
	p.Mul(p, whole(1<<24))
	w.share = floor(p.Add(p, big.NewRat(1, 2))) // half up
	return w, nil
}
