package policyfile

import (
	"fmt"
	"math/big"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/marker"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// meterTypes are the keys of each type: pairs of a rate and the burst that a
// time is converted at.
var meterTypes = map[string][]struct{ rate, burst string }{
	"srtcm":        {{"cir", "cbs"}, {"cir", "ebs"}},
	"trtcm":        {{"cir", "cbs"}, {"pir", "pbs"}},
	"trtcm4115":    {{"cir", "cbs"}, {"eir", "ebs"}},
	"token-bucket": {{"rate", "burst"}},
}

// laterTypes and laterKeys are words of the policy language that this version
// refuses by name.
var (
	laterTypes = []string{"gcra", "fixed-window", "sliding-window", "sliding-counter", "sliding-log", "tswtcm"}
	laterKeys  = []string{"per", "keys", "new", "share", "envelope", "rank", "warmup"}
)

// draft is a meter while it is read.
type draft struct {
	kind     string
	packets  bool
	rates    map[string]meter.Rate
	asked    map[string]bool // rates that were looked for: two bursts may share one
	bursts   map[string]int64
	coupling bool
}

// meter reads a meter into m.
func (l *loader) meter(m *dataplane.Meter, n *yaml.Node) {
	l.where[m] = n
	if n.Kind != yaml.MappingNode {
		l.fail(n, "a meter must be a mapping, not %s", kindName(n))
		return
	}
	d := draft{rates: map[string]meter.Rate{}, asked: map[string]bool{}, bursts: map[string]int64{}}
	if !l.meterType(&d, n) {
		return
	}
	values := map[string]*yaml.Node{}
	var preColor *yaml.Node
	known := keys{
		"type":     func(*yaml.Node) {},
		"count":    func(n *yaml.Node) { s, _ := l.word(n, "count", "bytes", "packets"); d.packets = s == "packets" },
		"color":    func(n *yaml.Node) { s, _ := l.word(n, "color", "blind", "aware"); m.Aware = s == "aware" },
		"precolor": func(n *yaml.Node) { preColor = n; m.PreColor = l.preColor(n) },
		"initial":  func(n *yaml.Node) { m.Initial, _ = parsed(l, n, "initial", parseShare) },
		"then":     func(n *yaml.Node) { m.Then = l.named(n) },
	}
	if d.kind == "trtcm4115" {
		known["coupling"] = func(n *yaml.Node) { s, _ := l.word(n, "coupling", "true", "false"); d.coupling = s == "true" }
	}
	for _, key := range laterKeys {
		known[key] = func(n *yaml.Node) { l.unsupported(n, key) }
	}
	for _, pair := range meterTypes[d.kind] {
		known[pair.rate] = func(n *yaml.Node) { values[pair.rate] = n }
		known[pair.burst] = func(n *yaml.Node) { values[pair.burst] = n }
	}
	l.mapping(n, "a meter of type "+d.kind, known)
	if preColor != nil && !m.Aware {
		l.fail(preColor, "precolor needs color: aware")
	}
	m.Packets = d.packets
	for _, pair := range meterTypes[d.kind] {
		l.pair(&d, n, values, pair.rate, pair.burst)
	}
	m.Params = d.params()
}

func (l *loader) meterType(d *draft, n *yaml.Node) bool {
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value != "type" {
			continue
		}
		value := n.Content[i+1]
		if value.Kind == yaml.AliasNode {
			value = value.Alias
		}
		s, ok := l.text(value, "type")
		if !ok {
			return false
		}
		for _, later := range laterTypes {
			if s == later {
				l.unsupported(value, "meter type "+s)
				return false
			}
		}
		if meterTypes[s] == nil {
			l.fail(value, "unknown meter type %q: want one of %s", s, strings.Join(sorted(meterTypes), ", "))
			return false
		}
		d.kind = s
		return true
	}
	l.fail(n, "a meter needs a type: one of %s", strings.Join(sorted(meterTypes), ", "))
	return false
}

// pair reads a rate and its burst.
func (l *loader) pair(d *draft, n *yaml.Node, values map[string]*yaml.Node, rate, burst string) {
	parse, example := ParseRate, "10mbit"
	if d.packets {
		parse, example = ParsePacketRate, "100p/1s"
	}
	r, ok := d.rates[rate]
	if !d.asked[rate] {
		d.asked[rate] = true
		v := values[rate]
		if v == nil {
			l.fail(n, "%s is missing: give a rate, such as %s: %s", rate, rate, example)
		} else if r, ok = parsed(l, v, rate, parse); ok {
			d.rates[rate] = r
		}
	}
	v := values[burst]
	if v == nil {
		l.fail(n, "%s is missing: %s", burst, suggest(d, burst, r, ok))
		return
	}
	s, single := l.text(v, burst)
	switch {
	case !single:
	case isDuration(s), strings.HasSuffix(s, "m"):
		span, err := ParseDuration(s)
		if err != nil {
			l.fail(v, "%s: %v", burst, err)
		} else if ok {
			d.bursts[burst] = l.burstOf(v, burst, r, span)
		}
	case d.packets:
		d.bursts[burst], _ = parsed(l, v, burst, parsePackets)
	default:
		d.bursts[burst], _ = parsed(l, v, burst, ParseSize)
	}
}

