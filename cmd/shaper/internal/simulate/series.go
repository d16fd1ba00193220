package simulate

import (
	"slices"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
)

// Series is the course of a simulation. Each series holds one value per bin. Rates are in bit/s.
type Series struct {
	Width               time.Duration // width of a bin
	Offered             []float64     // rate offered to all running hosts
	Passed              []float64
	Allowed             []float64 // maximum rate for all hosts together
	Least, Median, Most []float64 // shares of the running hosts, at the end of the bin
	// running hosts, and those of them without a lease, at the end of the bin
	Up, Rescued []int
	Marks       []Mark
}

// Mark is the time of an event.
type Mark struct {
	At   time.Duration
	What string
}

// bins is the maximum number of bins.
const bins = 600

// recorder makes a Series.
type recorder struct {
	Series
	passed, offered float64 // bytes before the current bin
	shares          []int64
}

func (r *recorder) start(s *simulation) {
	r.Width = max(s.Duration/bins, time.Duration(s.Terms.Interval))
	s.Settle()
	s.Peak()
	r.passed, r.offered = s.Stats.Passed, s.Stats.Offered
	s.Every(int64(r.Width), func() bool {
		r.bin(s)
		return true
	})
}

// bin ends a bin.
func (r *recorder) bin(s *simulation) {
	s.Settle()
	rate := func(bytes float64) float64 { return bytes * 8 / r.Width.Seconds() }
	r.Passed = append(r.Passed, rate(s.Stats.Passed-r.passed))
	r.Offered = append(r.Offered, rate(s.Stats.Offered-r.offered))
	r.passed, r.offered = s.Stats.Passed, s.Stats.Offered
	r.Allowed = append(r.Allowed, float64(s.Peak()))
	r.shares = r.shares[:0]
	rescued := 0
	for _, h := range s.World.Hosts {
		if h.Up {
			r.shares = append(r.shares, h.Allowed().Rate[0])
			if s.Rescued(h) {
				rescued++
			}
		}
	}
	slices.Sort(r.shares)
	at := func(part float64) float64 {
		if len(r.shares) == 0 {
			return 0
		}
		return float64(r.shares[int(part*float64(len(r.shares)-1))])
	}
	r.Least, r.Median, r.Most = append(r.Least, at(0)), append(r.Median, at(0.5)), append(r.Most, at(1))
	r.Up, r.Rescued = append(r.Up, len(r.shares)), append(r.Rescued, rescued)
}

// note marks an event, unless it is repeated.
func (r *recorder) note(s *simulation, e *policyfile.Event) {
	if e.Every == 0 {
		r.Marks = append(r.Marks, Mark{time.Duration(s.Now - s.begin), e.Does})
	}
}
