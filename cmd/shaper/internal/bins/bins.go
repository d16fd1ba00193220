// Package bins sums up series over a time axis of bounded memory: bins double in width when
// a capture outgrows them.
package bins

// Bins start narrow and double in width whenever the capture outgrows them, so
// that memory does not grow with it.
const (
	maxBins       = 512
	fewBins       = 96
	firstBin      = 10_000 // ns
	packetsPerBin = 8
)

// Axis is the time axis that all series of a report share.
type Axis struct {
	begun  bool
	Start  int64 // ns
	Width  int64 // ns
	n      int   // bins in use
	series []*Series
}

// Series is one value a bin.
type Series struct {
	values []int64
	blank  int64
	merge  func(a, b int64) int64
}

func Sum(a, b int64) int64 { return a + b }

// Lowest and highest take -1 for no value.
func Lowest(a, b int64) int64 {
	if a < 0 || b >= 0 && b < a {
		return b
	}
	return a
}

func Highest(a, b int64) int64 { return max(a, b) }

func (x *Axis) Add(blank int64, merge func(a, b int64) int64) *Series {
	s := &Series{make([]int64, maxBins), blank, merge}
	for i := range s.values {
		s.values[i] = blank
	}
	x.series = append(x.series, s)
	return s
}

// Bin returns the bin of a time, which is not before the first one's.
func (x *Axis) Bin(t int64) int {
	if !x.begun {
		x.begun, x.Start, x.Width = true, t, firstBin
	}
	since := uint64(t) - uint64(x.Start)
	for since/uint64(x.Width) >= maxBins {
		x.widen()
	}
	i := int(since / uint64(x.Width))
	x.n = max(x.n, i+1)
	return i
}

// widen doubles the width of a bin.
func (x *Axis) widen() {
	for _, s := range x.series {
		s.halve()
	}
	x.Width *= 2
	x.n = (x.n + 1) / 2
}

// Fit widens the bins until they have packetsPerBin packets each, or are few.
func (x *Axis) Fit(packets int64) {
	for x.n > fewBins && packets < packetsPerBin*int64(x.n) {
		x.widen()
	}
}

// Used are the values of the bins in use.
func (x *Axis) Used(s *Series) []int64 { return s.values[:x.n] }

func (s *Series) halve() {
	for i := range maxBins / 2 {
		s.values[i] = s.merge(s.values[2*i], s.values[2*i+1])
	}
	for i := maxBins / 2; i < maxBins; i++ {
		s.values[i] = s.blank
	}
}

func (s *Series) Put(bin int, v int64) { s.values[bin] = s.merge(s.values[bin], v) }

// Area is what bytes times waits comes to in each bin. It keeps two sums of the
// bytes that come, less those that leave: plain, and times when that was. Those
// up to the end of a bin tell what had waited by then. So a long wait costs no
// more than a short one, and the order of packets does not matter. The second
// sum may wrap; differences between bins do so only where 1 GB waits for hours.
type Area struct{ bytes, moment *Series }

func (x *Axis) AddArea() Area { return Area{x.Add(0, Sum), x.Add(0, Sum)} }

// micros is a time on the axis.
func (x *Axis) micros(t int64) int64 { return int64((uint64(t) - uint64(x.Start)) / 1000) }

// Put adds n bytes that wait between two times.
func (a Area) Put(x *Axis, from, to, n int64) {
	for _, end := range [2]struct{ at, n int64 }{{from, n}, {to, -n}} {
		i := x.Bin(end.at)
		a.bytes.Put(i, end.n)
		a.moment.Put(i, end.n*x.micros(end.at))
	}
}

// Means are the bytes that waited in each bin, averaged over it.
func (a Area) Means(x *Axis) []int64 {
	out := make([]int64, x.n)
	width := x.Width / 1000 // whole, as firstBin is
	var bytes, moment, before int64
	for i := range out {
		bytes += a.bytes.values[i]
		moment += a.moment.values[i]
		upTo := bytes*int64(i+1)*width - moment
		out[i] = (upTo - before + width/2) / width
		before = upTo
	}
	return out
}
