package routers

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/marker"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// exporter writes the parts that all routers have.
type exporter struct {
	*Export
	text    strings.Builder
	names   map[string]bool // in use
	longest int             // maximum length of names
	base    dataplane.LengthBase
	zero    string // name of codepoint 0
}

func newExporter(longest int, zero string) *exporter {
	return &exporter{Export: &Export{}, names: map[string]bool{}, longest: longest, zero: zero}
}

func (e *exporter) printf(format string, args ...any) { fmt.Fprintf(&e.text, format, args...) }

// finish returns the result.
func (e *exporter) finish() *Export {
	e.Text = e.text.String()
	return e.Export
}

// checkPolicy names the parts of a policy that no router has.
func (e *exporter) checkPolicy(p *dataplane.Policy) {
	e.base = p.Length.Base
	e.Unsaid("policy", p, notOfRouters,
		"Length", "Classes", "DropUnclassified", "Meters", "Queues", "Links", "Envelopes", "Customers")
	e.Unsaid("length", &p.Length, notOfRouters, "Base", "Overhead", "MPU")
	if p.Customers != nil {
		e.Cannot("customers: a router has a policer for each of them in its subscriber management")
	}
	if len(p.Envelopes) > 0 {
		e.Cannot("envelopes: only meters of their own are exported")
	}
	if p.DropUnclassified {
		e.Cannot("otherwise: drop: the router passes unclassified packets")
	}
	switch {
	case p.Length.Overhead != 0 || p.Length.MPU != 0 || p.Length.Base == dataplane.L1:
		e.Cannot("length: the router counts IP packets or Ethernet frames: use l3 or l2")
	case p.Length.Base == dataplane.L2:
		e.Note("the policy counts Ethernet frames; most routers do that too. Import the configuration with --length l2")
	default:
		e.Note("the policy counts IP packets; if the router counts Ethernet headers too, it passes less IP traffic")
	}
	for i, c := range p.Classes {
		e.Unsaid("class "+c.Name, &c, notOfRouters, "Name", "Match", "Meter", "Green", "Yellow", "Red")
		for _, earlier := range p.Classes[:i] {
			if c.Meter != nil && c.Meter == earlier.Meter {
				e.Cannot("classes %s and %s share meter %s: the router has a policer for each class",
					earlier.Name, c.Name, c.Meter.Name)
			}
		}
	}
}

// notOfRouters is the reason for fields that no exporter knows.
const notOfRouters = "no configuration of a router expresses it"

// boxMeter is a meter as routers have it: one bucket, one rate and two buckets, or two rates.
type boxMeter struct {
	cir, pir   int64 // bit/s; pir only of two rates
	bc, be     int64 // bytes
	colors     []meter.Color
	twoBuckets bool
}

