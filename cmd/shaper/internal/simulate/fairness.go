package simulate

import (
	"math"
	"slices"
)

// fairness compares the bytes passed by hosts with their max-min fair shares of the budget.
type fairness struct {
	fair   []float64 // fair share in bytes, by host
	before []float64 // bytes passed before the start, by host
	wants  []int64   // offered rates, bit/s; scratch space of add
}

func (f *fairness) start(s *simulation) {
	for _, h := range s.World.Hosts {
		f.before = append(f.before, h.Passed)
	}
	s.Every(s.Terms.Interval, func() bool {
		f.add(s)
		return true
	})
}

// add adds each host's fair share of an interval.
func (f *fairness) add(s *simulation) {
	f.wants = f.wants[:0]
	for _, h := range s.World.Hosts {
		if h.Up {
			f.wants = append(f.wants, h.Offered)
		}
	}
	most := level(f.wants, s.Terms.Size.Rate[0])
	f.fair = append(f.fair, make([]float64, len(s.World.Hosts)-len(f.fair))...)
	for i, h := range s.World.Hosts {
		if h.Up {
			f.fair[i] += float64(min(h.Offered, most)) * float64(s.Terms.Interval) / 8e9
		}
	}
}

// level returns the maximum of each host if a rate is shared max-min fair. It sorts wants.
func level(wants []int64, rate int64) int64 {
	slices.Sort(wants)
	for i, w := range wants {
		part := rate / int64(len(wants)-i)
		if w >= part {
			return part
		}
		rate -= w
	}
	return math.MaxInt64
}

// index returns Jain's index of the hosts' bytes divided by their fair shares: 1 if all
// quotients are equal.
func (f *fairness) index(s *simulation) float64 {
	sum, squares, n := 0.0, 0.0, 0.0
	for i, fair := range f.fair {
		if fair == 0 {
			continue
		}
		got := s.World.Hosts[i].Passed
		if i < len(f.before) {
			got -= f.before[i]
		}
		sum, squares, n = sum+got/fair, squares+got/fair*got/fair, n+1
	}
	if squares == 0 {
		return 1
	}
	return sum * sum / (n * squares)
}
