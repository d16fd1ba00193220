package meter

import "fmt"

// Clause names the rule of an RFC that decided a verdict. Its String is one
// of rfc2697-, rfc2698-, rfc4115- or the name of another kind, followed by green,
// yellow or red, or by pre-yellow or pre-red where the color before the meter
// stood.
type Clause uint8

const preYellow, preRed = 3, 4 // offsets beside the colors

var (
	clauseOf = [...]string{
		"token-bucket", "rfc2697", "rfc2698", "rfc4115",
		"gcra", "fixed-window", "sliding-window", "sliding-counter", "sliding-log", "tswtcm",
	}
	clauseColor = [...]string{"green", "yellow", "red", "pre-yellow", "pre-red"}
)

// NumClauses is one more than the largest Clause.
const NumClauses = len(clauseOf) * len(clauseColor)

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
	return clauseOf[kind] + "-" + clauseColor[color]
}

// Text returns the rule in words, with its source. B is the packet's length.
func (c Clause) Text() string {
	if int(c) >= NumClauses {
		return c.String()
	}
	kind, color := c.split()
	return clauseText[kind][color]
}

var excessText = [...]string{
	"green before and Tc >= B: green, Tc -= B",
	"green before, Tc < B and Te >= B: yellow, Te -= B",
	"no bucket that its color may use holds B: red, nothing debited",
	"yellow before and Te >= B: yellow, Te -= B",
	"red before: red, nothing debited",
}

// twoColor are the rules of a meter of two colors.
func twoColor(name, fits, not string) [len(clauseColor)]string {
	return [...]string{
		name + ": " + fits + ": green, B is debited",
		"",
		name + ": " + not + ": red, nothing debited",
		name + ": yellow before and " + fits + ": yellow, B is debited",
		name + ": red before: red, nothing debited",
	}
}

var clauseText = [...][len(clauseColor)]string{
	KindTokenBucket:    twoColor("token bucket", "Tc >= B", "Tc < B"),
	KindGCRA:           twoColor("GCRA", "B fits the bucket", "B does not fit the bucket"),
	KindFixedWindow:    twoColor("fixed window", "B fits what is left in this window", "B is more than what is left in this window"),
	KindSlidingWindow:  twoColor("sliding window", "B fits what is left in the slots in view", "B is more than what is left in the slots in view"),
	KindSlidingCounter: twoColor("sliding window counter", "B fits what is left beside the share of the window before", "B is more than what is left beside the share of the window before"),
	KindSlidingLog:     twoColor("sliding log", "B fits what is left in view", "B is more than what is left in view, or no entry is free"),
	KindTSWTCM: {
		"RFC 2859 §4: the average is at most CTR, or the draw spared the packet: green",
		"RFC 2859 §4: the average is above CTR, and the draw took the packet: yellow",
		"RFC 2859 §4: the average is above PTR, and the draw took the packet: red",
		"RFC 2859 §4: yellow before: no better than yellow",
		"RFC 2859 §4: red before: red, not averaged",
	},
	KindSRTCM:     prefixed("RFC 2697 §3: ", excessText),
	KindTRTCM4115: prefixed("RFC 4115 §3: ", excessText),
	KindTRTCM: {
		"RFC 2698 §3: green before, Tp >= B and Tc >= B: green, Tp -= B, Tc -= B",
		"RFC 2698 §3: green before, Tp >= B and Tc < B: yellow, Tp -= B",
		"RFC 2698 §3: Tp < B: red, nothing debited",
		"RFC 2698 §3: yellow before and Tp >= B: yellow, Tp -= B",
		"RFC 2698 §3: red before: red, nothing debited",
	},
}

func prefixed(source string, texts [len(clauseColor)]string) [len(clauseColor)]string {
	for i := range texts {
		texts[i] = source + texts[i]
	}
	return texts
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
