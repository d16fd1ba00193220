package advise

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// Options are the questions.
type Options struct {
	LossTarget
	Rate   meter.Rate    // CIR; zero: none
	Peak   meter.Rate    // PIR, and CIR + EIR
	Target meter.Rate    // goodput for TCP to reach; zero: none
	RTT    time.Duration // 0: as measured in the capture
	Flows  int           // TCP flows at one time; 0: as in the capture
}

// fewPackets is the number of packets below which a capture is too short for advice.
const fewPackets = 100

// Collector collects the packets of a capture by meter.
type Collector struct {
	plan        *compiled.Plan
	classes     []*Stream // nil: not collected; classes sharing a meter share a stream
	connections *Connections
	total       dataplane.Count
	first, last int64 // ns
}

// NewCollector returns a collector for a plan. It collects the packets of classes whose meter can be
// advised, or those of the only class.
func NewCollector(plan *compiled.Plan) *Collector {
	c := &Collector{plan: plan, classes: make([]*Stream, len(plan.Classes)), connections: newConnections()}
	byStage := map[int]*Stream{}
	for i := range plan.Classes {
		at := plan.Classes[i].Stage
		switch {
		case at < 0 && len(plan.Classes) > 1:
		case at < 0:
			c.classes[i] = newStream(false)
		case byStage[at] != nil:
			c.classes[i] = byStage[at]
		case refusal(plan, at) == "":
			c.classes[i] = newStream(plan.Stages[at].Keyed())
			byStage[at] = c.classes[i]
		}
	}
	return c
}

// refusal returns the reason why a meter gets no advice, or "". Advice needs buckets of bytes with
// a constant rate, and all packets drawing from them.
func refusal(plan *compiled.Plan, stage int) string {
	s := &plan.Stages[stage]
	if s.Customers {
		return "each customer has the meter of its plan"
	}
	bucket, _ := s.Profile.Params().(meter.TokenBucket)
	switch {
	case s.Packets:
		return "its meter counts packets"
	case s.BudgetName != "":
		return "other meters share its budget"
	case s.Envelope >= 0:
		return "other flows of its envelope share its tokens"
	case s.Kind.Info().State != meter.StateBuckets:
		return fmt.Sprintf("a %v has no burst", s.Kind)
	case bucket.Warmup > 0:
		return "the rate of its meter is not constant (warmup)"
	case slices.ContainsFunc(plan.Stages,
		func(other compiled.Stage) bool { return other.Then == stage }):
		return "other meters are chained to its meter"
	}
	return ""
}

// caveats warns about properties of a class's meter beyond the advice.
func (a *Advice) caveats(class string, plan *compiled.Plan, s *compiled.Stage, keys int) {
	if s.Initial.Den != 0 {
		a.warn("class %s: the bursts are for buckets that start full, not at %s", class,
			say.Percent(s.Initial.Num, s.Initial.Den)+" %")
	}
	if s.Aware {
		a.warn("class %s: the bursts are for packets whose input color is green", class)
	}
	if s.Then >= 0 {
		a.warn("class %s: the bursts are those of its first meter; meter %s behind it can color more packets",
			class, plan.Stages[s.Then].Name)
	}
	if s.Keyed() && keys > s.Keys {
		a.warn(
			"class %s: its meter has room for %s of the %s: the bursts are for a meter that keeps all keys",
			class, say.Grouped(int64(s.Keys)), say.Count(keys, "key"))
	}
}

// Watch adds a packet of the capture, before Packet if it is chosen.
func (c *Collector) Watch(p *dataplane.Packet) {
	dataplane.ParseOnce(p)
	c.connections.Watch(p)
}

