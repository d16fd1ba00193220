package meter

import (
	"cmp"
	"fmt"
)

// Clause names the rule of an RFC that decided a verdict. Its String is one
// of rfc2697-, rfc2698-, rfc4115- or the name of another kind, followed by green,
// yellow or red, or by pre-yellow or pre-red where the color before the meter
// stood.
type Clause uint8

const preYellow, preRed = 3, 4 // offsets beside the colors

var clauseColor = [...]string{"green", "yellow", "red", "pre-yellow", "pre-red"}

// NumClauses is one more than the largest Clause.
const NumClauses = len(kinds) * len(clauseColor)

// Clause returns the rule by which a meter of kind k gave color out to a
// packet of color in.
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

// String returns the name, as in rfc2698-pre-yellow.
func (c Clause) String() string {
	if int(c) >= NumClauses {
		return fmt.Sprintf("Clause(%d)", uint8(c))
	}
	kind, color := c.split()
	return cmp.Or(kinds[kind].rule, kinds[kind].Name) + "-" + clauseColor[color]
}

// Text returns the rule in words, with its source. B is the packet's length.
func (c Clause) Text() string {
	if int(c) >= NumClauses {
		return c.String()
	}
	kind, color := c.split()
	info := &kinds[kind]
	if info.Source == "" || info.texts[color] == "" {
		return info.texts[color]
	}
	return info.Source + ": " + info.texts[color]
}

// Explanation is a verdict with its grounds.
type Explanation struct {
	Length             int   // bytes
	In, Color          Color // before and after the meter
	TcBefore, TeBefore int64 // whole bytes at the packet's time, refilled
	TcAfter, TeAfter   int64 // whole bytes after its tokens were taken
	Clause             Clause
}

// Explain is Color with the grounds of its verdict. Te is Tp for a meter of
// RFC 2698.
func (m *Meter) Explain(now int64, n int, in Color) Explanation {
	return m.profile.made().explain(&m.state, m.profile.log, now, n, in)
}

func (p *Profile) explain(s *state, log []entry, now int64, n int, in Color) Explanation {
	return p.kind.explain(n, in,
		func() (tc, te int64) { return p.tokens(*s, log, now) },
		func() Color { return p.color(s, log, now, n, in) })
}

// explain is the verdict of color, between two looks at the tokens.
func (k Kind) explain(n int, in Color, tokens func() (tc, te int64), color func() Color) Explanation {
	x := Explanation{Length: n, In: in}
	x.TcBefore, x.TeBefore = tokens()
	x.Color = color()
	x.TcAfter, x.TeAfter = tokens()
	x.Clause = k.Clause(in, x.Color)
	return x
}

// String is one line for people.
func (x Explanation) String() string {
	return fmt.Sprintf("%d B %v -> %v, Tc %d -> %d, Te %d -> %d (%v)",
		x.Length, x.In, x.Color, x.TcBefore, x.TcAfter, x.TeBefore, x.TeAfter, x.Clause.Text())
}
