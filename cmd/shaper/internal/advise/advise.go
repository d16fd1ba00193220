package advise

import (
	"fmt"
	"slices"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
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
	// Progress is called with the part of the work that is done, from 0 to 1, also by several goroutines at
	// once. It may be nil.
	Progress func(done float64)

	phase phase
}

// fewPackets is the number of packets below which a capture is too short for advice.
const fewPackets = 100

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
	// number of keys with so few packets that the wanted loss rounds down to none
	NoLoss   int   `json:"keys_without_loss,omitempty"`
	LossFree int64 `json:"loss_free_burst"`
	// TCP in the capture was throttled: otherwise it would send larger bursts
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
	o.phase = phase{o.Progress, 0, 1}
	return a, a.close(o, 0)
}

// Advise answers the questions about the packets so far. Rates of the policy's meters replace those
// of the options.
func (c *Collector) Advise(o Options) (*Advice, error) {
	a := &Advice{Warnings: []string{}, Capture: &Capture{
		Count: c.total, DurationNS: c.last - c.first, Enough: c.total.Packets >= fewPackets,
		TCP: c.connections.Throttle(),
	}}
	whole := phase{o.Progress, 0, 1}
	o.phase = whole.part(0, openPart)
	if err := c.addClasses(a, o); err != nil {
		return nil, err
	}
	o.phase = whole.part(openPart, 1)
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

// openPart is the estimated part of the work for answers without TCP.
const openPart = 0.5

// addClasses answers for each meter, or, if the only class has none, for all packets.
func (c *Collector) addClasses(a *Advice, o Options) error {
	var done []*Stream
	whole := o.phase
	for i, s := range c.classes {
		o.phase = whole.part(float64(i)/float64(len(c.classes)), float64(i+1)/float64(len(c.classes)))
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
			return s.whole(a, o) // the only class
		}
		name, stage := c.names(s), &c.plan.Stages[class.Stage]
		found, err := s.class(stage.Profile.Params(), o)
		if err != nil {
			return fmt.Errorf("class %s: %w", name, err)
		}
		found.Name = name
		found.Throttled = c.connections.throttledKeys(s)
		found.LowerBound = a.Capture.TCP.Throttled || found.Throttled > 0
		a.Classes = append(a.Classes, *found)
		a.caveats(name, c.plan, stage, len(s.keys))
	}
	return nil
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
