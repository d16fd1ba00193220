package diff

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/replay"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// Result is the output of shaper diff --json.
type Result struct {
	Changes []Difference `json:"changes"`
	Capture *Capture     `json:"capture,omitempty"` // nil without a capture
}

// Capture compares the fates of the packets of a capture. Bytes are as A meters them.
type Capture struct {
	dataplane.Count
	Differ     dataplane.Count `json:"differ"` // packets with another fate
	OnlyA      dataplane.Count `json:"dropped_by_a_only"`
	OnlyB      dataplane.Count `json:"dropped_by_b_only"`
	Earlier    shiftJSON       `json:"departs_earlier"` // with B
	Later      shiftJSON       `json:"departs_later"`
	Matrix     []Row           `json:"matrix"` // most packets first
	First      []Packet        `json:"first"`
	Warnings   []string        `json:"warnings"`
	Notes      []string        `json:"notes"`
	DurationNS int64           `json:"duration_ns"`
}

type shiftJSON struct {
	dataplane.Count
	MostNS int64 `json:"most_ns"`
}

// Fate is the treatment of packets by a policy.
type Fate struct {
	Class  string `json:"class"` // - for unclassified packets
	Color  string `json:"color"` // "" for unclassified packets
	Action string `json:"action"`
}

func (f Fate) String() string {
	if f.Color == "" {
		return f.Action
	}
	return f.Color + " " + f.Action
}

func (f Fate) compare(o Fate) int {
	return cmp.Or(
		cmp.Compare(f.Color, o.Color), cmp.Compare(f.Action, o.Action), cmp.Compare(f.Class, o.Class))
}

// Row counts the packets with one fate by A and another one by B.
type Row struct {
	From    Fate     `json:"from"`
	To      Fate     `json:"to"`
	Differs []string `json:"differs"` // color, action, departure, dscp, pcp, dei, mpls, mark
	dataplane.Count
}

// compare orders rows: most packets first, then by the fates.
func (r Row) compare(o Row) int {
	return cmp.Or(
		cmp.Compare(o.Packets, r.Packets), r.From.compare(o.From), r.To.compare(o.To),
		slices.Compare(r.Differs, o.Differs),
	)
}

// Packet is one packet with another fate.
type Packet struct {
	Packet  int64    `json:"packet"`
	TimeNS  int64    `json:"time_ns"`
	From    Verdict  `json:"from"`
	To      Verdict  `json:"to"`
	Differs []string `json:"differs"`
	Why     []string `json:"why"` // commands to explain the two verdicts
}

// Verdict is a fate of one packet with its reason.
type Verdict struct {
	Fate
	DSCPOut     *int   `json:"dscp_out"`     // null if the packet is dropped or not IP
	DepartureNS *int64 `json:"departure_ns"` // null if the packet is dropped
	Reason      string `json:"reason"`
}

// Capture returns the result. why returns the commands to explain a packet, by its number.
func (f *Fates) Capture(summary replay.Summary, why func(packet int64) []string) *Capture {
	out := &Capture{
		Count: f.all, OnlyA: f.dropped[0], OnlyB: f.dropped[1],
		Earlier: shiftJSON{f.early.Count, f.early.most}, Later: shiftJSON{f.late.Count, f.late.most},
		Matrix: []Row{}, First: []Packet{}, Warnings: append([]string{}, summary.Warnings...),
		Notes: append([]string{}, summary.Notes...), DurationNS: summary.Last - summary.First,
	}
	var rows []*Row // pointers, which share one sorting function
	for k, n := range f.kinds {
		row := &Row{Differs: k.differs.names(), Count: n}
		for i, to := range []*Fate{&row.From, &row.To} {
			*to = f.fate(i, k.class[i],
				&dataplane.Verdict{Color: meter.Color(max(k.color[i], 0)), Done: k.done[i]})
		}
		rows = append(rows, row)
		out.Differ = out.Differ.Plus(n)
	}
	slices.SortFunc(rows, func(a, b *Row) int { return a.compare(*b) })
	for _, row := range rows {
		out.Matrix = append(out.Matrix, *row)
	}
	for i := range f.first {
		p := &f.first[i]
		id := p.verdict[0].ID
		out.First = append(out.First,
			Packet{id, p.time, f.verdictOf(p, 0), f.verdictOf(p, 1), p.differs.names(), why(id)})
	}
	return out
}

