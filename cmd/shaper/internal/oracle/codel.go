package oracle

import (
	"errors"
	"fmt"
	"math/big"

	"go.yaml.in/yaml/v3"
)

// codel is the state of RFC 8289 for one queue. Times are in ns.
type codel struct {
	target, interval *big.Int

	firstAbove       *big.Int // nil: none
	dropping         bool
	dropNext         *big.Int
	count, lastCount int64
}

// victim reports whether a packet departing at t after a queueing delay must be dropped.
func (c *codel) victim(t, wait *big.Int) bool {
	above := false
	switch {
	case wait.Cmp(c.target) < 0:
		c.firstAbove = nil
	case c.firstAbove == nil:
		c.firstAbove = new(big.Int).Add(t, c.interval)
	default:
		above = t.Cmp(c.firstAbove) >= 0
	}
	if !above {
		c.dropping = false
		return false
	}

	if c.dropping {
		if t.Cmp(c.dropNext) < 0 {
			return false
		}
		c.count++
		c.dropNext = new(big.Int).Add(c.dropNext, c.pause())
		return true
	}
	fresh := c.count - c.lastCount
	since := new(big.Int).Sub(t, c.dropNext)
	if fresh > 1 && since.Cmp(new(big.Int).Lsh(c.interval, 4)) < 0 {
		c.count = fresh
	} else {
		c.count = 1
	}
	c.lastCount = c.count
	c.dropping = true
	c.dropNext = new(big.Int).Add(t, c.pause())
	return true
}

// pause is interval / sqrt(count), rounded down.
func (c *codel) pause() *big.Int {
	square := new(big.Int).Mul(c.interval, c.interval)
	return square.Sqrt(square.Div(square, big.NewInt(c.count)))
}

// parseCodel reads true, false, which is nil, or the times. The default of the target is 5 ms, or
// the time of 3000 bytes at the rate in bytes per ns, rounded up to ms; the default of the interval
// is 100 ms, or two targets. Neither default makes an interval above 3 s.
func parseCodel(n *yaml.Node, rate *big.Rat) (*codel, error) {
	switch {
	case n.Kind == yaml.ScalarNode && n.Value == "false":
		return nil, nil
	case n.Kind == yaml.ScalarNode && n.Value == "true":
		n = &yaml.Node{Kind: yaml.MappingNode}
	}
	entries, err := mapping(n, "target", "interval")
	if err != nil {
		return nil, err
	}
	c := &codel{dropNext: new(big.Int)}
	duration := func(key string, otherwise *big.Int) *big.Int {
		s, e := optional(entries, key, otherwise.String()+"ns")
		ns, isTime, e2 := parseTime(s)
		if err = errors.Join(err, e, e2); err != nil || !isTime || !ns.IsInt() {
			err = errors.Join(err, at(n, fmt.Errorf("%s: %q is not a time", key, s)))
			return otherwise
		}
		return ns.Num()
	}
	const ms = 1_000_000
	packets := sending(3000, rate)
	target := ceil(packets.Quo(packets, whole(ms)))
	target.Mul(target, big.NewInt(ms))
	c.target = duration("target", within(target, 5*ms, 1500*ms))
	c.interval = duration("interval", within(new(big.Int).Lsh(c.target, 1), 100*ms, 3000*ms))
	if err != nil {
		return nil, err
	}
	if c.interval.Sign() == 0 || c.interval.Cmp(big.NewInt(4e9)) > 0 {
		return nil, at(n, errors.New("interval: not above 0 and up to 4 s"))
	}
	return c, nil
}

// within returns n, or the bound exceeded by n.
func within(n *big.Int, low, high int64) *big.Int {
	switch {
	case n.Cmp(big.NewInt(low)) < 0:
		return big.NewInt(low)
	case n.Cmp(big.NewInt(high)) > 0:
		return big.NewInt(high)
	}
	return n
}