// Packet adds a chosen packet with its verdict.
func (c *Collector) Packet(p *dataplane.Packet, v *dataplane.Verdict) {
	if c.total.Packets == 0 {
		c.first = v.Now
	}
	c.last = v.Now
	n := dataplane.Count{Packets: 1, Bytes: int64(v.Length)}
	c.total = c.total.Plus(n)
	dataplane.ParseOnce(p)
	h := c.connections.Choose(p, n)
	if v.Class < 0 || c.classes[v.Class] == nil {
		return
	}
	s := c.classes[v.Class]
	number := s.Add(c.plan, p, v)
	if h != nil {
		h.stream, h.key = s, number
	}
}

// Advice is the answer.
type Advice struct {
	Capture    *Capture    `json:"capture,omitempty"`
	*Bursts                // of all packets; nil with a policy, and without a rate
	Rates      []AtRate    `json:"rates,omitempty"`   // of all packets; nil with a policy
	Classes    []Class     `json:"classes,omitempty"` // with a policy
	ClosedLoop *ClosedLoop `json:"closed_loop,omitempty"`
	Policy     string      `json:"policy,omitempty"` // YAML
	Warnings   []string    `json:"warnings"`
}

// Capture describes the packets.
type Capture struct {
	dataplane.Count
	DurationNS int64    `json:"duration_ns"`
	Enough     bool     `json:"enough"` // there are fewPackets or more
	TCP        Throttle `json:"tcp"`
}

// Rate returns the average rate, bit/s.
func (c *Capture) Rate() float64 {
	if c.DurationNS == 0 {
		return 0
	}
	return float64(c.Bytes) * 8e9 / float64(c.DurationNS)
}

// Bursts lists the bursts needed at a rate.
type Bursts struct {
	Rate     string          `json:"rate"`
	RateBits int64           `json:"rate_bit_s"`
	Offered  dataplane.Count `json:"offered"`
	Keys     int             `json:"keys,omitempty"` // of a per-key meter
	// keys of too few packets to lose any within the wanted loss
	NoLoss   int   `json:"keys_without_loss,omitempty"`
	LossFree int64 `json:"loss_free_burst"`
	// TCP had been throttled; otherwise it would send larger bursts
	LowerBound bool         `json:"lower_bound"`
	Frontier   []Point      `json:"frontier"`
	Meters     []Suggestion `json:"meters"` // with the smallest bursts for the wanted loss of each key
	hungry     int32        // key needing the loss-free burst
}

// Suggestion is a meter in the syntax of --meter.
type Suggestion struct {
	Meter string `json:"meter"`
	// of a per-key meter: the key losing the largest share
	Worst  *KeyColors   `json:"worst_key,omitempty"`
	Params meter.Params `json:"-"`
}

// AtRate lists the bursts of a token bucket at a rate.
type AtRate struct {
	Rate     string `json:"rate"`
	RateBits int64  `json:"rate_bit_s"`
	LossFree int64  `json:"loss_free_burst"`
	Permille int64  `json:"burst_loss_0_1_percent"` // drops at most 0.1 % of the packets
	Percent  int64  `json:"burst_loss_1_percent"`   // drops at most 1 %
}

// Class is the answer for all classes sharing a meter.
type Class struct {
	Name      string          `json:"name"`                     // of several classes, separated by commas
	Meter     string          `json:"meter"`                    // its present parameters
	Yellow    dataplane.Count `json:"yellow"`                   // packets by the present policy
	Red       dataplane.Count `json:"red"`                      // likewise
	Worst     *KeyColors      `json:"worst_key,omitempty"`      // likewise, of a per-key meter
	Throttled int             `json:"throttled_keys,omitempty"` // keys whose TCP had been throttled
	Bursts
}

// Without answers without a capture, at o.Rate and o.RTT.
func Without(o Options) (*Advice, error) {
	a := &Advice{Warnings: []string{}}
	return a, a.close(o, 0)
}

