package policyfile

import (
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// envelopeWords are the keys with which a meter becomes a flow of an envelope. This package accepts
// them for every type; compiled.Compile rejects them for types that cannot be flows.
var envelopeWords = []string{"envelope", "rank", "cirmax", "eirmax"}

// envelope reads an entry of envelopes. Its rates have the unit of its flows, bytes or
// packets.
func (l *loader) envelope(name string, n *yaml.Node) {
	e := &dataplane.Envelope{Name: name}
	l.envelopes[name] = e
	l.file.Policy.Envelopes = append(l.file.Policy.Envelopes, e)
	l.keepPlaces(e, n)
	limits := 0
	rate := func(what string, to *meter.Rate) func(*yaml.Node) {
		return func(n *yaml.Node) {
			parse, packets := ParseRate, isPacketRate(n.Value)
			if packets {
				parse = ParsePacketRate
			}
			var ok bool
			if *to, ok = parsed(l, n, what, parse); !ok {
				return
			}
			if to.Bytes == 0 {
				l.fail(n, "%s must be above zero: omit it for no limit", what)
			}
			if before := e.Packets; limits > 0 && before != packets {
				l.fail(n, "%s counts %s, the rate before it %s: both must use the unit of the flows", what,
					unitOf(packets), unitOf(before))
			}
			e.Packets = packets
			limits++
		}
	}
	l.mapping(n, "an envelope", keys{
		{"cirmax", rate("cirmax", &e.CIRMax)},
		{"eirmax", rate("eirmax", &e.EIRMax)},
		{"coupling", func(n *yaml.Node) { e.Coupling, _ = l.boolean(n, "coupling") }},
	})
}

// isPacketRate reports whether a rate counts packets, such as 100p/1s.
func isPacketRate(s string) bool {
	amount, _, cut := strings.Cut(s, "/")
	return cut && strings.HasSuffix(amount, "p")
}

// flow reads the envelopeWords of a meter.
func (l *loader) flow(m *dataplane.Meter, d *draft) {
	envelope, rank := d.value("envelope"), d.value("rank")
	if envelope == nil {
		for _, word := range envelopeWords {
			if n := d.value(word); n != nil {
				l.fail(n, "%s is only for a flow in an envelope: add envelope: NAME", word)
				return
			}
		}
		return
	}
	m.CIRMax, m.EIRMax = l.flowRate(d, "cirmax"), l.flowRate(d, "eirmax")
	switch {
	case rank == nil:
		l.fail(envelope,
			"a flow in an envelope needs a rank, such as rank: 2 (larger ranks are served first)")
	default:
		m.Rank, _ = parsed(l, rank, "rank", parseInt)
	}
	name, ok := l.text(envelope, "envelope")
	if !ok {
		return
	}
	m.Envelope = l.envelopes[name]
	if m.Envelope == nil {
		l.fail(envelope, "no envelope named %q: %s", name, l.envelopeHint)
	}
}

// flowRate reads a rate of a flow, or returns nil if the flow does not have it.
func (l *loader) flowRate(d *draft, word string) *meter.Rate {
	n, parse := d.value(word), ParseRate
	if d.packets {
		parse = ParsePacketRate
	}
	if n == nil {
		return nil
	}
	r, ok := parsed(l, n, word, parse)
	if !ok {
		return nil
	}
	return &r
}

func unitOf(packets bool) string {
	if packets {
		return "packets"
	}
	return "bytes"
}
