package report

import (
	"errors"
	"io"
	"slices"
)

// Traffic is the result of a replay for each of its flows or classes over time.
type Traffic struct {
	Title, Since string
	Seconds      float64 // length of the time axis
	Flows        []Flow
	Delays       bool // values are delays in seconds; otherwise rates in bit/s
}

// Flow is one panel of the picture of Traffic, with a value per bin.
type Flow struct {
	Name, More, Result string
	Offered, Passed    []float64 // for delays only Passed
	Limit              float64   // bit/s; 0: none
}

// WriteTraffic draws the flows, one below the other, as SVG.
func WriteTraffic(w io.Writer, t Traffic) error {
	if len(t.Flows) == 0 || t.Seconds <= 0 {
		return errors.New("report: a picture of traffic needs flows and a time")
	}
	bins := len(t.Flows[0].Passed)
	keys := []key{{"offered", "offered"}, {"passed", "passed"}}
	top, limits := 1e-3, false
	for _, f := range t.Flows {
		if len(f.Passed) != bins || bins == 0 || !t.Delays && len(f.Offered) != bins {
			return errors.New("report: all flows of a picture need as many bins")
		}
		top = max(top, f.Limit, slices.Max(f.Passed), slices.Max(append([]float64{0}, f.Offered...)))
		limits = limits || f.Limit > 0
	}
	if t.Delays {
		keys = []key{{"passed", "delay"}}
	}
	if limits {
		keys = append(keys, key{"limit", "limit"})
	}
	panels := make([]panel, len(t.Flows))
	for i, f := range t.Flows {
		panels[i] = panel{
			name: f.Name, more: f.More, result: f.Result, top: top * headroom,
			over: func(p *panel) { p.area("passed", f.Passed); p.limit(f.Limit) },
		}
		if t.Delays {
			panels[i].units = timeUnits
		} else {
			panels[i].under = func(p *panel) { p.area("offered", f.Offered) }
		}
	}
	return drawPicture(t.Title, t.Since, "", keys, bins, t.Seconds, panels).writeTo(w)
}
