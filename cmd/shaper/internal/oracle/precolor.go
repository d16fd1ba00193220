package oracle

import (
	"fmt"
	"slices"

	"go.yaml.in/yaml/v3"
)

// precolor reads the input color of the first meter from a header.
type precolor struct {
	from   string // dscp, pcp, mpls or mark
	colors map[uint64]color
}

// defaultPrecolor: AFx1 is green, AFx2 yellow, AFx3 red, everything else green.
func defaultPrecolor() precolor {
	p := precolor{from: "dscp", colors: map[uint64]color{}}
	for class := uint64(1); class <= 4; class++ {
		p.colors[8*class+4] = yellow
		p.colors[8*class+6] = red
	}
	return p
}

// of returns green if the header is missing or the map does not have its value.
func (p precolor) of(f frame) color {
	switch {
	case p.from == "dscp" && f.isIP():
		return p.colors[uint64(f.dscp())]
	case p.from == "pcp" && f.hasVLAN:
		return p.colors[uint64(f.pcp)]
	case p.from == "mpls" && f.hasMPLS:
		return p.colors[uint64(f.mplsTC)]
	case p.from == "mark":
		return p.colors[0]
	}
	return green
}

// parsePrecolor reads {from: dscp, map: {...}}, or the map of codepoints alone. Values missing in
// the map are green.
func parsePrecolor(n *yaml.Node) (precolor, error) {
	entries, err := mapping(n)
	if err != nil {
		return precolor{}, err
	}
	p := precolor{from: "dscp", colors: map[uint64]color{}}
	table := n
	if entries["from"] != nil || entries["map"] != nil {
		if entries, err = mapping(n, "from", "map"); err != nil {
			return p, err
		}
		if p.from, err = optional(entries, "from", "dscp"); err != nil {
			return p, err
		}
		if !slices.Contains([]string{"dscp", "pcp", "mpls", "mark"}, p.from) {
			return p, at(n, fmt.Errorf("precolor from %q is unknown", p.from))
		}
		if table = entries["map"]; table == nil {
			if p.from == "dscp" {
				return defaultPrecolor(), nil
			}
			return p, nil
		}
	}
	values, err := mapping(table)
	if err != nil {
		return p, err
	}
	for key, value := range values {
		number, err := parseNumber(p.from, key)
		if err != nil {
			return p, at(value, err)
		}
		c := slices.Index([]string{"green", "yellow", "red"}, value.Value)
		if c < 0 {
			return p, at(value, fmt.Errorf("%q is not a color", value.Value))
		}
		p.colors[number] = color(c)
	}
	return p, nil
}
