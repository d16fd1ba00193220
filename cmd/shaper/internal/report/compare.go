package report

import (
	"errors"
	"fmt"
	"io"
)

// Comparison is the same capture through several meters. Every series has one
// value a bin, as in Data.
type Comparison struct {
	Input, Version  string
	Start, BinWidth int64   // ns
	Offered         []int64 // bytes that came in the bin and were metered

	Window  int64  // ns, of the worst span
	Rate    string // that meters are held to, or nothing
	Allowed int64  // bytes, what it brings in Window; 0 is no rate

	Meters    []Compared
	Unmetered Count // what passes in any case, among the totals
	Packets   int64
	Bytes     int64
	Duration  int64 // ns
	Warnings  []string
}

// Compared is what one meter did.
type Compared struct {
	Name, Params           string
	Passed                 []int64 // bytes that passed in the bin
	Green, Yellow, Dropped Count   // yellow passed too
	Worst                  int64   // bytes, the most that passed in any Window
	Starved                int64   // ns, the longest time in which none passed
	State                  int64   // bytes, what the meter keeps
}

// passed is what the meter let through.
func (m Compared) passed() Count { return m.Green.plus(m.Yellow) }

// offered is what was metered.
func (m Compared) offered() Count { return m.passed().plus(m.Dropped) }

// times is how many times what the rate brings in Window a number of bytes is,
// as text.
func (c Comparison) times(bytes int64) string {
	if c.Allowed == 0 {
		return ""
	}
	return fmt.Sprintf("%.2f ×", float64(bytes)/float64(c.Allowed))
}

// bitRate is the rate in bits per second, or 0.
func (c Comparison) bitRate() float64 {
	if c.Allowed == 0 {
		return 0
	}
	return float64(c.Allowed) * 8e9 / float64(c.Window)
}

// check joins every fault of the series.
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
			errs = append(errs, fmt.Errorf("passed of meter %q has %d bins, Offered has %d", m.Name, len(m.Passed), len(c.Offered)))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("report: %w", err)
	}
	return nil
}

// comparisonView is what the template sees.
type comparisonView struct {
	frame
	Comparison
	Span string // the window as text
}

// comparisonSeries is what the script draws.
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
	v := comparisonView{
		frame:      newFrame(fmt.Sprintf("%s through %d meters", c.Input, len(c.Meters)), compareJS, len(c.Offered), c.Start, c.BinWidth),
		Comparison: c,
		Span:       duration(c.Window),
	}
	v.Totals = totals(c.Packets, c.Bytes, c.Duration)
	if c.Unmetered.Packets > 0 {
		v.Totals = append(v.Totals, tile{Label: "Not metered", Value: thousands(c.Unmetered.Packets), Detail: "not IP, or malformed"})
	}
	s := comparisonSeries{Bins: v.Bins, BinWidth: c.BinWidth, Offered: c.Offered, Rate: c.bitRate(), RateText: c.Rate}
	v.Table.Of = "Meter"
	for _, m := range c.Meters {
		s.Passed, s.Names = append(s.Passed, m.Passed), append(s.Names, m.Name)
		v.Table.Rows = append(v.Table.Rows, c.row(m))
	}
	v.Series = s
	return pages.write(w, "compare.html.tmpl", v)
}

func (c Comparison) row(m Compared) row {
	all := m.offered().Bytes
	starved := cell{Label: "Starved", Value: "0", Zero: true}
	if m.Starved > 0 {
		starved = cell{Label: "Starved", Value: brief(m.Starved)}
	}
	worst := cell{Label: "Worst " + duration(c.Window), Value: thousands(m.Worst) + " B", Zero: m.Worst == 0}
	if times := c.times(m.Worst); times != "" {
		worst.Under = []string{times + " the rate"}
	}
	return row{Name: m.Name, Under: m.Params, Cells: []cell{
		counted("Green", "green", m.Green, all),
		counted("Yellow", "yellow", m.Yellow, all),
		counted("Dropped", "", m.Dropped, all),
		worst,
		starved,
		{Label: "State", Value: thousands(m.State) + " B"},
	}}
}
