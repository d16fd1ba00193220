package report

import (
	"errors"
	"fmt"
	"io"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

// Comparison is the result of one capture through several meters. Every series holds one value per
// bin, as in Data.
type Comparison struct {
	Input, Version  string
	Start, BinWidth int64   // ns
	Offered         []int64 // metered bytes of the packets arriving in the bin

	Window  int64  // ns, length of the worst span
	Rate    string // reference rate; may be empty
	Allowed int64  // bytes allowed by Rate in Window; 0 without a rate

	Meters    []Compared
	Unmetered dataplane.Count // not metered and passed; included in the totals
	Packets   int64
	Bytes     int64
	Duration  int64 // ns
	Warnings  []string
}

// Compared is the result of one meter.
type Compared struct {
	Name, Params           string
	Passed                 []int64         // bytes passed in the bin
	Green, Yellow, Dropped dataplane.Count // yellow packets passed too
	Worst                  int64           // most bytes passed in any Window
	Starved                int64           // ns, the longest run of dropped packets
	State                  int64           // bytes of memory of the meter
}

// passed counts the packets colored green or yellow.
func (m Compared) passed() dataplane.Count { return m.Green.Plus(m.Yellow) }

// offered counts the metered packets.
func (m Compared) offered() dataplane.Count { return m.passed().Plus(m.Dropped) }

// times is bytes as a multiple of Allowed, as text. It is empty without a rate.
func (c Comparison) times(bytes int64) string {
	if c.Allowed == 0 {
		return ""
	}
	return fmt.Sprintf("%.2f ×", float64(bytes)/float64(c.Allowed))
}

// bitRate is the rate in bit/s, or 0 without one.
func (c Comparison) bitRate() float64 {
	if c.Allowed == 0 {
		return 0
	}
	return float64(c.Allowed) * 8e9 / float64(c.Window)
}

// check returns all errors of the series, joined.
func (c Comparison) check() error {
	var errs []error
	if len(c.Offered) > 0 && c.BinWidth < 1 {
		errs = append(errs, fmt.Errorf("BinWidth is %d ns, want 1 or more", c.BinWidth))
	}
	if c.Window < 1 {
		errs = append(errs, fmt.Errorf("the window is %d ns, want 1 or more", c.Window))
	}
	for _, m := range c.Meters {
		if len(m.Passed) != len(c.Offered) {
			errs = append(errs, fmt.Errorf("passed of meter %q has %d bins, Offered has %d", m.Name,
				len(m.Passed), len(c.Offered)))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("report: %w", err)
	}
	return nil
}

// comparisonSeries is the data of the charts.
type comparisonSeries struct {
	Bins     int       `json:"bins"`
	BinWidth int64     `json:"binWidth"`
	Offered  []int64   `json:"offered"`
	Passed   [][]int64 `json:"passed"`
	Names    []string  `json:"names"`
	Rate     float64   `json:"rate"` // bit/s, or 0
	RateText string    `json:"rateText"`
}

// WriteComparison writes a comparison as one HTML file, as Write does.
func WriteComparison(w io.Writer, c Comparison) error {
	if err := c.check(); err != nil {
		return err
	}
	p, err := c.page()
	if err != nil {
		return err
	}
	return p.writeTo(w)
}

// page returns the page of the whole comparison.
func (c Comparison) page() (*page, error) {
	p := &page{
		script: viewJS + chartJS + compareJS, bins: len(c.Offered), start: c.Start, binWidth: c.BinWidth,
		version: c.Version,
	}
	p.begin(c.title())
	p.printf("<h1>%s</h1>\n"+`<p class="policy">through %s`, c.Input, say.Count(len(c.Meters), "meter"))
	if c.Rate != "" {
		p.printf(", compared with <code>%s</code>", c.Rate)
	}
	p.printf("</p>\n")
	p.main()
	tiles := totals(c.Packets, c.Bytes, c.Duration)
	if c.Unmetered.Packets > 0 {
		tiles = append(tiles, tile{
			label: "Not metered", value: say.Grouped(c.Unmetered.Packets), detail: "not IP, or malformed",
		})
	}
	p.tiles(tiles)
	p.warnings(c.Warnings)
	if p.bins == 0 || len(c.Meters) == 0 {
		p.printf(
			`<p class="empty">The capture holds no packet that was metered: there is nothing to draw.</p>` +
				"\n")
		p.bins = 0
		return p, p.end(nil)
	}
	s := comparisonSeries{
		Bins: p.bins, BinWidth: c.BinWidth, Offered: c.Offered, Rate: c.bitRate(), RateText: c.Rate,
	}
	var rows []row
	for _, m := range c.Meters {
		s.Passed, s.Names = append(s.Passed, m.Passed), append(s.Names, m.Name)
		rows = append(rows, c.row(m))
	}
	p.section("Meters",
		"Green and yellow packets passed. Worst is the most bytes that passed in any "+duration(c.Window)+
			", wherever it begins. Starved is the longest run of dropped packets, from the first to the last. State is the memory of one meter.")
	p.table("Meter", rows)
	p.endSection()
	note := "bit/s, all charts on one scale, the offered rate in the background."
	if c.Rate != "" {
		note += " The dotted line is the rate."
	}
	p.charts("Passed", note+" Time is since the start.")
	for i, m := range c.Meters {
		p.chart("passed", i, m.Name, m.Params)
	}
	p.endSection()
	return p, p.end(&s)
}

// title names the page and the picture.
func (c Comparison) title() string { return c.Input + " through " + say.Count(len(c.Meters), "meter") }

func (c Comparison) row(m Compared) row {
	all := m.offered().Bytes
	starved := cell{label: "Starved", value: "0", zero: true}
	if m.Starved > 0 {
		starved = cell{label: "Starved", value: brief(m.Starved)}
	}
	worst := cell{
		label: "Worst " + duration(c.Window), value: say.Grouped(m.Worst) + " B", zero: m.Worst == 0,
	}
	if times := c.times(m.Worst); times != "" {
		worst.under = []string{times + " the rate"}
	}
	return row{name: m.Name, under: m.Params, cells: []cell{
		counted("Green", "green", m.Green, all),
		counted("Yellow", "yellow", m.Yellow, all),
		counted("Dropped", "", m.Dropped, all),
		worst,
		starved,
		{label: "State", value: say.Grouped(m.State) + " B"},
	}}
}
