package report

import (
	"errors"
	"fmt"
	"io"
	"slices"
)

// Simulation is the use of a budget and the shares of its hosts over time. Each series holds one
// value per bin, in bit/s.
type Simulation struct {
	Name     string
	Rate     float64 // rate of the budget, bit/s
	RateText string
	Width    float64 // width of a bin, s

	Offered, Passed     []float64
	Allowed             []float64 // maximum for all hosts together
	Least, Median, Most []float64 // shares of one host
	Marks               []Mark    // in order of time

	Used, Excess, Shares string // results, printed above the panels
}

// Mark is an event of a simulation.
type Mark struct {
	At   float64 // s
	What string
}

func (s Simulation) check() error {
	var errs []error
	if s.Width <= 0 {
		errs = append(errs, fmt.Errorf("the width of a bin is %v s, want more than 0", s.Width))
	}
	for _, series := range []struct {
		name   string
		values []float64
	}{
		{"Passed", s.Passed},
		{"Allowed", s.Allowed},
		{"Least", s.Least},
		{"Median", s.Median},
		{"Most", s.Most},
	} {
		if len(series.values) != len(s.Offered) {
			errs = append(errs,
				fmt.Errorf("%s has %d bins, Offered has %d", series.name, len(series.values), len(s.Offered)))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("report: %w", err)
	}
	return nil
}

// WriteSimulation draws the use and the shares of a budget over time, as SVG.
func WriteSimulation(w io.Writer, s Simulation) error {
	if err := s.check(); err != nil {
		return err
	}
	return s.draw().writeTo(w)
}

func (s Simulation) draw() *figure {
	top := func(series ...[]float64) float64 {
		high := 1.0
		for _, values := range series {
			high = max(high, slices.Max(append(values, 0)))
		}
		return high * headroom
	}
	rate := []float64{s.Rate}
	panels := []panel{
		{
			name: "Use", more: "offered (gray) and passed (blue)", result: s.Used,
			top:   top(s.Offered, s.Allowed, rate),
			under: func(p *panel) { p.area("offered", s.Offered) },
			over:  func(p *panel) { p.area("passed", s.Passed); p.limit(s.Rate) },
		},
		{
			name: "Sum of shares", more: "most that all hosts together could use", result: s.Excess,
			top:  top(s.Allowed, rate),
			over: func(p *panel) { p.area("passed", s.Allowed); p.limit(s.Rate) },
		},
		{
			name: "Share of one host", more: "median (line), least to most (gray)", result: s.Shares,
			top:   top(s.Most),
			under: func(p *panel) { p.band("offered", s.Least, s.Most) },
			over:  func(p *panel) { p.line("line", s.Median) },
		},
	}
	for i := range panels {
		panels[i].events = s.Marks
	}
	panels[0].named = len(s.Marks) > 0
	keys := []key{{"limit", "budget " + s.RateText}}
	if len(s.Marks) > 0 {
		keys = append(keys, key{"event", "event"})
	}
	return drawPicture(s.Name, "time since the start", "the simulation is too short to draw", keys,
		len(s.Offered), float64(len(s.Offered))*s.Width, panels)
}
