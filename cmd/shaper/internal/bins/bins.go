// Package bins collects time series in bounded memory. If a capture is longer than all
// bins, they double in width.
package bins

import (
	"cmp"
	"slices"
)

const (
	maxBins       = 512    // default of Axis.Max
	fewBins       = 96     // bins that Fit keeps, however few packets they have
	firstBin      = 10_000 // initial width, ns; a multiple of a µs for Area
	packetsPerBin = 8      // packets that Fit aims at
)

// Axis is the time axis that all series of a report share.
type Axis struct {
	Max int // maximum number of bins, even; 0: 512. Set it before Add

	begun  bool
	Start  int64 // time of the first bin, ns
	Width  int64 // width of a bin, ns
	n      int   // number of bins in use
	series []*Series
}

// Series has one value per bin.
type Series struct {
	values []int64
	blank  int64 // value of an empty bin
	merge  func(a, b int64) int64
}

// Sum merges the values of a bin to their sum. It is for Add.
func Sum(a, b int64) int64 { return a + b }

// Lowest merges the values of a bin to the lowest one. -1 is an empty bin.
func Lowest(a, b int64) int64 {
	if a < 0 || b >= 0 && b < a {
		return b
	}
	return a
}

// Highest merges the values of a bin to the highest one. -1 is an empty bin.
func Highest(a, b int64) int64 { return max(a, b) }

// Add adds a series to the axis. blank is the value of an empty bin. merge combines two values
// of a bin: Sum, Lowest or Highest.
func (x *Axis) Add(blank int64, merge func(a, b int64) int64) *Series {
	s := &Series{slices.Repeat([]int64{blank}, x.most()), blank, merge}
	x.series = append(x.series, s)
	return s
}

func (x *Axis) most() int { return cmp.Or(x.Max, maxBins) }

// Bin returns the index of the bin of time t, in ns. The first call sets the start of the
// axis; t must not be before it.
func (x *Axis) Bin(t int64) int {
	if !x.begun {
		x.begun, x.Start, x.Width = true, t, firstBin
	}
	since := uint64(t) - uint64(x.Start)
	for since/uint64(x.Width) >= uint64(x.most()) {
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

// Fit widens the bins until they have packetsPerBin packets on average, or until there are
// at most fewBins.
func (x *Axis) Fit(packets int64) {
	for x.n > fewBins && packets < packetsPerBin*int64(x.n) {
		x.widen()
	}
}

// Used returns the values of the bins in use.
func (x *Axis) Used(s *Series) []int64 { return s.values[:x.n] }

func (s *Series) halve() {
	half := len(s.values) / 2
	for i := range half {
		s.values[i] = s.merge(s.values[2*i], s.values[2*i+1])
	}
	for i := half; i < len(s.values); i++ {
		s.values[i] = s.blank
	}
}

// Put merges a value into a bin.
func (s *Series) Put(bin int, v int64) { s.values[bin] = s.merge(s.values[bin], v) }

// Area averages a backlog over each bin. For each bin it sums the arriving bytes minus
// the departing bytes, and these bytes times their times. From both sums, Means computes the
// integral of the backlog up to the end of each bin. A long queueing delay therefore costs
// no more than a short one, and the order of packets does not matter. The second sum may
// wrap; the difference between bins wraps only if 1 GB is queued for hours.
type Area struct{ bytes, moment *Series }

// AddArea adds an area to the axis.
func (x *Axis) AddArea() Area { return Area{x.Add(0, Sum), x.Add(0, Sum)} }

// micros converts a time to µs since the start of the axis.
func (x *Axis) micros(t int64) int64 { return int64((uint64(t) - uint64(x.Start)) / 1000) }

// Put adds n bytes that are queued between two times, in ns.
func (a Area) Put(x *Axis, from, to, n int64) {
	for _, end := range [2]struct{ at, n int64 }{{from, n}, {to, -n}} {
		i := x.Bin(end.at)
		a.bytes.Put(i, end.n)
		a.moment.Put(i, end.n*x.micros(end.at))
	}
}

// Means returns the backlog in bytes, averaged over each bin.
func (a Area) Means(x *Axis) []int64 {
	out := make([]int64, x.n)
	width := x.Width / 1000 // µs
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
