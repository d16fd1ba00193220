package advise

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// Options are the questions.
type Options struct {
	Want
	Rate   meter.Rate    // CIR; zero: none
	Peak   meter.Rate    // PIR, and CIR + EIR
	Target meter.Rate    // goodput that TCP is to reach; zero: none
	RTT    time.Duration // 0: as measured in the capture
	Flows  int           // TCP flows at one time; 0: as in the capture
}

// FewPackets is the number of packets below which a capture is too short for advice.
const FewPackets = 100

// Collector collects the packets of a capture by class.
type Collector struct {
	plan        *dataplane.Plan
	classes     []*Stream // nil: not collected
	connections *Connections
	total       dataplane.Count
	first, last int64 // ns
}

// NewCollector returns a collector for a plan. It collects the packets of classes with a meter, if
// the meter has buckets of bytes that nothing else shares; or those of the only class.
func NewCollector(plan *dataplane.Plan) *Collector {
	c := &Collector{plan: plan, classes: make([]*Stream, len(plan.Classes)), connections: NewConnections()}
	for i := range plan.Classes {
		at := plan.Classes[i].Stage
		switch {
		case at < 0 && len(plan.Classes) > 1:
		case at < 0:
			c.classes[i] = newStream(false)
		case canAdvise(&plan.Stages[at]):
			c.classes[i] = newStream(plan.Stages[at].Keyed())
		}
	}
	return c
}

func canAdvise(s *dataplane.PlanStage) bool {
	if s.Customers || s.Packets || s.BudgetName != "" || s.Envelope >= 0 || s.Profile.Kind().Info().State != meter.StateBuckets {
		return false
	}
	bucket, single := s.Profile.Params().(meter.TokenBucket)
	return !single || bucket.Warmup == 0
}

// Watch adds a packet of the capture, before Packet if it is chosen.
func (c *Collector) Watch(p *dataplane.Packet) {
	dataplane.Parse(p)
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
	dataplane.Parse(p)
	c.connections.Choose(p, n)
	if v.Class >= 0 && c.classes[v.Class] != nil {
		c.classes[v.Class].Add(c.plan, p, v)
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
	Enough     bool     `json:"enough"` // there are FewPackets or more
	TCP        Throttle `json:"tcp"`
}

// Rate returns the average rate, bit/s.
func (c *Capture) Rate() float64 {
	if c.DurationNS == 0 {
		return 0
	}
	return float64(c.Bytes) * 8e9 / float64(c.DurationNS)
}

// Bursts has the bursts that packets need at a rate.
type Bursts struct {
	Rate       string          `json:"rate"`
	RateBits   int64           `json:"rate_bit_s"`
	Offered    dataplane.Count `json:"offered"`
	Keys       int             `json:"keys,omitempty"` // of a per-key meter
	LossFree   int64           `json:"loss_free_burst"`
	LowerBound bool            `json:"lower_bound"` // TCP had been throttled; otherwise it would send larger bursts
	Frontier   []Point         `json:"frontier"`
	Meters     []Suggestion    `json:"meters"` // with the smallest bursts for the wanted loss
}

// Suggestion is a meter in the syntax of --meter.
type Suggestion struct {
	Meter  string       `json:"meter"`
	Params meter.Params `json:"-"`
}

// AtRate has the bursts of a token bucket at a rate.
type AtRate struct {
	Rate     string `json:"rate"`
	RateBits int64  `json:"rate_bit_s"`
	LossFree int64  `json:"loss_free_burst"`
	Permille int64  `json:"burst_loss_0_1_percent"` // drops at most 0.1 % of the packets
	Percent  int64  `json:"burst_loss_1_percent"`   // drops at most 1 %
}

// Class is the answer for a class of a policy.
type Class struct {
	Name   string          `json:"name"`
	Meter  string          `json:"meter"`  // its present parameters
	Yellow dataplane.Count `json:"yellow"` // packets by these parameters
	Red    dataplane.Count `json:"red"`
	Bursts
}

// Without answers without a capture, at o.Rate and o.RTT.
func Without(o Options) (*Advice, error) {
	a := &Advice{Warnings: []string{}}
	return a, a.close(o, 0)
}

// Advise answers the questions about the packets so far. If the policy has meters, their rates
// are used instead of those of the options.
func (c *Collector) Advise(o Options) (*Advice, error) {
	a := &Advice{Warnings: []string{}, Capture: &Capture{
		Count: c.total, DurationNS: c.last - c.first, Enough: c.total.Packets >= FewPackets, TCP: c.connections.Throttle(),
	}}
	for i, s := range c.classes {
		class := &c.plan.Classes[i]
		if s == nil || len(s.packets) == 0 {
			continue
		}
		s.group()
		if class.Stage < 0 {
			if err := s.whole(a, o); err != nil {
				return nil, err
			}
			break
		}
		found, err := s.class(class.Name, c.plan.Stages[class.Stage].Profile, o, a.Capture.TCP.Throttled)
		if err != nil {
			return nil, fmt.Errorf("class %s: %w", class.Name, err)
		}
		a.Classes = append(a.Classes, *found)
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
		a.warn("only %s: too few to advise a burst; the figures describe these packets and no others", say.Count(a.Capture.Packets, "packet"))
	case o.RTT == 0 && t.Senders > 0:
		a.warn("the RTT is unknown, because the capture has no handshake and no answers: give --rtt to see what TCP gets")
	}
	if o.Rate.Bytes == 0 || a.Classes != nil {
		return a, nil
	}
	return a, a.close(o, t.MSS)
}

// close adds what TCP gets, and the policy. mss is the MSS of the flows, or 0.
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
		if a.Bursts, err = s.bursts(o.Rate, like, o.Want, a.Capture.TCP.Throttled); err != nil {
			return err
		}
	}
	a.Rates, err = s.atRates(o.Rate, a.Capture.Rate())
	return err
}

