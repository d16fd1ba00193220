package advise

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/tcpmodel"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// ClosedLoop is the throughput of TCP through policers and queues of a rate, by the model of
// tcpmodel.
type ClosedLoop struct {
	Rate        int64         `json:"rate_bit_s"`
	RTT         time.Duration `json:"rtt_ns"`
	MSS         int           `json:"mss"`
	BDP         int64         `json:"bdp_bytes"` // rate * RTT
	Bottlenecks []Bottleneck  `json:"gates"`
	Target      *Target       `json:"target,omitempty"`
}

// Bottleneck is a policer with a burst, or a queue with a delay.
type Bottleneck struct {
	Burst   int64         `json:"burst,omitempty"`    // bytes
	Delay   time.Duration `json:"limit_ns,omitempty"` // of the queue
	Results []Goodput     `json:"results"`
}

// Goodput is the payload rate delivered to the receivers of some TCP flows.
type Goodput struct {
	Control string  `json:"congestion_control"`
	Flows   int     `json:"flows"`
	Paced   bool    `json:"paced"`         // packets are spread over the RTT, not sent in bursts
	Bits    int64   `json:"goodput_bit_s"` // payload of all flows
	Loss    float64 `json:"loss"`          // part of the packets
}

const (
	timestamps = 12 // bytes of options within the MSS (RFC 6691 §2, RFC 7323 §3.2)
	manyFlows  = 4  // in the answer beside 1, if nothing tells their number
	// The model takes a time in proportion to the rate, 0.1 to 0.2 s for each row at 1 Gbit/s. So fast
	// rates have fewer rows, and faster ones none.
	fast    = 200_000_000
	fastest = 2_000_000_000

	searchPart = 0.4 // estimated part of the work for the search
)

// closedLoop computes the throughput of TCP at a rate. It returns nil for rates above fastest.
func closedLoop(o Options, mss int64) (*ClosedLoop, error) {
	bits, _ := o.Rate.Bits()
	if bits > fastest {
		return nil, nil
	}
	c := &ClosedLoop{Rate: bits, RTT: o.RTT, MSS: tcpmodel.DefaultMSS}
	if mss > timestamps {
		c.MSS = int(mss) - timestamps
	}
	var fits bool
	if c.BDP, fits = o.Rate.Burst(o.RTT); !fits {
		return nil, fmt.Errorf("%v at an RTT of %v is more than 2^63 bytes in flight", o.Rate, o.RTT)
	}
	if err := c.search(o); err != nil {
		return nil, err
	}
	controls, step := []tcpmodel.Control{tcpmodel.CUBIC, tcpmodel.Reno}, int64(2)
	if bits > fast {
		controls, step = controls[:1], 8
	}
	bursts := []int64{c.Target.Burst}
	for eighths := int64(1); eighths <= 64; eighths *= step {
		bursts = append(bursts, twoDigits(float64(c.BDP)*float64(eighths)/8))
	}
	slices.Sort(bursts)
	for _, b := range slices.Compact(bursts) {
		if b >= int64(c.MSS)+tcpmodel.DefaultHeader {
			c.Bottlenecks = append(c.Bottlenecks, Bottleneck{Burst: b})
		}
	}
	for _, d := range []time.Duration{20 * time.Millisecond, 50 * time.Millisecond, 100 * time.Millisecond} {
		c.Bottlenecks = append(c.Bottlenecks, Bottleneck{Delay: d})
	}
	flows := []int{1, cmp.Or(o.Flows, manyFlows)}
	slices.Sort(flows)
	flows = slices.Compact(flows)
	var results []Goodput
	for _, control := range controls {
		for _, n := range flows {
			for _, paced := range []bool{false, true} {
				results = append(results, Goodput{Control: control.String(), Flows: n, Paced: paced})
			}
		}
	}
	for i := range c.Bottlenecks {
		c.Bottlenecks[i].Results = slices.Clone(results)
	}
	columns := len(c.Bottlenecks[0].Results)
	err := o.phase.part(searchPart, 1).parallel(len(c.Bottlenecks)*columns, func(i int) error {
		b := &c.Bottlenecks[i/columns]
		out := &b.Results[i%columns]
		bottleneck, err := b.model(o.Rate)
		if err != nil {
			return err
		}
		control, err := tcpmodel.ParseControl(out.Control)
		if err != nil {
			return err
		}
		path := tcpmodel.Path{RTT: c.RTT, MSS: c.MSS, Flows: out.Flows, Paced: out.Paced, Control: control}
		result, err := tcpmodel.Run(path, bottleneck)
		out.Bits, out.Loss = result.Goodput, result.Loss()
		return err
	})
	return c, err
}

// search finds the smallest burst and the smallest queue to reach o.Target, by default 90 % of the
// rate.
func (c *ClosedLoop) search(o Options) (err error) {
	t := &Target{Goodput: c.Rate * 9 / 10, Control: tcpmodel.CUBIC.String(), Flows: max(o.Flows, 1)}
	if n, _ := o.Target.Bits(); n > 0 {
		t.Goodput = n
	}
	c.Target = t
	path := tcpmodel.Path{RTT: c.RTT, MSS: c.MSS, Flows: t.Flows}
	return o.phase.part(0, searchPart).parallel(2, func(i int) (err error) {
		if i == 0 {
			t.Burst, _, err = tcpmodel.SmallestBurst(path, o.Rate, t.Goodput)
		} else {
			t.Delay, _, err = tcpmodel.SmallestQueue(path, fairQueue(o.Rate), t.Goodput)
		}
		return err
	})
}

// MaxFlows is the maximum number of flows.
const MaxFlows = tcpmodel.MaxFlows

// fairQueue is the default queue of policies without its limit: each flow's CoDel works as the
// CoDel of the model's single queue.
func fairQueue(rate meter.Rate) queue.Config {
	return queue.Config{Rate: rate, CoDel: queue.CoDelAt(rate)}
}

// model returns the policer or the queue of package tcpmodel.
func (b *Bottleneck) model(rate meter.Rate) (tcpmodel.Bottleneck, error) {
	if b.Delay > 0 {
		c := fairQueue(rate)
		c.Time = b.Delay
		return tcpmodel.Queue(c), nil
	}
	p, err := meter.TokenBucket{Rate: rate, Burst: b.Burst}.Profile()
	if err != nil {
		return nil, err
	}
	return tcpmodel.Policer(p), nil
}

// Target is the smallest burst and the smallest queue with which TCP reaches a goodput.
type Target struct {
	Goodput int64         `json:"goodput_bit_s"`
	Control string        `json:"congestion_control"`
	Flows   int           `json:"flows"`
	Burst   int64         `json:"burst"`    // bytes; 0: none
	Delay   time.Duration `json:"limit_ns"` // of the queue; 0: none
}