func (f *Fates) verdictOf(p *other, side int) Verdict {
	v := &p.verdict[side]
	out := Verdict{Fate: f.fate(side, v.Class, v), Reason: v.Reason.String()}
	if !v.Done.Dropped() {
		out.DepartureNS = new(p.departure(side))
		if v.HasDSCP {
			out.DSCPOut = new(int(v.DSCPOut))
		}
	}
	return out
}

// mostRows is the maximum number of rows of the matrix printed.
const mostRows = 20

// Write prints the result for people.
func (r *Result) Write(w io.Writer) error {
	p := &say.Printer{W: w}
	list, more := shortened(r.Changes)
	for _, c := range list {
		p.Printf("%s\n", c)
	}
	if more > 0 {
		p.Printf("and %s of customers: --json has all\n", say.Count(more, "more change"))
	}
	if len(r.Changes) == 0 {
		p.Printf("the policies are the same\n")
	}
	if r.Capture != nil {
		p.Printf("\n")
		r.Capture.write(p)
	}
	return p.Err
}

func (c *Capture) write(p *say.Printer) {
	if len(c.Matrix) == 0 {
		p.Printf("%s, %s bytes: all have the same fate\n", say.Count(c.Packets, "packet"),
			say.Grouped(c.Bytes))
		return
	}
	t := say.NewTable(5, "class", "from", "to", "differs", "packets", "%", "bytes")
	for _, row := range c.Matrix[:min(len(c.Matrix), mostRows)] {
		class := row.From.Class
		if row.To.Class != class {
			class += " -> " + row.To.Class
		}
		t.AppendRow(table.Row{
			class, row.From, row.To, strings.Join(row.Differs, ", "),
			say.Grouped(row.Packets), say.Percent(row.Packets, c.Packets), say.Grouped(row.Bytes),
		})
	}
	p.Printf("%s\n", t.Render())
	if more := len(c.Matrix) - mostRows; more > 0 {
		p.Printf("and %s: --json has all\n", say.Count(more, "more row"))
	}
	p.Printf("\n%s of %s (%s %%) and %s bytes have another fate\n", say.Grouped(c.Differ.Packets),
		say.Count(c.Packets, "packet"), say.Percent(c.Differ.Packets, c.Packets), say.Grouped(c.Differ.Bytes))
	for _, line := range []struct {
		n    dataplane.Count
		text string
	}{
		{c.OnlyB, "newly dropped"},
		{c.OnlyA, "no longer dropped"},
		{c.Earlier.Count, "sent earlier, by up to " + time.Duration(c.Earlier.MostNS).String()},
		{c.Later.Count, "sent later, by up to " + time.Duration(c.Later.MostNS).String()},
	} {
		if line.n.Packets > 0 {
			p.Printf("%s, %s bytes: %s\n", say.Count(line.n.Packets, "packet"), say.Grouped(line.n.Bytes),
				line.text)
		}
	}
	for i := range c.First {
		first := &c.First[i]
		p.Printf("\npacket %s: %s -> %s\n", say.Grouped(first.Packet), first.From.text(first.TimeNS),
			first.To.text(first.TimeNS))
		for _, command := range first.Why {
			p.Printf("  %s\n", command)
		}
	}
}

// text describes the fate of a packet with its time of arrival.
func (v Verdict) text(at int64) string {
	text := fmt.Sprintf("class %s, %v (%s)", v.Class, v.Fate, v.Reason)
	if v.DSCPOut != nil && strings.Contains(v.Action, "mark") {
		text += ", dscp " + say.Value("dscp", uint32(*v.DSCPOut))
	}
	if v.DepartureNS != nil && *v.DepartureNS > at {
		text += ", sent after " + time.Duration(*v.DepartureNS-at).String()
	}
	return text
}
