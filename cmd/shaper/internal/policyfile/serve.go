package policyfile

import (
	"path"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

// Serve is the configuration of shaper serve. Keys absent from the file are zero. Paths are as in the
// file.
type Serve struct {
	Interfaces             []ServeInterfaces
	Control, ControlGroup  string
	ControlRead, ReadGroup string
	Metrics                string
	MetricsCustomers       int
	State                  string
}

// ServeInterfaces selects interfaces, and says how they are shaped. An interface belongs to the first
// entry that matches.
type ServeInterfaces struct {
	Place  string // in the file
	Match  string // name, or pattern in the syntax of path.Match
	Policy string // file; "": Rate
	Rate   string // as shaper run --rate

	Directions       []dataplane.Direction
	Hook, Pacer      string // "" means auto
	GSOLimit         string // "" means auto
	Pin, Repair, Dry bool
}

// Named reports whether the entry is for one interface.
func (i *ServeInterfaces) Named() bool { return !strings.ContainsAny(i.Match, `*?[\`) }

// Of returns the entry of an interface, nil if there is none. A pattern does not select a loopback
// interface.
func (s *Serve) Of(name string, loopback bool) *ServeInterfaces {
	for at := range s.Interfaces {
		i := &s.Interfaces[at]
		if matched, _ := path.Match(i.Match, name); matched && (i.Named() || !loopback) {
			return i
		}
	}
	return nil
}

// LoadServe reads the configuration of shaper serve. The returned error joins all errors, with their
// places.
func LoadServe(name string, text []byte) (*Serve, error) {
	l, root, err := read(name, text, "configuration")
	if err != nil {
		return nil, err
	}
	s := &Serve{}
	if l.checkAliases(root) {
		l.serve(s, root)
	}
	if err := l.joined(); err != nil {
		return nil, err
	}
	return s, nil
}

func (l *loader) serve(s *Serve, root *yaml.Node) {
	words := func(to *string, what string) entry {
		return entry{what, func(n *yaml.Node) { *to, _ = l.text(n, what) }}
	}
	l.mapping(root, "a configuration", keys{
		{"interfaces", func(n *yaml.Node) { l.serveInterfaces(s, n) }},
		words(&s.Control, "control"), words(&s.ControlGroup, "control-group"),
		words(&s.ControlRead, "control-read"), words(&s.ReadGroup, "control-read-group"),
		words(&s.Metrics, "metrics"), words(&s.State, "state"),
		{"metrics-customers", func(n *yaml.Node) {
			text, ok := l.text(n, "metrics-customers")
			count, err := strconv.ParseUint(text, 10, 31)
			if ok && err != nil {
				l.fail(n, "metrics-customers: %q is not a number of customers", text)
			}
			s.MetricsCustomers = int(count)
		}},
	})
}

func (l *loader) serveInterfaces(s *Serve, n *yaml.Node) {
	if n.Kind != yaml.SequenceNode {
		l.fail(n, "interfaces must be a list, such as - {match: eth0, policy: uplink.yaml}, not %s", kindName(n))
		return
	}
	seen := map[string]bool{}
	for _, n := range n.Content {
		n = target(n)
		i, ok := l.serveInterface(n)
		if !ok {
			continue
		}
		if seen[i.Match] {
			l.fail(n, "match %q is there twice: the first entry has all of its interfaces", i.Match)
			continue
		}
		seen[i.Match] = true
		s.Interfaces = append(s.Interfaces, i)
	}
}

func (l *loader) serveInterface(n *yaml.Node) (i ServeInterfaces, ok bool) {
	i.Place = l.placeText(placeOf(n))
	i.Directions = []dataplane.Direction{dataplane.Egress}
	direction := ""
	ok = l.mapping(n, "an entry of interfaces", keys{
		{"match", func(n *yaml.Node) { i.Match = l.interfacePattern(n) }},
		{"policy", func(n *yaml.Node) {
			text, ok := l.text(n, "policy")
			if ok && text == "" {
				l.fail(n, "policy: want the name of a file")
			}
			i.Policy = text
		}},
		{"rate", func(n *yaml.Node) {
			i.Rate = l.serveRate(n)
		}},
		{"direction", func(n *yaml.Node) {
			direction, _ = l.word(n, "direction", "egress", "ingress", "both")
			i.Directions = map[string][]dataplane.Direction{
				"": i.Directions, "egress": i.Directions, "ingress": {dataplane.Ingress},
				"both": {dataplane.Egress, dataplane.Ingress},
			}[direction]
		}},
		{"hook", func(n *yaml.Node) { i.Hook, _ = l.word(n, "hook", "auto", "tcx", "tc", "xdp") }},
		{"pacer", func(n *yaml.Node) { i.Pacer, _ = l.word(n, "pacer", "auto", "fq", "htb") }},
		{"gso-limit", func(n *yaml.Node) { i.GSOLimit, _ = l.text(n, "gso-limit") }},
		{"pin", func(n *yaml.Node) { i.Pin, _ = l.boolean(n, "pin") }},
		{"repair", func(n *yaml.Node) { i.Repair, _ = l.boolean(n, "repair") }},
		{"dry-run", func(n *yaml.Node) { i.Dry, _ = l.boolean(n, "dry-run") }},
	})
	if !ok {
		return i, false
	}
	if lookup(n, "match") == nil {
		l.fail(n, "match is missing: name an interface, or a pattern such as \"veth*\"")
		ok = false
	}
	if has := lookup(n, "policy") != nil; has == (lookup(n, "rate") != nil) {
		l.fail(n, "give the interfaces either policy: FILE or rate: RATE")
		ok = false
	}
	if HasTwoRates(i.Rate) {
		if direction == "egress" || direction == "ingress" {
			l.fail(n, "rate has a rate for each direction: leave direction out, or give one rate")
		}
		i.Directions = []dataplane.Direction{dataplane.Egress, dataplane.Ingress}
	}
	if i.Hook == "xdp" && i.Rate != "" {
		l.fail(lookup(n, "hook"), "hook: xdp cannot queue packets, as rate does: leave it out")
	} else if i.Hook == "xdp" && !slices.Equal(i.Directions, []dataplane.Direction{dataplane.Ingress}) {
		l.fail(lookup(n, "hook"), "hook: xdp sees only arriving packets: add direction: ingress")
	}
	return i, ok
}

// serveRate reads a rate, or one for each direction, and returns it as the text of --rate.
func (l *loader) serveRate(n *yaml.Node) string {
	const example = "{egress: 20mbit, ingress: 100mbit}"
	if n.Kind == yaml.MappingNode {
		pair, ok := l.directionRates(n, example)
		if !ok {
			return ""
		}
		first, second := l.wholeRate(pair[0]), l.wholeRate(pair[1])
		if first == nil || second == nil {
			return ""
		}
		return twoRates(pair[0].Value, pair[1].Value)
	}
	text, _ := l.text(n, "rate")
	if HasTwoRates(text) {
		l.fail(n, "rate: write a rate for each direction as %s", example)
		return ""
	}
	l.wholeRate(n)
	return text
}

// interfacePattern reads the name of an interface, or a pattern of names.
func (l *loader) interfacePattern(n *yaml.Node) string {
	text, ok := l.text(n, "match")
	switch _, err := path.Match(text, ""); {
	case !ok:
	case text == "" || strings.ContainsAny(text, "/ \t\n"):
		l.fail(n, "match: %q is no name of an interface", text)
	case err != nil:
		l.fail(n, "match: pattern %q is not complete: * and ? stand for any characters, [ab] for one of them",
			text)
	}
	return text
}
