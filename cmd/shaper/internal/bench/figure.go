package main

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"
)

// side measures one side of a figure once.
type side func() (float64, error)

// onSource returns a side which measures the result of get, such as a server started by get on its
// first call.
func onSource[T any](get func() (T, error), f func(T) (float64, error)) side {
	return func() (float64, error) {
		v, err := get()
		if err != nil {
			return 0, err
		}
		return f(v)
	}
}

// figure is one row of the table.
type figure struct {
	what     string
	bar, aim float64 // noAim if there is none
	unit     string  // unit of measured
	each     string  // unit of the sides
	ours     side
	other    side                              // nil if there is no comparison
	measured func(ours, other float64) float64 // result of one round
	more     bool                              // larger is better
	most     int                               // maximum number of rounds; 0: the default
}

// noAim is the aim of a figure with only a bar.
const noAim = -1

// timeRatio is our time divided by theirs; smaller is better.
func timeRatio(what string, bar, aim float64, ours, other side) figure {
	return figure{
		what: what, bar: bar, aim: aim, unit: "x", each: " ns", ours: ours, other: other,
		measured: func(ours, other float64) float64 { return ours / other },
	}
}

// speedRatio is their time divided by ours; larger is better.
func speedRatio(what string, bar, aim float64, ours, other side) figure {
	f := timeRatio(what, bar, aim, ours, other)
	f.measured, f.more = func(ours, other float64) float64 { return other / ours }, true
	return f
}

// amount is a figure of ours alone. If other is given, the table shows it, too.
func amount(what string, bar, aim float64, unit string, ours, other side) figure {
	return figure{
		what: what, bar: bar, aim: aim, unit: unit, each: unit, ours: ours, other: other,
		measured: func(ours, _ float64) float64 { return ours },
	}
}

// result is a measured figure.
type result struct {
	*figure
	value, least, greatest float64 // median and extremes of the rounds' results
	ours, other            float64 // medians
	err                    error   // not nil: it could not be measured
}

// measure measures both sides alternately, round by round, after a round to warm up.
func (f *figure) measure(rounds int) result {
	if f.most > 0 {
		rounds = min(rounds, f.most)
	}
	var ours, other, measured []float64
	for round := range rounds + 1 {
		a, err := f.ours()
		b := 0.0
		if err == nil && f.other != nil {
			b, err = f.other()
		}
		if err != nil {
			return result{figure: f, err: err}
		}
		if round > 0 {
			ours, other, measured = append(ours, a), append(other, b), append(measured, f.measured(a, b))
		}
	}
	return result{
		f, median(measured), slices.Min(measured), slices.Max(measured), median(ours), median(other), nil,
	}
}

// row returns the result as a row of the table.
func (r result) row() string {
	if r.err != nil {
		return fmt.Sprintf("| %s | %s | %s | not measured: %v | | | |", r.what, r.barText(), r.aimText(),
			r.err)
	}
	beside := ""
	if r.figure.other != nil {
		beside = number(r.other) + r.each
	}
	return fmt.Sprintf("| %s | %s | %s | %s [%s..%s] | %s%s | %s | %s |", r.what, r.barText(), r.aimText(),
		r.valueText(), number(r.least), number(r.greatest), number(r.ours), r.each, beside, r.met())
}

func (r result) valueText() string { return number(r.value) + r.unit }

func (f *figure) aimText() string {
	if f.aim == noAim {
		return ""
	}
	return number(f.aim) + f.unit
}

func (f *figure) barText() string {
	if math.IsInf(f.bar, 0) {
		return "" // noAim
	}
	return number(f.bar) + f.unit
}

// met names the better goal that the figure reached, "aim" or "bar". It returns "no" if the figure
// reached none, and "" without goals.
func (r result) met() string {
	reached := func(goal float64) bool {
		return r.value <= goal && !r.more || r.value >= goal && r.more
	}
	switch {
	case math.IsInf(r.bar, 0):
		return ""
	case r.aim != noAim && reached(r.aim):
		return "aim"
	case reached(r.bar):
		return "bar"
	}
	return "no"
}

func median(v []float64) float64 {
	v = slices.Sorted(slices.Values(v))
	return (v[(len(v)-1)/2] + v[len(v)/2]) / 2
}

func number(v float64) string { return strconv.FormatFloat(v, 'g', 3, 64) }

// since returns the time since start divided by n packets, in ns.
func since(start time.Time, n int) float64 { return float64(time.Since(start)) / float64(n) }
