package policyfile

import (
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// form is what a type of meter is written with: pairs of a rate and the burst that
// a time is converted at, which it may lack, and words.
type form struct {
	pairs []pair
	needs []string
	may   []string
}

type pair struct{ rate, burst string }

var meterTypes = map[string]form{
	"srtcm":           {pairs: []pair{{"cir", "cbs"}, {"cir", "ebs"}}},
	"trtcm":           {pairs: []pair{{"cir", "cbs"}, {"pir", "pbs"}}},
	"trtcm4115":       {pairs: []pair{{"cir", "cbs"}, {"eir", "ebs"}}, may: []string{"coupling"}},
	"token-bucket":    {pairs: []pair{{"rate", "burst"}}, may: []string{"warmup"}},
	"gcra":            {pairs: []pair{{"rate", "burst"}}},
	"fixed-window":    {needs: []string{"limit", "window"}},
	"sliding-window":  {needs: []string{"limit", "window"}, may: []string{"slots"}},
	"sliding-counter": {needs: []string{"limit", "window"}},
	"sliding-log":     {needs: []string{"limit", "window"}, may: []string{"entries"}},
	"tswtcm":          {pairs: []pair{{"cir", ""}, {"pir", ""}}, needs: []string{"window"}, may: []string{"seed"}},
}

// Of types that leave it out.
const (
	defaultSlots   = 10
	defaultEntries = 65536
)

// draft is a meter while it is read.
type draft struct {
	kind     string
	packets  bool
	values   map[string]*yaml.Node // of the keys that a type has of its own
	rates    map[string]meter.Rate
	asked    map[string]bool // rates that were looked for: two bursts may share one
	bursts   map[string]int64
	coupling bool

	limit          int64
	window, warmup time.Duration
	slots, entries int
	seed           uint64
}

// meter reads a meter into m.
func (l *loader) meter(m *dataplane.Meter, n *yaml.Node) {
	l.where[m] = n
	if n.Kind != yaml.MappingNode {
		l.fail(n, "a meter must be a mapping, not %s", kindName(n))
		return
	}
	d := draft{
		values: map[string]*yaml.Node{}, rates: map[string]meter.Rate{}, asked: map[string]bool{}, bursts: map[string]int64{},
		slots: defaultSlots, entries: defaultEntries,
	}
	if !l.meterType(&d, n) {
		return
	}
	joinPrefixes(n)
	var preColor *yaml.Node
	known := keys{
		"type":     func(*yaml.Node) {},
		"count":    func(n *yaml.Node) { s, _ := l.word(n, "count", "bytes", "packets"); d.packets = s == "packets" },
		"color":    func(n *yaml.Node) { s, _ := l.word(n, "color", "blind", "aware"); m.Aware = s == "aware" },
		"precolor": func(n *yaml.Node) { preColor = n; m.PreColor = l.preColor(n) },
		"then":     func(n *yaml.Node) { m.Then = l.named(n) },
		"share":    func(n *yaml.Node) { l.budget(m, n) },
	}
	form := meterTypes[d.kind]
	own := slices.Concat(form.needs, form.may, keyWords, envelopeWords)
	for _, pair := range form.pairs {
		own = append(own, pair.rate)
		if pair.burst != "" {
			own = append(own, pair.burst)
		}
	}
	for _, word := range own {
		known[word] = func(n *yaml.Node) { d.values[word] = n }
	}
	l.mapping(n, "a meter of type "+d.kind, known)
	if preColor != nil && !m.Aware {
		l.fail(preColor, "precolor needs color: aware")
	}
	m.Packets = d.packets
	for _, word := range form.needs {
		if d.values[word] == nil {
			l.fail(n, "%s is missing: give %s", word, d.need(word))
		}
	}
	l.words(&d)
	l.keys(m, &d)
	l.flow(m, &d)
	for _, pair := range form.pairs {
		l.pair(&d, n, pair.rate, pair.burst)
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
		if _, ok := meterTypes[s]; !ok {
			l.fail(value, "unknown meter type %q: want one of %s", s, strings.Join(sorted(meterTypes), ", "))
			return false
		}
		d.kind = s
		return true
	}
	l.fail(n, "a meter needs a type: one of %s", strings.Join(sorted(meterTypes), ", "))
	return false
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
	case "gcra":
		return meter.GCRA{Rate: r["rate"], Burst: b["burst"]}
	case "fixed-window":
		return meter.FixedWindow{Limit: d.limit, Window: d.window}
	case "sliding-window":
		return meter.SlidingWindow{Limit: d.limit, Window: d.window, Slots: d.slots}
	case "sliding-counter":
		return meter.SlidingCounter{Limit: d.limit, Window: d.window}
	case "sliding-log":
		return meter.SlidingLog{Limit: d.limit, Window: d.window, Entries: d.entries}
	case "tswtcm":
		return meter.TSWTCM{CIR: r["cir"], PIR: r["pir"], Window: d.window, Seed: d.seed}
	}
	return meter.TokenBucket{Rate: r["rate"], Burst: b["burst"], Warmup: d.warmup}
}