// class answers for a class with a meter.
func (s *Stream) class(name string, p *meter.Profile, o Options, throttled bool) (*Class, error) {
	params := p.Params()
	b, err := s.bursts(params.Buckets()[0].Rate, []meter.Params{params}, o.Want, throttled)
	if err != nil {
		return nil, err
	}
	var colors [3]dataplane.Count
	s.through(p, func(c *[3]dataplane.Count) bool { colors = *c; return true })
	return &Class{Name: name, Meter: oneLine(params), Yellow: colors[meter.Yellow], Red: colors[meter.Red], Bursts: *b}, nil
}

// bursts returns the frontier at a rate, and the meters with the bursts that do what is wanted.
func (s *Stream) bursts(rate meter.Rate, meters []meter.Params, w Want, throttled bool) (*Bursts, error) {
	d, err := s.at(rate)
	if err != nil {
		return nil, err
	}
	b := &Bursts{Rate: rate.String(), Offered: s.Total(), Keys: len(s.keys), LossFree: d.lossFree, LowerBound: throttled, Meters: make([]Suggestion, len(meters))}
	b.RateBits, _ = rate.Bits()
	if b.Frontier, err = d.frontier(); err != nil {
		return nil, err
	}
	return b, each(len(meters), func(i int) error {
		p, err := s.fit(meters[i], w)
		if err == nil {
			b.Meters[i] = Suggestion{oneLine(p), p}
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
	list, packets := make([]AtRate, len(rates)), int64(len(s.packets))
	err := each(len(rates), func(i int) error {
		r := rates[i]
		list[i].Rate = r.String()
		list[i].RateBits, _ = r.Bits()
		d, err := s.at(r)
		if err != nil {
			return err
		}
		list[i].LossFree = d.lossFree
		if list[i].Permille, err = d.smallest(packets / 1000); err == nil {
			list[i].Percent, err = d.smallest(packets / 100)
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
	for _, name := range kind.Required {
		words = append(words, fmt.Sprintf("%s=%v", name, meter.Field(p, name)))
	}
	return strings.Join(words, " ")
}
