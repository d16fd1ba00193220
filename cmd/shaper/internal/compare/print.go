package compare

import (
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/report"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/replay"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// Result is the output of compare --json.
type Result struct {
	dataplane.Count
	DurationNS int64           `json:"duration_ns"`
	Unmetered  dataplane.Count `json:"unmetered"` // included in packets and bytes
	WindowNS   int64           `json:"window_ns"`
	Rate       string          `json:"rate,omitempty"`
	Allowed    int64           `json:"allowed_bytes,omitempty"` // bytes allowed by the rate in a window
	Meters     []meterTotals   `json:"meters"`
	Warnings   []string        `json:"warnings"`
	Notes      []string        `json:"notes"`
}

type meterTotals struct {
	Name    string          `json:"name"`
	Meter   string          `json:"meter"`
	Green   dataplane.Count `json:"green"`
	Yellow  dataplane.Count `json:"yellow"`
	Passed  dataplane.Count `json:"passed"`
	Dropped dataplane.Count `json:"dropped"`
	Worst   struct {
		Bytes  int64   `json:"bytes"`
		FromNS int64   `json:"from_ns"` // since the start of the capture
		Ratio  float64 `json:"ratio,omitempty"`
	} `json:"worst"`
	Starved struct {
		NS     int64 `json:"ns"`
		FromNS int64 `json:"from_ns"` // since the start of the capture
	} `json:"starved"`
	State int `json:"state_bytes"`
}

// Totals returns the result as for compare --json.
func (c *Comparison) Totals(s replay.Summary) Result {
	t := Result{
		Count:      c.offered.Plus(c.unmetered),
		DurationNS: s.Last - s.First,
		Unmetered:  c.unmetered,
		WindowNS:   int64(c.window),
		Rate:       c.rate,
		Allowed:    c.allowed,
		Warnings:   append([]string{}, s.Warnings...),
		Notes:      append([]string{}, s.Notes...),
	}
	for i := range c.meters {
		m, n := &c.meters[i], &c.measured[i]
		row := meterTotals{
			Name:    m.name,
			Meter:   m.spec,
			Green:   n.colors[meter.Green],
			Yellow:  n.colors[meter.Yellow],
			Passed:  n.passed,
			Dropped: n.dropped,
			State:   m.state,
		}
		row.Worst.Bytes, row.Worst.FromNS, row.Worst.Ratio = n.burst.bytes, max(n.burst.from-s.First, 0),
			c.ratio(n.burst.bytes)
		row.Starved.NS, row.Starved.FromNS = n.starved.ns, max(n.starved.from-s.First, 0)
		t.Meters = append(t.Meters, row)
	}
	return t
}

// ratio returns bytes as a multiple of the bytes allowed by the rate in a window, or 0 without a
// rate.
func (c *Comparison) ratio(bytes int64) float64 {
	if c.allowed == 0 {
		return 0
	}
	return float64(bytes) / float64(c.allowed)
}

// wrapped breaks text into lines of at most width characters.
func wrapped(s string, width int) string {
	lines := strings.Split(text.WrapSoft(s, width), "\n")
	for i, line := range lines {
		lines[i] = strings.TrimRight(line, " ") // WrapSoft pads lines
	}
	return strings.Join(lines, "\n")
}

// table draws the result for people, with two or more lines per meter: packets above bytes.
// Parameters are broken into lines of width characters.
func (c *Comparison) table(width int) string {
	t := say.NewTable(2, "meter", "passed\nbytes", "dropped\n%", "worst "+spanText(c.window), "starved",
		"state")
	for i := range c.meters {
		m, n := &c.meters[i], &c.measured[i]
		times, starved := "", ""
		if c.allowed > 0 {
			times = fmt.Sprintf("%.2fx", c.ratio(n.burst.bytes))
		}
		if n.starved.ns > 0 {
			starved = say.FillTime(n.starved.ns, meter.Rate{Bytes: 1, Period: 1})
		}
		t.AppendRow(table.Row{
			m.name + "\n" + wrapped(m.params, width),
			say.Grouped(n.passed.Packets) + "\n" + say.Grouped(n.passed.Bytes),
			say.Grouped(n.dropped.Packets) + "\n" + say.Percent(n.dropped.Packets, c.offered.Packets),
			say.Grouped(n.burst.bytes) + " B\n" + times,
			starved,
			say.Grouped(int64(m.state)) + " B",
		})
	}
	return t.Render()
}

// WriteTable prints the table. It is at most 80 columns wide unless its numbers are too
// long.
func (c *Comparison) WriteTable(w io.Writer, s replay.Summary) error {
	const terminal, most, least = 80, 28, 20
	drawn := c.table(most)
	for width := most - 1; width >= least && text.LongestLineLen(drawn) > terminal; width-- {
		drawn = c.table(width)
	}
	all := c.offered.Plus(c.unmetered)
	_, err := fmt.Fprintf(w, "%s\n\n%s packets, %s bytes metered, %s\n", drawn, say.Grouped(all.Packets),
		say.Grouped(c.offered.Bytes), say.Seconds(s.Last-s.First))
	if c.unmetered.Packets > 0 && err == nil {
		_, err = fmt.Fprintf(w, "%s packets were not metered, and passed: not IP, or malformed\n",
			say.Grouped(c.unmetered.Packets))
	}
	return err
}

// Report returns the data for the HTML page and the picture. in is the path of the capture.
func (c *Comparison) Report(in, version string, s replay.Summary) report.Comparison {
	c.Fit(c.offered.Packets)
	d := report.Comparison{
		Input: filepath.Base(say.Printable(in)), Version: version,
		Start: c.Start, BinWidth: c.Width, Offered: c.Used(c.offeredBins),
		Window: int64(c.window), Rate: c.rate, Allowed: c.allowed,
		Packets: c.offered.Packets + c.unmetered.Packets, Bytes: c.offered.Bytes + c.unmetered.Bytes,
		Unmetered: c.unmetered, Duration: s.Last - s.First,
		Warnings: s.Warnings,
	}
	for i := range c.meters {
		m, n := &c.meters[i], &c.measured[i]
		d.Meters = append(d.Meters, report.Compared{
			Name: m.name, Params: m.params, Passed: c.Used(c.passedBins[i]),
			Green:   n.colors[meter.Green],
			Yellow:  n.colors[meter.Yellow],
			Dropped: n.dropped,
			Worst:   n.burst.bytes, Starved: n.starved.ns, State: int64(m.state),
		})
	}
	return d
}
