package main

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

func ports(list ...uint32) []dataplane.Range {
	var out []dataplane.Range
	for _, p := range list {
		out = append(out, dataplane.Range{First: p, Last: p})
	}
	return out
}

func span(first, last uint32) []dataplane.Range { return []dataplane.Range{{First: first, Last: last}} }

func prefixes(list ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, p := range list {
		out = append(out, netip.MustParsePrefix(p))
	}
	return out
}

// office is a policy of 16 classes. Every class marks every color with
// codepoints that leave its packets in it, so that frames can come again.
func office() *dataplane.Policy {
	tcp, udp := ports(6), ports(17)
	matches := []struct {
		name  string
		match dataplane.Match
		af    uint32 // the codepoint of green
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
		var params dataplane.Params = meter.TRTCM{CIR: meter.BitRate(60e6), CBS: bucket, PIR: meter.BitRate(180e6), PBS: bucket}
		if i%4 == 3 {
			params = meter.SRTCM{CIR: meter.BitRate(60e6), CBS: bucket, EBS: bucket}
		}
		policy.Classes = append(policy.Classes, dataplane.Class{
			Name: m.name, Match: m.match, Meter: &dataplane.Meter{Name: m.name, Params: params},
			Green: mark(0), Yellow: mark(2), Red: mark(4),
		})
	}
	return policy
}

// passes is how often a run sees every frame.
const passes = 64

// officePipeline is the policy at work.
type officePipeline struct {
	*dataplane.Pipeline
	now int64
}

// packet processes one frame as it comes at 3 Gbit/s.
func (o *officePipeline) packet(frame []byte) dataplane.Verdict {
	p := dataplane.Packet{Data: frame, WireLen: len(frame), Time: o.now, Link: dataplane.LinkEthernet}
	o.now += int64(len(frame)) * 8 / 3
	return o.Process(&p)
}

// check says whether every class had packets and most of them every color.
func (o *officePipeline) check() error {
	var colors tally
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
	if min(colors[meter.Green], colors[meter.Yellow], colors[meter.Red]) < 8 {
		return errors.New("a color is rare")
	}
	return nil
}

func pipelineFigures() []figure {
	start := sync.OnceValues(func() (*officePipeline, error) {
		l, err := dataplane.New(office())
		return &officePipeline{Pipeline: l}, err
	})
	ns := func() (float64, error) {
		o, err := start()
		if err != nil {
			return 0, err
		}
		all := frames()
		ns := perPacket(passes*numFrames, func() {
			for range passes {
				for _, f := range all {
					o.packet(f)
				}
			}
		})
		return ns, o.check()
	}
	allocations := func() (float64, error) {
		o, err := start()
		if err != nil {
			return 0, err
		}
		i := 0
		return testing.AllocsPerRun(numFrames, func() {
			o.packet(frames()[i%numFrames])
			i++
		}), nil
	}
	return []figure{
		amount("parse, classify by 16 classes, meter, mark", 90, 45, " ns", ns, nil),
		amount("the same: allocations a packet", 0, noAim, "", allocations, nil),
	}
}
