package tc

import (
	"fmt"
	"math/big"
	"slices"
	"strings"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/routers"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// meter sets the meter of a class. Several filters may use the police actions of one by their indexes: their
// classes share the meter.
func (b *tcBuilder) meter(c *dataplane.Class, r *tcRule) {
	line := r.lines[0]
	index := r.indexes()
	if m := b.indexed[index]; m != nil {
		if m.Name == "" {
			m.Name = "police-" + index
			b.Policy.Meters = append(b.Policy.Meters, m)
		}
		c.Meter = m
		b.From(c, "meter", line, "police index %s", strings.ReplaceAll(index, "-", ", "))
		return
	}
	m := &dataplane.Meter{Packets: r.meters[0].packets > 0}
	c.Meter = m
	if index != "" {
		b.indexed[index] = m
		b.From(c, "meter", line, "police index %s", strings.ReplaceAll(index, "-", ", "))
	}
	first, burst := b.bucket(m, r.meters[0], line)
	why := "police"
	if len(r.meters) == 1 {
		m.Params = meter.TokenBucket{Rate: first, Burst: burst}
		b.comment(m, r.meters[0], line, "rate", "burst")
	} else {
		second, other := b.bucket(m, r.meters[1], line)
		if (r.meters[0].packets > 0) != (r.meters[1].packets > 0) {
			b.Cannot(line, "one police action counts bytes, the other packets")
		}
		if r.later {
			m.Params = meter.TRTCM4115{CIR: first, CBS: burst, EIR: second, EBS: other}
			why = "two police actions; the second gets what exceeds the first (RFC 4115)"
			b.comment(m, r.meters[0], line, "cir", "cbs")
			b.comment(m, r.meters[1], line, "eir", "ebs")
		} else {
			m.Params = meter.TRTCM{CIR: second, CBS: other, PIR: first, PBS: burst}
			why = "two police actions; the second gets what conforms to the first (RFC 2698)"
			b.comment(m, r.meters[1], line, "cir", "cbs")
			b.comment(m, r.meters[0], line, "pir", "pbs")
		}
	}
	b.From(m, "type", line, "%s", why)
	if m.Packets {
		b.From(m, "count", line, "pkts_rate")
	}
}

// indexes returns the indexes of the police actions of a rule, or "" if some has none.
func (r *tcRule) indexes() string {
	if slices.ContainsFunc(r.meters, func(p *tcPolice) bool { return p.index == 0 }) {
		return ""
	}
	var all []string
	for _, p := range r.meters {
		all = append(all, fmt.Sprint(p.index))
	}
	return strings.Join(all, "-")
}

// bucket returns the rate and the burst of a police action.
func (b *tcBuilder) bucket(m *dataplane.Meter, p *tcPolice, line routers.Line) (meter.Rate, int64) {
	if p.packets > 0 {
		return meter.Rate{Bytes: p.packets, Period: time.Second}, p.pburst
	}
	if limit := p.maxPacket(); limit < 1<<16-1 && limit < p.burst {
		b.Note(line, "in tc, packets above %d B exceed (mtu)", limit)
	}
	return p.rate.rate(), p.burst
}

// comment sets the comments of a bucket's rate and burst.
func (b *tcBuilder) comment(m *dataplane.Meter, p *tcPolice, line routers.Line, rate, burst string) {
	if p.packets > 0 {
		b.From(m, rate, line, "pkts_rate %d", p.packets)
		b.From(m, burst, line, "pkts_burst %d", p.pburst)
		return
	}
	b.From(m, rate, line, "rate %s", p.rate.text)
	text := "burst " + p.burstText
	if p.burstText != fmt.Sprint(p.burst) {
		text += ": k is 1024 in tc"
	}
	b.From(m, burst, line, "%s", text)
}

// maxPacket returns the length of the longest packet that can conform. Without mtu it follows from
// the rate table, which tc makes for packets of 2047 bytes (tcf_police_init, tc_calc_rtable).
func (p *tcPolice) maxPacket() int64 {
	if p.mtu == 0 {
		return 255 << 3
	}
	return p.mtu
}

// storedBursts returns the smallest and the largest burst that the kernel may use for a burst in a
// command. tc converts it to a time in ticks of 64 ns: rounded up to a tick, but before iproute2
// 6.15 down to a microsecond first (tc_calc_xmittime; commit d947f365).
func storedBursts(rate, burst int64) (low, high int64) {
	ns := new(big.Int).Mul(big.NewInt(burst), big.NewInt(second))
	us := ns.Quo(ns, big.NewInt(rate)).Int64() / 1000
	ticks, _ := burstTicks(rate, burst)
	return bytesOfTicks(rate, us*1000/tickNS), bytesOfTicks(rate, ticks)
}
