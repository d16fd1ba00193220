package oracle

import (
	"errors"
	"math/big"

	"go.yaml.in/yaml/v3"
)

// queue paces packets: one may leave when the one before has been sent at the rate.
type queue struct {
	rate *big.Rat // bytes a nanosecond

	// One of these is the limit, the others are nil.
	maxWait    *big.Rat // nanoseconds
	maxBytes   *big.Rat
	maxPackets *big.Rat

	next   *big.Rat // when the next packet may leave; nil before the first
	inside []queued
}

type queued struct {
	depart *big.Rat
	length int64
}

// offer returns the departure of a packet, or false where the queue is full: then
// the queue is as it was.
func (q *queue) offer(now *big.Rat, length int64) (depart *big.Rat, ok bool) {
	depart = now
	if q.next != nil && q.next.Cmp(now) > 0 {
		depart = q.next
	}

	var waiting []queued
	packets, bytes := int64(1), length // this one included
	for _, other := range q.inside {
		if other.depart.Cmp(now) > 0 {
			waiting = append(waiting, other)
			packets++
			bytes += other.length
		}
	}
	q.inside = waiting

	wait := new(big.Rat).Sub(depart, now)
	switch {
	case q.maxWait != nil && wait.Cmp(q.maxWait) > 0,
		q.maxBytes != nil && whole(bytes).Cmp(q.maxBytes) > 0,
		q.maxPackets != nil && whole(packets).Cmp(q.maxPackets) > 0:
		return nil, false
	}

	sending := new(big.Rat).Quo(whole(length), q.rate)
	q.next = new(big.Rat).Add(depart, sending)
	q.inside = append(q.inside, queued{depart, length})
	return depart, true
}

func parseQueue(n *yaml.Node) (*queue, error) {
	entries, err := mapping(n, "rate", "limit")
	if err != nil {
		return nil, err
	}
	q := &queue{}
	rate, err := optional(entries, "rate", "")
	if err != nil {
		return nil, err
	}
	if q.rate, err = parseRate(rate, false); err != nil {
		return nil, at(n, err)
	}
	if q.rate.Sign() == 0 {
		return nil, at(n, errors.New("a queue without rate"))
	}
	limit, err := optional(entries, "limit", "")
	if err != nil {
		return nil, err
	}
	if number, unit, err := split(limit); err == nil && unit == "p" && number.IsInt() {
		q.maxPackets = number
		return q, nil
	}
	wait, isTime, err := parseTime(limit)
	if err != nil {
		return nil, at(n, err)
	}
	if isTime {
		q.maxWait = wait
		return q, nil
	}
	if q.maxBytes, err = parseSize(limit); err != nil {
		return nil, at(n, err)
	}
	return q, nil
}
