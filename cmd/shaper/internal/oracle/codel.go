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

// victim reports whether a packet that departs at t after a queueing delay must be dropped.
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

// parseCodel reads true, false, which is nil, or the times.
func parseCodel(n *yaml.Node) (*codel, error) {
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
	for _, of := range []struct {
		key, otherwise string
		into           **big.Int
	}{{"target", "5ms", &c.target}, {"interval", "100ms", &c.interval}} {
		s, err := optional(entries, of.key, of.otherwise)
		if err != nil {
			return nil, err
		}
		ns, isTime, err := parseTime(s)
		if err != nil || !isTime || !ns.IsInt() {
			return nil, at(n, fmt.Errorf("%s: %q is not a time", of.key, s))
		}
		*of.into = ns.Num()
	}
	if c.interval.Sign() == 0 || c.interval.Cmp(big.NewInt(4e9)) > 0 {
		return nil, at(n, errors.New("interval: not above 0 and up to 4 s"))
	}
	return c, nil
}
