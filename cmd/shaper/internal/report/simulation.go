package report

import (
	"errors"
	"fmt"
	"image/color"
	"io"
	"slices"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// Simulation is what hosts did that share a budget. Series have a value a bin, in
// bit/s.
type Simulation struct {
	Name     string
	Rate     float64 // of the budget, bit/s
	RateText string
	Width    float64 // of a bin, s

	Offered, Passed     []float64
	Allowed             []float64 // the most that all hosts could use at the same time
	Least, Median, Most []float64 // shares of a host
	Marks               []Mark    // in order of time

	Used, Excess, Shares string // what was measured, above the panels
}

// Mark is when something happened.
type Mark struct {
	At   float64 // s
	What string
}

func (s Simulation) check() error {
	var errs []error
	if s.Width <= 0 {
		errs = append(errs, fmt.Errorf("the width of a bin is %v s", s.Width))
	}
	for what, series := range map[string][]float64{
		"Passed": s.Passed, "Allowed": s.Allowed, "Least": s.Least, "Median": s.Median, "Most": s.Most,
	} {
		if len(series) != len(s.Offered) {
			errs = append(errs, fmt.Errorf("%s has %d bins, Offered has %d", what, len(series), len(s.Offered)))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("report: %w", err)
	}
	return nil
}

// WriteSimulation draws how a budget was used and shared over time, as svg or png.
func WriteSimulation(w io.Writer, s Simulation, format string) error {
	if err := s.check(); err != nil {
		return err
	}
	return writePicture(w, format, 3, s.draw)
}

func (s Simulation) draw(canvas draw.Canvas) {
	heading(canvas, s.Name, "bit/s; dotted: "+s.RateText)
	if len(s.Offered) == 0 {
		canvas.FillText(style(10, mutedColor, draw.XCenter, false), canvas.Center(), "the simulation is too short to draw")
		return
	}
	seconds := float64(len(s.Offered)) * s.Width
	top := func(series ...[]float64) float64 {
		most := 1.0
		for _, values := range series {
			most = max(most, slices.Max(values))
		}
		return most * 1.05
	}
	line := func(values []float64, c color.Color) plot.Plotter { return steps(values, s.Width, nil, c) }
	all := top(s.Offered, s.Allowed, []float64{s.Rate})
	panels := []*plot.Plot{
		rates(seconds, all, []plot.Plotter{steps(s.Offered, s.Width, offeredColor, nil)}, steps(s.Passed, s.Width, passedFill, passedColor), limit(s.Rate)),
		rates(seconds, top(s.Allowed, []float64{s.Rate}), nil, steps(s.Allowed, s.Width, passedFill, passedColor), limit(s.Rate)),
		rates(seconds, top(s.Most), nil, line(s.Most, mutedColor), line(s.Least, mutedColor), line(s.Median, passedColor)),
	}
	data := stack(canvas, panels)
	captionOf(data[0], "Use", "what passed, and what was offered", s.Used)
	captionOf(data[1], "Sum of shares", "the most that hosts could use at once", s.Excess)
	captionOf(data[2], "Share of a host", "median, least and most", s.Shares)
	s.marks(data, panels[0])
	timeAxis(data[2], panels[2], "")
}

// marks draws a line through all panels for each mark, and says what happened as far as
// there is room.
func (s Simulation) marks(data []draw.Canvas, p *plot.Plot) {
	text := style(7, rateColor, draw.XLeft, false)
	var free vg.Length // from here on there is room for text
	for _, m := range s.Marks {
		x := data[0].X(p.X.Norm(m.At))
		for _, d := range data {
			d.StrokeLine2(draw.LineStyle{Color: rateColor, Width: 0.4}, x, d.Min.Y, x, d.Max.Y)
		}
		what := strings.TrimSpace(m.What)
		if end := x + 2 + text.Width(what); x >= free && end < data[0].Max.X {
			data[0].FillText(text, vg.Point{X: x + 2, Y: data[0].Max.Y - 8}, what)
			free = end + 2
		}
	}
}
