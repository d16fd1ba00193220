package main

import (
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/pipeline"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

func ports(list ...uint64) []dataplane.Range {
	var out []dataplane.Range
	for _, p := range list {
		out = append(out, dataplane.Range{First: p, Last: p})
	}
	return out
}

func span(first, last uint64) []dataplane.Range { return []dataplane.Range{{First: first, Last: last}} }

func prefixes(list ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, p := range list {
		out = append(out, netip.MustParsePrefix(p))
	}
	return out
}

// office is a policy with 16 classes. Every class marks every color with a codepoint of its match,
// so the same frames can be processed again.
func office() *dataplane.Policy {
	tcp, udp := ports(6), ports(17)
	matches := []struct {
		name  string
		match dataplane.Match
		af    uint32 // codepoint of green
	}{
		{"control", dataplane.Match{DSCP: span(48, 63)}, 48},
		{"video", dataplane.Match{DSCP: ports(34, 36, 38)}, 34},
		{"voice", dataplane.Match{DSCP: ports(46), Proto: udp}, 46},
		{"dns", dataplane.Match{Proto: udp, DPort: ports(53)}, 18},
		{"ssh", dataplane.Match{Proto: tcp, DPort: ports(22)}, 18},
		{"quic", dataplane.Match{Proto: udp, DPort: ports(443)}, 26},
		{"vpn", dataplane.Match{Proto: udp, DPort: ports(500, 4500, 51820)}, 26},
		{"calls", dataplane.Match{Proto: udp, DPort: append(span(5060, 5061), span(16384, 32767)...)}, 26},
		{"mail", dataplane.Match{Proto: tcp, DPort: ports(25, 465, 587, 993)}, 10},
		{"backup", dataplane.Match{Dst: prefixes("10.200.0.0/16", "2001:db8:200::/48")}, 10},
		{"guests", dataplane.Match{VLAN: span(300, 399)}, 10},
		{"web", dataplane.Match{Proto: tcp, DPort: append(ports(80, 443), span(8080, 8090)...)}, 18},
		{"icmp", dataplane.Match{Proto: ports(1, 58)}, 18},
		{"staff", dataplane.Match{Src: prefixes("10.1.0.0/16", "2001:db8:1::/48")}, 18},
		{"things", dataplane.Match{Src: prefixes("172.16.0.0/12", "192.168.0.0/16", "2001:db8:9::/48")}, 10},
		{"rest", dataplane.Match{}, 10},
	}
	policy := &dataplane.Policy{}
	for i, m := range matches {
		mark := func(step uint32) *dataplane.Action {
			v := m.af
			if v != 46 && v != 48 {
				v += step
			}
			return &dataplane.Action{Marks: []dataplane.Mark{{Field: dataplane.DSCP, Value: v}}}
		}
		var params meter.Params = meter.TRTCM{
			CIR: meter.BitRate(20e6), CBS: bucket, PIR: meter.BitRate(60e6), PBS: bucket,
		}
		if i%4 == 3 {
			params = meter.SRTCM{CIR: meter.BitRate(20e6), CBS: bucket, EBS: bucket}
		}
		policy.Classes = append(policy.Classes, dataplane.Class{
			Name: m.name, Match: m.match, Meter: &dataplane.Meter{Name: m.name, Params: params},
			Green: mark(0), Yellow: mark(2), Red: mark(4),
		})
	}
	return policy
}

// number of times a run processes every frame
const passes = 64

// officePipeline is the pipeline of the policy.
type officePipeline struct {
	*pipeline.Pipeline
	packet  dataplane.Packet
	verdict dataplane.Verdict
	now     int64
}

// process processes one frame of 3 Gbit/s.
func (o *officePipeline) process(frame []byte) {
	p := &o.packet
	p.Data, p.WireLen, p.Time, p.Link = frame, len(frame), o.now, dataplane.LinkEthernet
	o.now += int64(len(frame)) * 8 / 3
	o.Process(p, &o.verdict)
}

// check reports whether every class had packets, and most classes all colors.
func (o *officePipeline) check() error {
	var colors [3]int
	for i, s := range o.Stats()[:16] {
		if s.Total().Packets == 0 {
			return fmt.Errorf("class %d had no packets", i)
		}
		for c, n := range s.Colors {
			if n.Packets > 0 {
				colors[c]++
			}
		}
	}
	if slices.Min(colors[:]) < 8 {
		return fmt.Errorf("a color is rare: %v of 16 classes have it", colors)
	}
	return nil
}

func pipelineFigures() []figure {
	start := sync.OnceValues(func() (*officePipeline, error) {
		l, err := pipeline.New(office())
		return &officePipeline{Pipeline: l}, err
	})
	ns := onSource(start, func(o *officePipeline) (float64, error) {
		all := frames()
		start := time.Now()
		for range passes {
			for _, f := range all {
				o.process(f)
			}
		}
		return since(start, passes*numFrames), o.check()
	})
	allocations := onSource(start, func(o *officePipeline) (float64, error) {
		i := 0
		return testing.AllocsPerRun(numFrames, func() {
			o.process(frames()[i%numFrames])
			i++
		}), nil
	})
	return []figure{
		amount("parse, classify by 16 classes, meter, mark", 90, 45, " ns", ns, nil),
		amount("the same: allocations a packet", 0, noAim, "", allocations, nil),
	}
}