// policerOf returns the meter of a class, or false if it has none that a router can have.
func (e *exporter) policerOf(c *dataplane.Class) (p boxMeter, ok bool) {
	m := c.Meter
	if m == nil {
		return p, false
	}
	cannot := func(format string, args ...any) {
		e.Cannot("class %s: %s", c.Name, fmt.Sprintf(format, args...))
	}
	switch {
	case m.Params == nil:
		cannot("the meter of a customer's plan")
		return p, false
	case m.Packets:
		cannot("count: packets")
		return p, false
	case m.Per.By != dataplane.NoKey:
		cannot("per: %v: the router has one policer for the whole class", m.Per)
		return p, false
	case m.Then != nil:
		cannot("then: %s: the router has one policer for each packet", m.Then.Name)
	case m.Aware:
		cannot("color: aware: where the router reads the color of packets depends on its classification")
	case m.Envelope != nil:
		cannot("envelope")
	case m.Budget != nil:
		cannot("share: the router does not share budgets")
	case m.Initial.Den != 0 && m.Initial.Num != m.Initial.Den:
		cannot("initial: the buckets of the router are full at the start")
	}
	what := "class " + c.Name
	e.Unsaid(what, m, notOfRouters,
		"Name", "Params", "Aware", "PreColor", "Initial", "Packets", "Then", "Per", "Keys", "Idle",
		"Envelope", "Rank", "CIRMax", "EIRMax", "Budget")
	params := m.Params
	if t, ok := params.(meter.SRTCM); ok && t.EBS == 0 { // never yellow, and routers refuse a burst of 0
		params = meter.TokenBucket{Rate: t.CIR, Burst: t.CBS}
	}
	var rates []meter.Rate
	switch t := params.(type) {
	case meter.TokenBucket:
		if t.Warmup != 0 {
			cannot("warmup")
		}
		e.Unsaid(what, t, notOfRouters, "Rate", "Burst", "Warmup", "GCRA")
		rates, p.bc = []meter.Rate{t.Rate}, t.Burst
		p.colors = []meter.Color{meter.Green, meter.Red}
	case meter.SRTCM:
		e.Unsaid(what, t, notOfRouters, "CIR", "CBS", "EBS")
		rates, p.bc, p.be = []meter.Rate{t.CIR}, t.CBS, t.EBS
		p.colors, p.twoBuckets = []meter.Color{meter.Green, meter.Yellow, meter.Red}, true
	case meter.TRTCM:
		e.Unsaid(what, t, notOfRouters, "CIR", "CBS", "PIR", "PBS")
		rates, p.bc, p.be = []meter.Rate{t.CIR, t.PIR}, t.CBS, t.PBS
		p.colors, p.twoBuckets = []meter.Color{meter.Green, meter.Yellow, meter.Red}, true
	default:
		cannot("meter type %v: routers have token-bucket, srtcm and trtcm", params.Kind())
		return p, false
	}
	for i, r := range rates {
		bits, whole := r.Bits()
		if !whole {
			cannot("rate %v is not a whole number of bits per second", r)
		}
		*[]*int64{&p.cir, &p.pir}[i] = bits
	}
	return p, true
}

// span has the values that a box accepts: from least to most, in steps.
type span struct{ least, most, step int64 }

// fits notes a value that the box refuses, clamps or rounds.
func (e *exporter) fits(what string, v int64, s span) {
	switch {
	case v < s.least || v > s.most:
		e.Note("%s %d is not between %d and %d: the box refuses or clamps it", what, v, s.least, s.most)
	case v%s.step != 0:
		e.Note("%s %d is not a multiple of %d: the box rounds it", what, v, s.step)
	}
}

// policerFits notes the values of a policer that the box refuses, clamps or rounds. unit is that of
// rates, bit/s.
func (e *exporter) policerFits(c *dataplane.Class, m boxMeter, unit int64, rates, bursts span) {
	what := "class " + c.Name + ":"
	e.fits(what+" rate", m.cir/unit, rates)
	e.fits(what+" burst", m.bc, bursts)
	if m.pir > 0 {
		e.fits(what+" peak rate", m.pir/unit, rates)
	}
	if m.twoBuckets && m.be > 0 {
		e.fits(what+" second burst", m.be, bursts)
	}
}

// whole calls a function that writes a condition. If a part of it cannot be expressed, nothing is written,
// and the class must be omitted: without its condition it would match other packets.
func (e *exporter) whole(b *strings.Builder, write func()) bool {
	problems, before := len(e.Problems), b.String()
	if write(); len(e.Problems) == problems {
		return true
	}
	b.Reset()
	b.WriteString(before)
	return false
}

// checkName returns a name that a configuration can have. Others are errors, and are changed.
func (e *exporter) checkName(what, name string) string {
	strange := func(r rune) bool { return r <= ' ' || r >= 0x7f || strings.ContainsRune(`"'?!#;{}[]|,`, r) }
	if name != "" && len(name) <= e.longest && !strings.ContainsFunc(name, strange) {
		return name
	}
	e.Cannot("%s %q: a name has %d printable characters at most, without blanks and punctuation", what, name, e.longest)
	return strings.Map(func(r rune) rune {
		if strange(r) {
			return '_'
		}
		return r
	}, cmp.Or(name[:min(len(name), e.longest)], "_"))
}

