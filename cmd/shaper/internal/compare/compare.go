package compare

import (
	"fmt"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/bins"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

// Comparison is a replay.Engine. It runs each packet through every meter.
type Comparison struct {
	meters  []compared
	rate    string        // reference rate as given, or ""
	window  time.Duration // length of the worst span
	allowed int64         // bytes allowed by the rate in a window; 0 without a rate

	measured  []measured // by meter
	spans     spans
	offered   dataplane.Count // metered packets
	unmetered dataplane.Count // packets passed without metering
	bins.Axis
	offeredBins *bins.Series
	passedBins  []*bins.Series // by meter
}

// New returns a comparison of meters, which are one-liners as for --meter, with a length rule as
// for --length. rateText is the reference rate of the "worst" column, or "". Without meters, the
// comparison runs one meter of each kind at this rate. All errors are errors of usage.
func New(specs []string, length, rateText string, window time.Duration) (*Comparison, error) {
	c := &Comparison{rate: rateText, window: window, spans: spans{width: int64(window)}}
	if rateText != "" {
		rate, err := policyfile.ParseRate(rateText)
		if err != nil {
			return nil, fmt.Errorf("--rate: %w", err)
		}
		fits := false
		if c.allowed, fits = rate.Burst(window); !fits {
			return nil, fmt.Errorf("--rate %s allows more than 2^63 bytes in --window %s", rateText,
				spanText(window))
		}
		if specs == nil {
			if specs, err = familyAt(rate, rateText, window); err != nil {
				return nil, err
			}
		}
	}
	var err error
	if c.meters, err = compareMeters(specs, length); err != nil {
		return nil, err
	}
	c.measured = make([]measured, len(c.meters))
	c.offeredBins = c.Add(0, bins.Sum)
	for range c.meters {
		c.passedBins = append(c.passedBins, c.Add(0, bins.Sum))
	}
	return c, nil
}

// Accepts asks the first meter, because all have the same length rule.
func (c *Comparison) Accepts(link dataplane.LinkType) error {
	return c.meters[0].pipeline.Accepts(link)
}

// Batch is 1.
func (*Comparison) Batch() int { return 1 }

// Settle returns nothing, because meters are without queues.
func (*Comparison) Settle(int64, *dataplane.Verdict) bool { return false }

// Process runs packets through every meter. The verdicts are those of the last meter.
func (c *Comparison) Process(packets []dataplane.Packet, verdicts []dataplane.Verdict) error {
	for i := range packets {
		c.packet(packets[i:i+1], verdicts[i:i+1])
	}
	return nil
}

// packet runs the one packet of a batch through every meter.
func (c *Comparison) packet(packet []dataplane.Packet, verdict []dataplane.Verdict) {
	v := &verdict[0]
	var passed uint64
	for i := range c.meters {
		c.meters[i].pipeline.ProcessParsed(packet, verdict)
		if v.Class < 0 {
			continue
		}
		passes := !v.Done.Dropped()
		c.measured[i].packet(v.Now, int64(v.Length), v.Color, passes)
		if passes {
			passed |= 1 << i
		}
	}
	bin := c.Bin(v.Now) // the first packet is the start, metered or not
	one := dataplane.Count{Packets: int64(v.Packets), Bytes: int64(v.Length)}
	if v.Class < 0 {
		c.unmetered = c.unmetered.Plus(one)
		return
	}
	c.offered = c.offered.Plus(one)
	c.spans.packet(sighting{v.Now, one.Bytes, passed}, c.measured)
	c.offeredBins.Put(bin, one.Bytes)
	for i, s := range c.passedBins {
		if passed&(1<<i) != 0 {
			s.Put(bin, one.Bytes)
		}
	}
}
