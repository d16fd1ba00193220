package policyfile

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/marker"
)

// valueNames are the names of protocols and EtherTypes (IEEE) in policies, by field.
var valueNames = map[string]map[string]uint64{
	"proto": func() map[string]uint64 {
		numbers := map[string]uint64{}
		for n, name := range dataplane.ProtoNames {
			if name != "" {
				numbers[name] = uint64(n)
			}
		}
		return numbers
	}(),
	"ethertype": {
		"ipv4": 0x0800, "arp": 0x0806, "ipv6": 0x86dd, "mpls": 0x8847, "pppoe-discovery": 0x8863,
		"pppoe": 0x8864, "lldp": 0x88cc,
	},
}

// matchNames are the names of the numeric fields.
var matchNames = func() (names []string) {
	for _, f := range dataplane.MatchFields {
		names = append(names, f.Name)
	}
	return names
}()

// match reads the match of a class.
func (l *loader) match(m *dataplane.Match, n *yaml.Node) {
	l.keepPlaces(m, n)
	l.entries(n, "match", func(key, value *yaml.Node) {
		if i := slices.Index(matchNames, key.Value); i >= 0 {
			list := dataplane.MatchFields[i].List(m)
			*list = slices.Concat(values(l, value, key.Value, rangesParser(key.Value))...)
			return
		}
		l.knownKey(key, value, "match", keys{
			{"src", func(n *yaml.Node) { m.Src = values(l, n, "src", parsePrefix) }},
			{"dst", func(n *yaml.Node) { m.Dst = values(l, n, "dst", parsePrefix) }},
			{"cgroup", func(n *yaml.Node) { m.Cgroups = values(l, n, "cgroup", parseCgroup) }},
		}, matchNames...)
	})
}

// values reads a list of values with a parser, or a single one.
func values[T any](l *loader, n *yaml.Node, what string, parse func(string) (T, error)) (out []T) {
	l.list(n, func(n *yaml.Node) {
		if v, ok := parsed(l, n, what, parse); ok {
			out = append(out, v)
		}
	})
	return out
}

// valueParser returns the parser of a field's values.
func valueParser(field string) func(string) (uint64, error) {
	switch field {
	case "dscp":
		return func(s string) (uint64, error) { v, err := marker.ParseDSCP(s); return uint64(v), err }
	case "mac", "src-mac", "dst-mac":
		return parseMAC
	}
	return numberOrName(valueNames[field])
}

// rangesParser returns the parser of an entry of a field's list.
func rangesParser(field string) func(string) ([]dataplane.Range, error) {
	switch field {
	case "tcp-flags":
		return parseTCPFlags
	case "icmp-type":
		return parseICMPType
	}
	parse := rangeParser(valueParser(field))
	return func(s string) ([]dataplane.Range, error) {
		r, err := parse(s)
		return []dataplane.Range{r}, err
	}
}

// ValueName returns the name of a value of a match field, or "" for a nameless one.
func ValueName(field string, v uint64) string {
	if field == "dscp" {
		return marker.DSCPName(uint8(v))
	}
	for name, value := range valueNames[field] {
		if value == v {
			return name
		}
	}
	return ""
}

// numberOrName returns a parser of numbers, decimal or hexadecimal with 0x, and of names.
func numberOrName(names map[string]uint64) func(string) (uint64, error) {
	return func(s string) (uint64, error) {
		if v, ok := names[s]; ok {
			return v, nil
		}
		v, err := strconv.ParseUint(s, 0, 32)
		if err == nil {
			return v, nil
		}
		if names == nil {
			return 0, fmt.Errorf("%q is not a number or a range such as 5000-5999", s)
		}
		return 0, fmt.Errorf("%q is not a number or one of %s", s, strings.Join(sorted(names), " "))
	}
}

// rangeParser returns a parser of a single value, or of two values with a dash between.
func rangeParser(value func(string) (uint64, error)) func(string) (dataplane.Range, error) {
	return func(s string) (dataplane.Range, error) {
		if v, err := value(s); err == nil {
			return dataplane.Range{First: v, Last: v}, nil
		}
		first, last, dash := strings.Cut(s, "-")
		if !dash {
			_, err := value(s)
			return dataplane.Range{}, err
		}
		a, err := value(strings.TrimSpace(first))
		if err != nil {
			return dataplane.Range{}, err
		}
		b, err := value(strings.TrimSpace(last))
		return dataplane.Range{First: a, Last: b}, err
	}
}

// parsePrefix reads a prefix, or an address as a prefix of its full length.
func parsePrefix(s string) (netip.Prefix, error) {
	if strings.IndexByte(s, '/') < 0 {
		if a, err := netip.ParseAddr(s); err == nil && a.Zone() == "" {
			return netip.PrefixFrom(a, a.BitLen()), nil
		}
	}
	p, err := netip.ParsePrefix(s)
	if err != nil {
		return p, fmt.Errorf("%q is not an address or a prefix such as 192.0.2.0/24", s)
	}
	if m := p.Masked(); m != p {
		return p, fmt.Errorf("%v has bits beyond its length: write %v, or %v for the single address", p, m,
			p.Addr())
	}
	return p, nil
}