// unused returns a name that is not in use, and uses it.
func (e *exporter) unused(name string) string {
	name = name[max(len(name)-e.longest, 0):]
	for e.names[name] {
		name = (name + "x")[max(len(name)+1-e.longest, 0):]
	}
	e.names[name] = true
	return name
}

// values writes ranges of numbers as words, in order, single values alone.
func values(list []dataplane.Range) (words []string) {
	for _, r := range JoinRanges(slices.Clone(list)) {
		if r.First == r.Last {
			words = append(words, fmt.Sprint(r.First))
		} else {
			words = append(words, fmt.Sprintf("%d-%d", r.First, r.Last))
		}
	}
	return words
}

// singles returns all numbers of ranges in order, or false if there are more than most.
func singles(list []dataplane.Range, most int) (numbers []uint64, ok bool) {
	for _, r := range JoinRanges(slices.Clone(list)) {
		for v := r.First; v <= r.Last; v++ {
			if len(numbers) == most {
				return nil, false
			}
			numbers = append(numbers, v)
		}
	}
	return numbers, true
}

// families returns the IP versions that a condition with addresses or ports needs, 4 and 6.
func (e *exporter) families(c *dataplane.Class) []int {
	m := &c.Match
	needs := map[int]bool{}
	for _, p := range slices.Concat(m.Src, m.Dst) {
		needs[map[bool]int{false: 4, true: 6}[p.Addr().Is6()]] = true
	}
	if v, _ := ipVersion(m.EtherType); v != 0 {
		needs[v] = true
	}
	switch {
	case len(needs) > 1:
		e.Cannot("class %s: it matches IPv4 and IPv6 addresses: split it", c.Name)
		return nil
	case needs[6]:
		return []int{6}
	case needs[4]:
		return []int{4}
	}
	return []int{4, 6}
}

// noCondition is the reason for fields of a match that an exporter does not write.
const noCondition = "no command of the router for this condition is known"

// inAccessList reports whether a condition needs access lists.
func inAccessList(m *dataplane.Match) bool {
	return len(m.Src)+len(m.Dst)+len(m.Proto)+len(m.SPort)+len(m.DPort) > 0
}

// checkProtocols refuses ports of protocols of which the router has none, and extension headers of IPv6,
// which the router compares.
func (e *exporter) checkProtocols(m *dataplane.Match, class string, withPorts ...uint64) {
	protocols, _ := singles(m.Proto, 256)
	families := Family(m)
	v6 := len(families) == 0 || Overlap(families, single(etherIPv6))
	for _, n := range protocols {
		if v6 && slices.Contains(extensions, n) {
			e.Cannot("class %s: proto %d is an extension header in IPv6, and a policy compares the protocol behind these: write ethertype: ipv4",
				class, n)
		}
		if !slices.Contains(withPorts, n) && len(m.SPort)+len(m.DPort) > 0 {
			e.Cannot("class %s: ports of protocol %d: the router has those of the protocols %d", class, n, withPorts)
		}
	}
}

// accessListFields returns the fields of a condition that access lists express. A list is for one
// IP version, see families. So EtherType is among the fields only if it selects a version.
func accessListFields(m *dataplane.Match) []string {
	fields := []string{"Src", "Dst", "Proto", "SPort", "DPort"}
	if _, ok := ipVersion(m.EtherType); ok {
		fields = append(fields, "EtherType")
	}
	return fields
}

// prefixWords writes prefixes.
func prefixWords(list []netip.Prefix) (words []string) {
	for _, p := range list {
		words = append(words, p.String())
	}
	return words
}

// bits returns a rate in bit/s.
func (e *exporter) bits(what string, r meter.Rate) int64 {
	bits, whole := r.Bits()
	if !whole {
		e.Cannot("%s: rate %v is not a whole number of bits per second", what, r)
	}
	return bits
}

