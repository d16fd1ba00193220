package policyfile

import (
	"fmt"
	"slices"
	"strconv"

	"go.yaml.in/yaml/v3"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/marker"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// fields are the header fields that can hold colors and marks.
var fields = [...]dataplane.Field{
	dataplane.DSCP, dataplane.PCP, dataplane.DEI, dataplane.MPLSTC, dataplane.SKBMark,
}

// preColor reads a source of input colors, such as {from: dscp, map: {af11: green}}.
func (l *loader) preColor(n *yaml.Node) dataplane.PreColor {
	var p dataplane.PreColor
	var table *yaml.Node
	l.mapping(n, "precolor", keys{
		{"from", func(n *yaml.Node) {
			var names []string
			for _, f := range fields {
				names = append(names, f.String())
			}
			if s, ok := l.word(n, "from", names...); ok {
				p.From = fields[slices.Index(names, s)]
			}
		}},
		{"map", func(n *yaml.Node) { table = n }},
	})
	if table == nil {
		return p
	}
	p.Map = map[uint32]meter.Color{}
	l.entries(table, "map", func(key, value *yaml.Node) {
		v, err := fieldValue(p.From, key.Value)
		if err != nil {
			l.fail(key, "map: %v", err)
			return
		}
		if _, twice := p.Map[v]; twice {
			l.fail(key, "map: duplicate value %s", key.Value)
		}
		if c, ok := parsed(l, value, "map", meter.ParseColor); ok {
			p.Map[v] = c
		}
	})
	return p
}

// fieldValue reads a value of a header field. A DSCP may be a name.
func fieldValue(f dataplane.Field, s string) (uint32, error) {
	if f == dataplane.DSCP {
		v, err := marker.ParseDSCP(s)
		return uint32(v), err
	}
	v, err := strconv.ParseUint(s, 0, 32)
	if err != nil {
		return 0, fmt.Errorf("%q is not a value of %v", s, f)
	}
	return uint32(v), nil
}
