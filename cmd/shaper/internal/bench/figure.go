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

// onSource returns a side that measures what get returns, such as a server that get starts on its
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

// noAim is the aim of a figure that has only a bar.
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

// row measures both sides alternately, round by round.
func (f *figure) row(rounds int) string {
	var ours, other, measured []float64
	if f.most > 0 {
		rounds = min(rounds, f.most)
	}
	for round := range rounds + 1 {
		a, err := f.ours()
		if err != nil {
			return f.failed(err)
		}
		b := 0.0
		if f.other != nil {
			if b, err = f.other(); err != nil {
				return f.failed(err)
			}
		}
		if round == 0 {
			continue // warm-up
		}
		ours, other, measured = append(ours, a), append(other, b), append(measured, f.measured(a, b))
	}
	m := median(measured)
	beside := ""
	if f.other != nil {
		beside = number(median(other)) + f.each
	}
	aim := ""
	if f.aim != noAim {
		aim = number(f.aim) + f.unit
	}
	return fmt.Sprintf("| %s | %s | %s | %s%s [%s..%s] | %s%s | %s | %s |", f.what, f.barText(), aim,
		number(m), f.unit, number(slices.Min(measured)), number(slices.Max(measured)),
		number(median(ours)), f.each, beside, f.met(m))
}

func (f *figure) failed(err error) string {
	return fmt.Sprintf("| %s | %s | | not measured: %v | | | |", f.what, f.barText(), err)
}

func (f *figure) barText() string {
	if math.IsInf(f.bar, 0) {
		return "" // noAim
	}
	return number(f.bar) + f.unit
}

func (f *figure) met(m float64) string {
	reached := func(goal float64) bool { return m <= goal && !f.more || m >= goal && f.more }
	switch {
	case math.IsInf(f.bar, 0):
		return ""
	case f.aim != noAim && reached(f.aim):
		return "aim"
	case reached(f.bar):
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
