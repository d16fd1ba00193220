package tc

import (
	"fmt"
	"math/big"
	"strings"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/routers"
)

// meter sets the meter of a class.
func (b *tcBuilder) meter(c *routers.Entry, r *tcRule) {
	line := r.lines[0].Number
	m := c.Map("meter")
	first := r.meters[0]
	if len(r.meters) == 1 {
		m.Set("type", "token-bucket", line, "police")
		b.bucket(m, first, "rate", "burst", r.lines[0])
		m.Entries = append(m.Entries, countPackets(first, line)...)
		b.shared(c, m, r)
		return
	}
	second := r.meters[1]
	if r.later {
		m.Set("type", "trtcm4115", line,
			"two police actions; the second gets what exceeds the first (RFC 4115)")
		b.bucket(m, first, "cir", "cbs", r.lines[0])
		b.bucket(m, second, "eir", "ebs", r.lines[0])
	} else {
		m.Set("type", "trtcm", line,
			"two police actions; the second gets what conforms to the first (RFC 2698)")
		b.bucket(m, second, "cir", "cbs", r.lines[0])
		b.bucket(m, first, "pir", "pbs", r.lines[0])
	}
	if (first.packets > 0) != (second.packets > 0) {
		b.Cannot(r.lines[0], "one police action counts bytes, the other packets")
	}
	m.Entries = append(m.Entries, countPackets(first, line)...)
	b.shared(c, m, r)
}

// bucket sets the rate and the burst of a bucket.
func (b *tcBuilder) bucket(m *routers.Entry, p *tcPolice, rate, burst string, line routers.Line) {
	if p.packets > 0 {
		m.Set(rate, fmt.Sprintf("%dp/1s", p.packets), line.Number, "pkts_rate %d", p.packets)
		m.Set(burst, fmt.Sprint(p.pburst), line.Number, "pkts_burst %d", p.pburst)
		return
	}
	m.Set(rate, p.rate.String(), line.Number, "rate %s", p.rate.text)
	comment := "burst " + p.burstText
	if p.burstText != fmt.Sprint(p.burst) {
		comment += ": k is 1024 in tc"
	}
	if limit := p.maxPacket(); limit < 1<<16-1 && limit < p.burst {
		comment += fmt.Sprintf("; in tc, packets above %d B exceed (mtu)", limit)
	}
	m.Set(burst, fmt.Sprint(p.burst), line.Number, "%s", comment)
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

func countPackets(p *tcPolice, line int) []*routers.Entry {
	if p.packets == 0 {
		return nil
	}
	return []*routers.Entry{{Key: "count", Value: "packets", Line: line, Comment: "pkts_rate"}}
}

// shared notes a meter which several filters may use by its index. shareMeters moves it.
func (b *tcBuilder) shared(c, m *routers.Entry, r *tcRule) {
	var index []string
	for _, p := range r.meters {
		if p.index == 0 {
			return
		}
		index = append(index, fmt.Sprint(p.index))
	}
	m.Comment = "police index " + strings.Join(index, ", ")
	m.Line = r.lines[0].Number
	b.indexed = append(b.indexed, indexedMeter{strings.Join(index, "-"), c, m})
}

// indexedMeter is a meter in a class, with the index of its police actions.
type indexedMeter struct {
	index        string
	class, meter *routers.Entry
}

// shareMeters moves meters used by several classes to the meters of the draft.
func (b *tcBuilder) shareMeters() {
	count := map[string]int{}
	for _, i := range b.indexed {
		count[i.index]++
	}
	done := map[string]bool{}
	for _, i := range b.indexed {
		if count[i.index] < 2 {
			continue
		}
		key := routers.Quote("police-" + i.index)
		if !done[i.index] {
			done[i.index] = true
			b.Meters = append(b.Meters, &routers.Entry{
				Key: key, Line: i.meter.Line, Comment: i.meter.Comment, Entries: i.meter.Entries,
			})
		}
		i.meter.Value, i.meter.Entries = key, nil
	}
}
