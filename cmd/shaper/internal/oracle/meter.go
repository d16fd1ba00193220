package oracle

import "math/big"

type color int

const (
	green color = iota
	yellow
	red
)

func (c color) String() string { return [...]string{"green", "yellow", "red"}[c] }

// bucket holds tokens up to size, and gains rate tokens a nanosecond.
type bucket struct {
	rate   *big.Rat
	size   *big.Rat
	tokens *big.Rat
}

// add puts n tokens into the bucket and returns what did not fit.
func (b *bucket) add(n *big.Rat) (overflow *big.Rat) {
	sum := new(big.Rat).Add(b.tokens, n)
	if sum.Cmp(b.size) <= 0 {
		b.tokens = sum
		return new(big.Rat)
	}
	b.tokens = new(big.Rat).Set(b.size)
	return sum.Sub(sum, b.size)
}

// fits says whether the tokens are enough for the cost: equal is enough.
func (b *bucket) fits(cost *big.Rat) bool { return b.tokens.Cmp(cost) >= 0 }

func (b *bucket) take(cost *big.Rat) { b.tokens = new(big.Rat).Sub(b.tokens, cost) }

// meter is a meter of any type with its state. Bucket c is the committed one and
// the only one of a token bucket; e is the excess bucket of RFC 2697 and RFC 4115;
// p is the peak bucket of RFC 2698.
type meter struct {
	kind     string // srtcm, trtcm, trtcm4115 or token-bucket
	aware    bool
	precolor precolor
	packets  bool // a packet costs one token, whatever its length
	coupling bool // RFC 4115 only: what overflows c goes into e
	c, e, p  *bucket
	then     string // the next meter of the chain, or ""

	last *big.Rat // the time of the last refill; nil before the first packet
}

var reasonPrefix = map[string]string{
	"srtcm":        "rfc2697",
	"trtcm":        "rfc2698",
	"trtcm4115":    "rfc4115",
	"token-bucket": "token-bucket",
}

// decide refills the buckets up to now and colors one packet.
func (m *meter) decide(now *big.Rat, length int64, pre color) (after color, reason string) {
	m.refill(now)

	cost := whole(length)
	if m.packets {
		cost = whole(1)
	}
	if !m.aware {
		pre = green
	}
	switch m.kind {
	case "srtcm":
		after = m.rfc2697(cost, pre)
	case "trtcm":
		after = m.rfc2698(cost, pre)
	case "trtcm4115":
		after = m.rfc4115(cost, pre)
	case "token-bucket":
		after = m.tokenBucket(cost, pre)
	}

	prefix := reasonPrefix[m.kind]
	switch {
	case pre == red:
		return after, prefix + "-pre-red"
	case pre == yellow && after == yellow:
		return after, prefix + "-pre-yellow"
	}
	return after, prefix + "-" + after.String()
}

// refill gives the tokens of the time since the last packet. The clock of a meter
// begins with the first packet that it sees.
func (m *meter) refill(now *big.Rat) {
	if m.last == nil {
		m.last = now
		return
	}
	dt := new(big.Rat).Sub(now, m.last)
	if dt.Sign() <= 0 {
		return
	}
	m.last = now

	grant := func(b *bucket) *big.Rat { return new(big.Rat).Mul(b.rate, dt) }
	overflow := m.c.add(grant(m.c))
	switch m.kind {
	case "srtcm":
		m.e.add(overflow)
	case "trtcm":
		m.p.add(grant(m.p))
	case "trtcm4115":
		m.e.add(grant(m.e))
		if m.coupling {
			m.e.add(overflow)
		}
	}
}

// rfc2697 is RFC 2697 §3, in color-aware mode.
func (m *meter) rfc2697(cost *big.Rat, pre color) color {
	switch {
	case pre == green && m.c.fits(cost):
		m.c.take(cost)
		return green
	case pre != red && m.e.fits(cost):
		m.e.take(cost)
		return yellow
	}
	return red
}

// rfc2698 is RFC 2698 §3, in color-aware mode.
func (m *meter) rfc2698(cost *big.Rat, pre color) color {
	switch {
	case pre == red || !m.p.fits(cost):
		return red
	case pre == yellow || !m.c.fits(cost):
		m.p.take(cost)
		return yellow
	}
	m.p.take(cost)
	m.c.take(cost)
	return green
}

// rfc4115 is Figure 1 of RFC 4115 §3: a packet equal to the tokens conforms.
func (m *meter) rfc4115(cost *big.Rat, pre color) color {
	switch {
	case pre == green && m.c.fits(cost):
		m.c.take(cost)
		return green
	case pre != red && m.e.fits(cost):
		m.e.take(cost)
		return yellow
	}
	return red
}

// tokenBucket has two colors of its own: what conforms keeps its color.
func (m *meter) tokenBucket(cost *big.Rat, pre color) color {
	if pre == red || !m.c.fits(cost) {
		return red
	}
	m.c.take(cost)
	return pre
}

// precolor reads the color before the first meter from a header.
type precolor struct {
	from   string // dscp, pcp, mpls or mark
	colors map[uint64]color
}

// defaultPrecolor is AFx1 green, AFx2 yellow, AFx3 red, all other green.
func defaultPrecolor() precolor {
	p := precolor{from: "dscp", colors: map[uint64]color{}}
	for class := uint64(1); class <= 4; class++ {
		p.colors[8*class+4] = yellow
		p.colors[8*class+6] = red
	}
	return p
}

// of is green where the header is missing or the map does not name its value.
func (p precolor) of(f frame) color {
	switch {
	case p.from == "dscp" && f.isIP():
		return p.colors[uint64(f.dscp())]
	case p.from == "pcp" && f.hasVLAN:
		return p.colors[uint64(f.pcp)]
	case p.from == "mpls" && f.hasMPLS:
		return p.colors[uint64(f.mplsTC)]
	case p.from == "mark":
		return p.colors[0]
	}
	return green
}