// Advise answers the questions about the packets so far. Rates of the policy's meters replace those
// of the options.
func (c *Collector) Advise(o Options) (*Advice, error) {
	a := &Advice{Warnings: []string{}, Capture: &Capture{
		Count: c.total, DurationNS: c.last - c.first, Enough: c.total.Packets >= fewPackets,
		TCP: c.connections.Throttle(),
	}}
	var done []*Stream
	for i, s := range c.classes {
		class := &c.plan.Classes[i]
		switch {
		case s == nil && class.Stage >= 0:
			a.warn("class %s: no advice: %s", class.Name, refusal(c.plan, class.Stage))
			continue
		case s == nil || len(s.packets) == 0 || slices.Contains(done, s):
			continue
		}
		done = append(done, s)
		s.group()
		if class.Stage < 0 {
			if err := s.whole(a, o); err != nil {
				return nil, err
			}
			break
		}
		name, stage := c.names(s), &c.plan.Stages[class.Stage]
		found, err := s.class(stage.Profile.Params(), o)
		if err != nil {
			return nil, fmt.Errorf("class %s: %w", name, err)
		}
		found.Name = name
		found.Throttled = c.connections.throttledKeys(s)
		found.LowerBound = a.Capture.TCP.Throttled || found.Throttled > 0
		a.Classes = append(a.Classes, *found)
		a.caveats(name, c.plan, stage, len(s.keys))
	}
	t := &a.Capture.TCP
	if o.RTT == 0 {
		o.RTT = time.Duration(t.RTT)
	}
	if o.Flows == 0 {
		o.Flows = t.Concurrent
	}
	switch {
	case !a.Capture.Enough:
		a.warn("only %s: too few to advise a burst; the figures describe these packets and no others",
			say.Count(a.Capture.Packets, "packet"))
	case o.RTT == 0 && t.Senders > 0:
		a.warn("the RTT is unknown, because the capture has no handshake and no answers: give --rtt to see what TCP gets")
	}
	if o.Rate.Bytes == 0 || a.Classes != nil {
		return a, nil
	}
	if err := a.close(o, t.MSS); err != nil {
		return nil, err
	}
	if a.Policy != "" {
		a.Policy = lengthKey(c.plan.Length) + a.Policy
	}
	return a, nil
}

// names returns the names of the classes of a stream.
func (c *Collector) names(s *Stream) string {
	var names []string
	for i := range c.classes {
		if c.classes[i] == s {
			names = append(names, c.plan.Classes[i].Name)
		}
	}
	return strings.Join(names, ", ")
}

// close adds the closed loop and the policy. mss is the MSS of the flows, or 0.
func (a *Advice) close(o Options, mss int64) (err error) {
	if o.RTT > 0 {
		if a.ClosedLoop, err = closedLoop(o, mss); err != nil {
			return err
		}
		if a.ClosedLoop == nil {
			a.warn("TCP is modelled up to %v only", meter.BitRate(fastest))
		}
	}
	a.recommend(o)
	return nil
}

// whole answers for all packets.
func (s *Stream) whole(a *Advice, o Options) (err error) {
	if o.Rate.Bytes > 0 {
		cir, _ := o.Rate.Bits()
		pir, _ := o.Peak.Bits()
		like := []meter.Params{
			meter.TokenBucket{Rate: o.Rate},
			meter.SRTCM{CIR: o.Rate},
			meter.TRTCM{CIR: o.Rate, PIR: o.Peak},
			meter.TRTCM4115{CIR: o.Rate, EIR: meter.BitRate(pir - cir)},
		}
		if a.Bursts, err = s.bursts(o.Rate, like, o.LossTarget); err != nil {
			return err
		}
		a.LowerBound = a.Capture.TCP.Throttled
	}
	a.Rates, err = s.atRates(o.Rate, a.Capture.Rate())
	return err
}