// ownRate reports whether a fair queue has a link only for its own rate.
func ownRate(q *dataplane.Queue) bool {
	return q.Link == nil || q.Link.Name == q.Name && q.Link.Link == nil && q.Fair.By != dataplane.NoKey &&
		q.Rate == meter.Rate{} && q.Guarantee == meter.Rate{}
}

// dscpWords writes codepoints.
func (e *exporter) dscpWords(list []dataplane.Range) (words []string) {
	numbers, _ := singles(list, 64)
	for _, v := range numbers {
		word := marker.DSCPName(uint8(v))
		if word == "be" {
			word = e.zero
		}
		words = append(words, word)
	}
	return words
}

// sides are the words of an access list for source and destination.
type sides struct {
	address func(side string, p netip.Prefix) string
	any     string // an address that is left out, or ""
	port    func(side, condition string) string
}

// permits returns the entries of an access list that permits the packets of a match: each combination of its
// values, with others behind them. It returns false if there are too many.
func (s sides) permits(m *dataplane.Match, v6 bool, others ...[]string) ([]string, bool) {
	lists := [][]string{protocolWords(m, v6)}
	for _, side := range []struct {
		name     string
		prefixes []netip.Prefix
		ports    []dataplane.Range
	}{{"source", m.Src, m.SPort}, {"destination", m.Dst, m.DPort}} {
		var addresses, ports []string
		for _, p := range side.prefixes {
			addresses = append(addresses, s.address(side.name, p))
		}
		if addresses == nil && s.any != "" {
			addresses = []string{s.any}
		}
		for _, r := range JoinRanges(slices.Clone(side.ports)) {
			condition := fmt.Sprintf("eq %d", r.First)
			if r.First != r.Last {
				condition = fmt.Sprintf("range %d %d", r.First, r.Last)
			}
			ports = append(ports, s.port(side.name, condition))
		}
		lists = append(lists, addresses, ports)
	}
	return Combinations(append(lists, others...))
}

// Combinations joins one word of each list in all ways, the last list fastest. It skips empty
// lists and repeated words, and returns false if there are too many.
func Combinations(lists [][]string) ([]string, bool) {
	out := []string{""}
	for _, list := range lists {
		list = unique(list)
		if len(list) == 0 {
			continue
		}
		if len(out)*len(list) > maxAlternatives {
			return nil, false
		}
		var next []string
		for _, begin := range out {
			for _, word := range list {
				next = append(next, strings.TrimSpace(begin+" "+word))
			}
		}
		out = next
	}
	return out, true
}

// unique returns the words without repetitions, in their order.
func unique(list []string) (out []string) {
	seen := map[string]bool{}
	for _, word := range list {
		if !seen[word] {
			out = append(out, word)
		}
		seen[word] = true
	}
	return out
}

// ipVersion returns the IP version that EtherTypes mean: 4, 6, or 0 for both.
func ipVersion(list []dataplane.Range) (v int, ok bool) {
	numbers, _ := singles(list, 2)
	switch {
	case slices.Equal(numbers, []uint64{0x0800, 0x86dd}):
		return 0, true
	case slices.Equal(numbers, []uint64{0x0800}):
		return 4, true
	case slices.Equal(numbers, []uint64{0x86dd}):
		return 6, true
	}
	return 0, false
}

// checkLength names a condition on the length of packets that need not be IP. Routers compare the
// length of IP packets.
func (e *exporter) checkLength(c *dataplane.Class) {
	m := &c.Match
	_, ip := ipVersion(m.EtherType)
	if len(m.Length) > 0 && e.base != dataplane.L3 {
		e.Cannot("class %s: length is that of frames, and the router compares that of IP packets: use length: l3", c.Name)
	}
	if len(m.Length) > 0 && !ip &&
		len(m.Src)+len(m.Dst)+len(m.Proto)+len(m.SPort)+len(m.DPort)+len(m.DSCP) == 0 {
		e.Cannot("class %s: length alone also matches packets that are not IP: add ethertype: [ipv4, ipv6]",
			c.Name)
	}
}
