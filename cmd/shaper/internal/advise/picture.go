package advise

import "github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/report"

// Picture returns the frontier for a picture, of the capture with a name.
func (a *Advice) Picture(input string) report.Frontier {
	f := report.Frontier{Input: input, Rate: a.Rate}
	for _, p := range a.Frontier {
		f.Bursts = append(f.Bursts, p.Burst)
		f.Loss = append(f.Loss, float64(p.Dropped.Packets)/float64(a.Offered.Packets))
	}
	return f
}