// class answers for classes with a meter of these parameters.
func (s *Stream) class(p meter.Params, o Options) (*Class, error) {
	b, err := s.bursts(p.Buckets()[0].Rate, []meter.Params{p}, o.LossTarget)
	if err != nil {
		return nil, err
	}
	c := &Class{Meter: oneLine(p), Bursts: *b}
	for i := range s.keys {
		c.Yellow, c.Red = c.Yellow.Plus(s.keys[i].Yellow), c.Red.Plus(s.keys[i].Red)
	}
	if s.numbers != nil {
		c.Worst = worstOf(s.keys, b.hungry)
	}
	return c, nil
}

// bursts returns the curve of burst and loss at a rate, and the meters with the smallest bursts
// whose losses stay within w.
func (s *Stream) bursts(rate meter.Rate, meters []meter.Params, w LossTarget) (*Bursts, error) {
	d, err := s.demandAt(rate)
	if err != nil {
		return nil, err
	}
	b := &Bursts{
		Rate: rate.String(), Offered: s.Total(), LossFree: d.lossFree, hungry: d.hungry,
		Meters: make([]Suggestion, len(meters)),
	}
	b.RateBits, _ = rate.Bits()
	if s.numbers != nil {
		b.Keys = len(s.keys)
		for _, most := range s.allowed(w.Loss) {
			if most == 0 && w.Loss.Num > 0 {
				b.NoLoss++
			}
		}
	}
	if b.Frontier, err = d.frontier(); err != nil {
		return nil, err
	}
	return b, parallel(len(meters), func(i int) error {
		p, err := s.fitBursts(meters[i], w)
		if err != nil {
			return err
		}
		b.Meters[i] = Suggestion{Meter: oneLine(p), Params: p}
		if s.numbers == nil {
			return nil
		}
		profile, err := p.Profile()
		if err == nil {
			b.Meters[i].Worst = s.worst(profile, d.hungry)
		}
		return err
	})
}

// atRates returns the bursts of token buckets at several rates: from the average rate up, and at
// the wanted one.
func (s *Stream) atRates(wanted meter.Rate, average float64) ([]AtRate, error) {
	var rates []meter.Rate
	for _, percent := range []float64{100, 110, 125, 150, 200, 300, 500} {
		if n := twoDigits(average * percent / 100); n > 0 {
			rates = append(rates, meter.BitRate(n))
		}
	}
	if wanted.Bytes > 0 {
		rates = append(rates, wanted)
	}
	slices.SortFunc(rates, meter.Rate.Cmp)
	rates = slices.CompactFunc(rates, func(a, b meter.Rate) bool { return a.Cmp(b) == 0 })
	list := make([]AtRate, len(rates))
	permille, percent := s.allowed(dataplane.Fraction{Num: 1, Den: 1000}),
		s.allowed(dataplane.Fraction{Num: 1, Den: 100})
	err := parallel(len(rates), func(i int) error {
		r := rates[i]
		list[i].Rate = r.String()
		list[i].RateBits, _ = r.Bits()
		d, err := s.demandAt(r)
		if err != nil {
			return err
		}
		list[i].LossFree = d.lossFree
		if list[i].Permille, err = d.smallest(permille); err == nil {
			list[i].Percent, err = d.smallest(percent)
		}
		return err
	})
	return list, err
}

// twoDigits rounds a rate up to two significant digits, bit/s.
func twoDigits(bits float64) int64 {
	if bits < 1 || bits > 1e15 {
		return 0
	}
	unit := int64(1)
	for bits/float64(unit) >= 100 {
		unit *= 10
	}
	return int64(math.Ceil(bits/float64(unit))) * unit
}

// oneLine writes a meter in the syntax of --meter.
func oneLine(p meter.Params) string {
	kind := p.Kind().Info()
	words := []string{kind.Name}
	for _, name := range slices.Concat(kind.Required, kind.Optional) {
		if v := meter.Field(p, name); slices.Contains(kind.Required, name) ||
			v != meter.Field(kind.Defaults, name) {
			words = append(words, fmt.Sprintf("%s=%v", name, v))
		}
	}
	return strings.Join(words, " ")
}
