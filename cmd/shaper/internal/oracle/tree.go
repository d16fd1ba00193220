package oracle

import (
	"errors"
	"fmt"
	"math/big"
	"strconv"

	"go.yaml.in/yaml/v3"
)

// deepest is the maximum number of levels of a tree, the queues included.
const deepest = 8

// parseLinks reads `links`.
func (p *policy) parseLinks(n *yaml.Node) error {
	all, err := mapping(n)
	if err != nil {
		return err
	}
	open := map[string]bool{} // links whose link above is being read
	var parse func(name string) (*node, error)
	parse = func(name string) (*node, error) {
		switch {
		case p.links[name] != nil:
			return p.links[name], nil
		case all[name] == nil:
			return nil, fmt.Errorf("no link %q", name)
		case open[name]:
			return nil, fmt.Errorf("link %q is below itself", name)
		}
		open[name] = true
		entries, err := mapping(all[name], "rate", "link", "guarantee", "priority", "weight")
		if err != nil {
			return nil, err
		}
		var l *node
		if above := entries["link"]; above != nil {
			on, err := parse(above.Value)
			if err == nil {
				l, err = parsePlace(entries, on, true)
			}
			if err != nil {
				return nil, at(above, err)
			}
			if l.level() > deepest-1 {
				return nil, at(above, errors.New("too many levels"))
			}
		} else if l, err = parseRoot(all[name], entries); err == nil {
			p.trees = append(p.trees, l.tree)
		}
		p.links[name] = l
		return l, err
	}
	for name := range all {
		if _, err := parse(name); err != nil {
			return err
		}
	}
	return nil
}

// level returns the number of links from a link to its root.
func (n *node) level() (level int) {
	for ; n != nil; n = n.above {
		level++
	}
	return level
}

func parseRoot(n *yaml.Node, entries map[string]*yaml.Node) (*node, error) {
	for _, key := range []string{"guarantee", "priority", "weight"} {
		if entries[key] != nil {
			return nil, at(entries[key], errors.New(key+" of a link without a link above"))
		}
	}
	if entries["rate"] == nil {
		return nil, at(n, errors.New("a link without rate"))
	}
	rate, err := parseSpeed(entries["rate"])
	return newRoot(rate), err
}

// parsePlace reads the place of a link or a queue below another link. ownRate means that rate is its
// maximum.
func parsePlace(entries map[string]*yaml.Node, above *node, ownRate bool) (*node, error) {
	l := newNode(above)
	speed := func(key string) (rate *big.Rat, err error) {
		if entries[key] != nil {
			rate, err = parseSpeed(entries[key])
		}
		return rate, err
	}
	integer := func(key, otherwise string, low, high int) (int, error) {
		s, err := optional(entries, key, otherwise)
		i, invalid := strconv.Atoi(s)
		if i < low || i > high {
			invalid = fmt.Errorf("%s: not from %d to %d", key, low, high)
		}
		return i, errors.Join(err, invalid)
	}
	var errs [4]error
	if ownRate {
		l.rate, errs[0] = speed("rate")
	}
	l.guarantee, errs[1] = speed("guarantee")
	l.priority, errs[2] = integer("priority", "0", 0, 7)
	weight, err := integer("weight", "1", 1, 1000)
	l.weight, errs[3] = int64(weight), err
	if err := errors.Join(errs[:]...); err != nil {
		return nil, err
	}
	if l.rate != nil && l.guarantee != nil && l.guarantee.Cmp(l.rate) > 0 {
		return nil, errors.New("a guarantee above the rate")
	}
	return l, nil
}