// burstOf is what a rate brings in a time.
func (l *loader) burstOf(n *yaml.Node, burst string, r meter.Rate, span time.Duration) int64 {
	b, ok := r.Burst(span)
	switch {
	case !ok:
		l.fail(n, "%s: %v at %v is more than 2^63 bytes", burst, span, r)
	case b == 0:
		l.fail(n, "%s: %v at %v is less than one byte: give a longer time, or bytes", burst, span, r)
	}
	return b
}

// suggest says what a burst that was left out could be: 20 ms at its rate, but
// at least two packets of 1500 bytes.
func suggest(d *draft, burst string, r meter.Rate, ok bool) string {
	if d.packets {
		return fmt.Sprintf("give a number of packets, such as %s: 10", burst)
	}
	if b, fits := r.Burst(20 * time.Millisecond); ok && fits && b >= 3000 {
		return fmt.Sprintf("20 ms at its rate would be %s: 20ms (%d bytes)", burst, b)
	}
	return fmt.Sprintf("two packets of 1500 bytes would be %s: 3000", burst)
}

func (d *draft) params() dataplane.Params {
	r, b := d.rates, d.bursts
	switch d.kind {
	case "srtcm":
		return meter.SRTCM{CIR: r["cir"], CBS: b["cbs"], EBS: b["ebs"]}
	case "trtcm":
		return meter.TRTCM{CIR: r["cir"], CBS: b["cbs"], PIR: r["pir"], PBS: b["pbs"]}
	case "trtcm4115":
		return meter.TRTCM4115{CIR: r["cir"], CBS: b["cbs"], EIR: r["eir"], EBS: b["ebs"], Coupling: d.coupling}
	}
	return meter.TokenBucket{Rate: r["rate"], Burst: b["burst"]}
}

func parsePackets(s string) (int64, error) {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < 0 {
		return 0, fmt.Errorf("%q is not a number of packets: this meter counts packets, so give a bare number", s)
	}
	return n, nil
}

func parseInt(s string) (int, error) {
	n, err := strconv.ParseInt(s, 10, 32)
	if err != nil {
		return 0, fmt.Errorf("%q is not a whole number of bytes", s)
	}
	return int(n), nil
}

// parseShare reads full, empty, or a percentage.
func parseShare(s string) (dataplane.Share, error) {
	switch s {
	case "full":
		return dataplane.Share{}, nil
	case "empty":
		return dataplane.Share{Num: 0, Den: 1}, nil
	}
	_, unit, value, ok := split(s)
	if !ok || unit != "%" {
		return dataplane.Share{}, fmt.Errorf("%q is not full, empty, or a share such as 50%%", s)
	}
	value.Mul(value, big.NewRat(1, 100))
	if value.Cmp(big.NewRat(1, 1)) > 0 || !value.Denom().IsInt64() || value.Denom().Int64() > 1e9 {
		return dataplane.Share{}, fmt.Errorf("%q is not a share from 0%% to 100%% with at most seven decimals", s)
	}
	return dataplane.Share{Num: value.Num().Int64(), Den: value.Denom().Int64()}, nil
}

// fields are the places of colors and marks.
var fields = [...]dataplane.Field{dataplane.DSCP, dataplane.PCP, dataplane.DEI, dataplane.MPLSTC, dataplane.SKBMark}

// preColor reads {from: dscp, map: {af11: green}}.
func (l *loader) preColor(n *yaml.Node) dataplane.PreColor {
	var p dataplane.PreColor
	var table *yaml.Node
	l.mapping(n, "precolor", keys{
		"from": func(n *yaml.Node) {
			var names []string
			for _, f := range fields {
				names = append(names, f.String())
			}
			if s, ok := l.word(n, "from", names...); ok {
				p.From = fields[slices.Index(names, s)]
			}
		},
		"map": func(n *yaml.Node) { table = n },
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
			l.fail(key, "map: the value of %s comes twice", key.Value)
		}
		if c, ok := parsed(l, value, "map", meter.ParseColor); ok {
			p.Map[v] = c
		}
	})
	return p
}

// fieldValue reads a value of a header field, with the DSCP's names.
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
