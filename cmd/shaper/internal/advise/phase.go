package advise

import "sync/atomic"

// phase is a share of the work whose progress is reported. The zero value reports nothing.
type phase struct {
	report     func(done float64)
	from, size float64 // of the whole work, which is 1
}

// part returns a part of a phase, given as parts of it.
func (p phase) part(from, to float64) phase {
	return phase{p.report, p.from + p.size*from, p.size * (to - from)}
}

// parallel is parallel with a report after each call of f.
func (p phase) parallel(n int, f func(i int) error) error {
	var done atomic.Int64
	return parallel(n, func(i int) error {
		err := f(i)
		if now := done.Add(1); p.report != nil {
			p.report(p.from + p.size*float64(now)/float64(n))
		}
		return err
	})
}
