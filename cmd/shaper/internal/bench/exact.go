package main

import (
	"fmt"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/walk"
	"github.com/a-seed-32e5a53f/shaper/dataplane/pipeline"
	"github.com/a-seed-32e5a53f/shaper/dataplane/replay"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// exactRates are the rates at which departures are compared with the closed form, in bit/s.
var exactRates = []int64{
	1e3, 9_600, 64e3, 1e6, 9_700_001, 10e6, 33_333_333, 100e6, 123_456_789, 999_999_937, 1e9,
}

const (
	exactPackets = 1_000_000
	exactBatch   = 512
)

// engine runs packets through a policy.
type engine interface {
	Process(packets []dataplane.Packet, verdicts []dataplane.Verdict) error
}

// departures returns the difference between the rate at which a million packets of IMIX depart
// from a queue and the queue's rate, in percent. All packets arrive at once.
func departures(e engine, rate int64) (float64, error) {
	const begin = int64(1e9)
	all := frames()
	packets, verdicts := make([]dataplane.Packet, exactBatch), make([]dataplane.Verdict, exactBatch)
	bytes := int64(0)              // bytes before the next packet
	exact, last := begin, int64(0) // departures of the last packet
	for i := 0; i < exactPackets; i += exactBatch {
		n := min(exactBatch, exactPackets-i)
		for j := range n {
			f := all[(i+j)%len(all)]
			packets[j] = dataplane.Packet{Data: f, WireLen: len(f), Time: begin, Link: dataplane.LinkEthernet}
			exact = begin + (bytes*8e9+rate-1)/rate // rounded up
			bytes += int64(len(f))
		}
		if err := e.Process(packets[:n], verdicts[:n]); err != nil {
			return 0, err
		}
		for _, v := range verdicts[:n] {
			if v.Done&dataplane.Queued == 0 {
				return 0, fmt.Errorf("at %d bit/s a packet was not queued", rate)
			}
			last = v.Departure
		}
	}
	return percentOff(float64(last-begin), float64(exact-begin)), nil
}

// worst returns the largest error over all rates.
func worst(start func(*dataplane.Policy) (engine, func(), error)) side {
	return func() (float64, error) {
		most := 0.0
		for _, rate := range exactRates {
			q := &dataplane.Queue{
				Name: "q", Config: queue.Config{Rate: meter.BitRate(rate), Time: 100 * 24 * time.Hour},
			}
			e, end, err := start(&dataplane.Policy{
				Classes: []dataplane.Class{{Name: "all", Green: &dataplane.Action{Queue: q}}},
				Length:  dataplane.LengthRule{Base: dataplane.L2},
			})
			if err != nil {
				return 0, err
			}
			percent, err := departures(e, rate)
			end()
			if err != nil {
				return 0, err
			}
			most = max(most, percent)
		}
		return most, nil
	}
}

func exactFigures() []figure {
	pipeline := worst(func(p *dataplane.Policy) (engine, func(), error) {
		l, err := pipeline.New(p)
		return replay.Go{Pipeline: l}, func() {}, err
	})
	walker := worst(func(p *dataplane.Policy) (engine, func(), error) {
		plan, err := compiled.Compile(p)
		if err != nil {
			return nil, nil, err
		}
		w, err := walk.New(plan, exactBatch)
		if err != nil {
			return nil, nil, err
		}
		return w, w.Close, nil
	})
	return []figure{
		amount("queue: rate error over the closed form, 1 kbit/s to 1 Gbit/s, replay", 0.1, 0.01, " %",
			pipeline, nil),
		amount("queue: rate error over the closed form, 1 kbit/s to 1 Gbit/s, the kernel's program", 0.1,
			0.01, " %", walker, nil),
	}
}
