package meter

import (
	"cmp"
	"fmt"
)

// Clause is the rule behind a verdict. Its String is rfc2697-, rfc2698-, rfc4115- or the name of
// another kind, followed by green, yellow or red; or by pre-yellow or pre-red if the packet kept
// that input color.
type Clause uint8

const preYellow, preRed = 3, 4 // after the colors

var clauseColor = [...]string{"green", "yellow", "red", "pre-yellow", "pre-red"}

// NumClauses is one more than the largest Clause.
const NumClauses = len(kinds) * len(clauseColor)

// Clause returns the rule by which a meter of kind k changed the input color in to out.
func (k Kind) Clause(in, out Color) Clause {
	c := Clause(k)*Clause(len(clauseColor)) + Clause(out)
	if in == out && out != Green {
		c += preYellow - Clause(Yellow)
	}
	return c
}

func (c Clause) split() (Kind, int) {
	return Kind(int(c) / len(clauseColor)), int(c) % len(clauseColor)
}

// String returns the name, such as rfc2698-pre-yellow.
func (c Clause) String() string {
	if int(c) >= NumClauses {
		return fmt.Sprintf("Clause(%d)", uint8(c))
	}
	kind, color := c.split()
	return cmp.Or(kinds[kind].rule, kinds[kind].Name) + "-" + clauseColor[color]
}

// Text returns the rule in words, with its source. In it, B is the length of the packet.
func (c Clause) Text() string {
	if int(c) >= NumClauses {
		return c.String()
	}
	kind, color := c.split()
	info := &kinds[kind]
	if info.Source == "" {
		return info.texts[color]
	}
	return info.Source + ": " + info.texts[color]
}

// Explanation is a verdict with its reason.
type Explanation struct {
	Length             int   // bytes
	In, Color          Color // the input color and the result
	TcBefore, TeBefore int64 // tokens before the packet, in whole bytes
	TcAfter, TeAfter   int64 // tokens after the packet, in whole bytes
	Clause             Clause
}

// Explain meters a packet as Color does, and explains the verdict. For RFC 2698, Te stands
// for Tp.
func (m *Meter) Explain(now int64, n int, in Color) Explanation {
	return m.profile.made().explain(&m.state, m.profile.log, now, n, in)
}

func (p *Profile) explain(s *state, log []entry, now int64, n int, in Color) Explanation {
	return p.kind.explain(n, in,
		func() (tc, te int64) { return p.tokens(*s, log, now) },
		func() Color { return p.color(s, log, now, n, in) })
}

// explain calls color between two calls of tokens.
func (k Kind) explain(n int, in Color, tokens func() (tc, te int64), color func() Color) Explanation {
	x := Explanation{Length: n, In: in}
	x.TcBefore, x.TeBefore = tokens()
	x.Color = color()
	x.TcAfter, x.TeAfter = tokens()
	x.Clause = k.Clause(in, x.Color)
	return x
}

// String returns the explanation in one line.
func (x Explanation) String() string {
	return fmt.Sprintf("%d B %v -> %v, Tc %d -> %d, Te %d -> %d (%v)",
		x.Length, x.In, x.Color, x.TcBefore, x.TcAfter, x.TeBefore, x.TeAfter, x.Clause.Text())
}
