package policyfile

import (
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// meterTypes are the meter types by name.
var meterTypes = func() map[string]meter.KindInfo {
	types := map[string]meter.KindInfo{}
	for _, k := range meter.Kinds() {
		types[k.String()] = k.Info()
	}
	return types
}()

// MeterTypes returns the names of all meter types, sorted.
func MeterTypes() []string { return sorted(meterTypes) }

// MeterParameters returns the names of the parameters of a meter type; nil if there is no such type.
func MeterParameters(name string) []string {
	return slices.Concat(meterTypes[name].Required, meterTypes[name].Optional)
}

// draft is a meter while it is read.
type draft struct {
	meter.KindInfo
	params  meter.Params
	packets bool
	node    *yaml.Node

	pairs map[string][2]*yaml.Node // rates for packets to the customer and from it, by key
	side  int                      // which of them count
}

// value returns the value of a key, or nil.
func (d *draft) value(key string) *yaml.Node {
	if pair, ok := d.pairs[key]; ok {
		return pair[d.side]
	}
	return target(lookup(d.node, key))
}

// meter reads a meter from n into m.
func (l *loader) meter(m *dataplane.Meter, n *yaml.Node) {
	l.keepPlaces(m, n)
	if n.Kind != yaml.MappingNode {
		l.fail(n, "a meter must be a mapping, not %s", kindName(n))
		return
	}
	kind, ok := l.meterType(n)
	if !ok {
		return
	}
	d := draft{KindInfo: kind, params: kind.Defaults, node: n}
	joinPrefixes(n)
	known := append(l.stageKeys(m), entry{"share", func(n *yaml.Node) { l.budget(m, n) }})
	parameters := slices.Concat(d.Required, d.Optional, keyWords, envelopeWords)
	what := "a meter of type " + d.Name
	l.entries(n, what, func(key, value *yaml.Node) {
		if !slices.Contains(parameters, key.Value) {
			l.knownKey(key, value, what, known, parameters...)
		}
	})
	l.checkPreColor(m, n)
	d.packets = m.Packets
	l.parameters(&d)
	l.keys(m, &d)
	l.flow(m, &d)
	m.Params = d.params
}

// stageKeys are the keys of all meters, those of customers included.
func (l *loader) stageKeys(m *dataplane.Meter) keys {
	return keys{
		{"type", func(*yaml.Node) {}},
		{"count", func(n *yaml.Node) { m.Packets = l.second(n, "count", "bytes", "packets") }},
		{"color", func(n *yaml.Node) { m.Aware = l.second(n, "color", "blind", "aware") }},
		{"precolor", func(n *yaml.Node) { m.PreColor = l.preColor(n) }},
		{"then", func(n *yaml.Node) { m.Then = l.namedMeter(n) }},
	}
}

// checkPreColor rejects precolor in a color-blind meter.
func (l *loader) checkPreColor(m *dataplane.Meter, n *yaml.Node) {
	if preColor := target(lookup(n, "precolor")); preColor != nil && !m.Aware {
		l.fail(preColor, "precolor needs color: aware")
	}
}

// meterType returns the meter type named by the key type.
func (l *loader) meterType(n *yaml.Node) (kind meter.KindInfo, ok bool) {
	value := target(lookup(n, "type"))
	if value == nil {
		l.fail(n, "a meter needs a type: one of %s", strings.Join(sorted(meterTypes), ", "))
		return kind, false
	}
	s, ok := l.text(value, "type")
	if !ok {
		return kind, false
	}
	if kind, ok = meterTypes[s]; !ok && s == planMeter {
		l.fail(value, "type plan is only for the meter of a class with per: customer")
	} else if !ok {
		l.fail(value, "unknown meter type %q: want one of %s", s, strings.Join(sorted(meterTypes), ", "))
	}
	return kind, ok
}
