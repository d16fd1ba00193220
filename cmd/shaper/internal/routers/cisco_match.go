package routers

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/routers/form"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

// classMatch returns the conditions of a class.
func (c *ciscoConfig) classMatch(class *ciscoClass) ([]Condition, error) {
	if class.name == classDefault {
		return all, nil
	}
	return c.mapMatch(class.name, cmp.Or(class.match, c.classMaps[class.name]), 0)
}

// maxNested is the maximum depth of class maps in class maps.
const maxNested = 8

func (c *ciscoConfig) mapMatch(name string, m *ciscoClassMap, depth int) ([]Condition, error) {
	switch {
	case m == nil:
		return nil, fmt.Errorf("there is no class-map %s", name)
	case depth > maxNested:
		return nil, fmt.Errorf("class-map %s contains itself", name)
	}
	if known := c.matches[m]; known != nil {
		return known, nil
	}
	any := m.operator == "match-any" || m.operator == "" && c.isXR()
	out, err := combined(m.lines, any, "class-map "+name, func(l Line) ([]Condition, error) {
		one := &ciscoMatch{ciscoConfig: c, depth: depth}
		err := ciscoConditions.Read(one, l)
		return one.out, err
	})
	c.matches[m] = out
	return out, err
}

// combined returns the conditions of statements of which any must match, or all of them.
func combined(
	lines []Line, any bool, what string, read func(Line) ([]Condition, error),
) (out []Condition, err error) {
	for i, l := range lines {
		one, err := read(l)
		switch {
		case err != nil:
		case i == 0:
			out = slices.Clip(one) // which others use, too
		case !any:
			out, err = Both(out, one)
		case len(out)+len(one) > maxAlternatives:
			err = errTooMany
		default:
			out = append(out, one...)
		}
		if err != nil {
			return nil, fmt.Errorf("line %d: %s: %w", l.Number, l.Text(), err)
		}
	}
	if out == nil {
		return nil, fmt.Errorf("%s has no condition", what)
	}
	return out, nil
}

// ciscoMatch is a match statement that is read.
type ciscoMatch struct {
	*ciscoConfig
	depth int
	out   []Condition
}

// ciscoConditions are the match statements of class maps.
var ciscoConditions *Reader[*ciscoMatch]

func init() { // class maps refer to class maps
	ciscoConditions = &Reader[*ciscoMatch]{Kinds: &conditionKinds, Statements: []Statement[*ciscoMatch]{
		{Form: "match not <word>...", Reason: "a policy has no negation"},
		{Form: "match any", Do: func(m *ciscoMatch, _ Line, _ form.Values) error {
			m.out = all
			return nil
		}},
		{Form: "match [ip:4] (dscp [ipv4:4 | ipv6:6] <dscp>... | precedence [ipv4:4 | ipv6:6] <precedence:dscp>...)", Do: (*ciscoMatch).values},
		{Form: "match cos <0-7:pcp>...", Do: (*ciscoMatch).values},
		{Form: "match vlan <vlan>...", Do: (*ciscoMatch).values},
		{Form: "match vlan inner <vlan:inner-vlan>...", Do: (*ciscoMatch).values},
		{Form: "match protocol (ip:type | ipv4:type | ipv6:type | arp:type)", Do: func(m *ciscoMatch, l Line, v form.Values) error {
			types := map[string]uint64{"ip": etherIPv4, "ipv4": etherIPv4, "ipv6": etherIPv6, "arp": 0x0806}
			m.out = []Condition{ConditionOf(l, dataplane.Match{EtherType: single(types[v.Get("type").(string)])})}
			return nil
		}},
		{Form: "match protocol (l2tp:other | rsvp:other)", Reason: "NBAR takes packets of UDP, too: a policy has no such condition"},
		{Form: "match protocol <proto>", Do: (*ciscoMatch).values},
		{Form: "match protocol <word>...", Do: func(_ *ciscoMatch, l Line, _ form.Values) error {
			return fmt.Errorf("protocol %s is recognized by the contents of packets: a policy has no such condition", l.Word(2))
		}},
		{Form: "match [ip:family | ipv6:family] access-group [name | ipv4:family | ipv6:family] <word:list>", Do: (*ciscoMatch).list},
		{Form: "match class-map <word:map>", Do: func(m *ciscoMatch, _ Line, v form.Values) (err error) {
			name := v.Get("map").(string)
			m.out, err = m.mapMatch(name, m.classMaps[name], m.depth+1)
			return err
		}},
		{Form: "match packet length {min <number:min> | max <number:max>}", Do: (*ciscoMatch).length},
	}}
}

// values takes the values of a statement as they are.
func (m *ciscoMatch) values(l Line, v form.Values) error {
	match := matchOf(v)
	if v.Has("4") || v.Has("6") {
		match.EtherType = familyOf(v.Has("6")).EtherType
	}
	m.out = []Condition{ConditionOf(l, match)}
	return nil
}

func (m *ciscoMatch) list(_ Line, v form.Values) (err error) {
	family, _ := v.Get("family").(string)
	m.out, err = m.listMatch(v.Get("list").(string), family)
	return err
}

// length reads the lengths of IP packets.
func (m *ciscoMatch) length(l Line, v form.Values) error {
	least, most := int64(0), int64(65535)
	if n := v.Get("min"); n != nil {
		least = n.(int64)
	}
	if n := v.Get("max"); n != nil {
		most = n.(int64)
	}
	if least > most || len(v) == 0 {
		return errors.New("want a range of lengths")
	}
	m.out = []Condition{ConditionOf(l, dataplane.Match{
		Length: []dataplane.Range{{First: uint64(least), Last: uint64(most)}}, EtherType: bothFamilies,
	})}
	return nil
}
