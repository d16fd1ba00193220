package main

import (
	"fmt"
	"math"
	"slices"
	"sort"
	"time"
)

const (
	pacedPayload = 1472
	pacedFrame   = pacedPayload + 42 // on the wire, without FCS
	pacedTime    = 2 * time.Second
	evenRate     = 50_000_000 // bit/s
)

// queuedPolicy is a policy with one queue for all IP packets.
func queuedPolicy(rate int, length string) string {
	return fmt.Sprintf(
		"classes: [{name: all, green: {queue: q}}]\nqueues: {q: {rate: %dbit, limit: 100ms}}\nlength: %s\n",
		rate, length)
}

// htbClassOf writes the hand-configured HTB class for a rate in bits of frames.
func htbClassOf(rate int) string { return fmt.Sprintf("rate %dbit", rate) }

// gapsAtEvenRate returns the gaps between packets at evenRate, without the first 100, in µs.
func (w *wire) gapsAtEvenRate() ([]float64, error) {
	at, err := w.paced(evenRate)
	if err != nil {
		return nil, err
	}
	var gaps []float64
	for i := 101; i < len(at); i++ {
		gaps = append(gaps, float64(at[i]-at[i-1])/1e3)
	}
	if len(gaps) < 1000 {
		return nil, fmt.Errorf("only %d packets arrived", len(at))
	}
	return gaps, nil
}

func deviation(v []float64) float64 {
	sum, squares := 0.0, 0.0
	for _, x := range v {
		sum += x
	}
	for _, x := range v {
		squares += (x - sum/float64(len(v))) * (x - sum/float64(len(v)))
	}
	return math.Sqrt(squares / float64(len(v)))
}

// spread returns the largest deviation from the ideal gap of 99 % of the gaps.
func spread(gaps []float64) float64 {
	const ideal = pacedFrame * 8e6 / evenRate
	off := make([]float64, len(gaps))
	for i, g := range gaps {
		off[i] = math.Abs(g - ideal)
	}
	slices.Sort(off)
	return off[len(off)*99/100]
}

// rateError compares a rate with the bytes received after the packet at 200 ms, up to the last one,
// in percent. Before 200 ms HTB sends the credit of its burst. Packets with the time of the first
// packet are not counted.
func (w *wire) rateError(rate int) (float64, error) {
	at, err := w.paced(rate)
	if err != nil {
		return 0, err
	}
	saved := sort.Search(len(at), func(i int) bool { return at[i] > at[0]+200e6 })
	first, last := at[saved], at[len(at)-1]
	n := len(at) - sort.Search(len(at), func(i int) bool { return at[i] > first })
	measured := float64(n) * pacedFrame * 8e9 / float64(last-first)
	return percentOff(measured, float64(rate)), nil
}

// percentOff returns the deviation from the ideal in percent.
func percentOff(measured, ideal float64) float64 { return 100 * math.Abs(measured-ideal) / ideal }

// Live figures.
var liveRates = []struct {
	rate int
	name string
}{{1e6, "1 Mbit/s"}, {10e6, "10 Mbit/s"}, {100e6, "100 Mbit/s"}, {1e9, "1 Gbit/s"}}

var goodputRates = liveRates[2:]

// handMade returns a side with hand-configured HTB.
func handMade(get func() (*wire, error), rate int, f func(*wire) (float64, error)) side {
	return onSource(get, func(w *wire) (float64, error) {
		return w.whileHTB(htbClassOf(rate), func() (float64, error) { return f(w) })
	})
}

// gapsFigure returns a side to measure the gaps.
func gapsFigure(how func([]float64) float64) func(*wire) (float64, error) {
	return func(w *wire) (float64, error) {
		gaps, err := w.gapsAtEvenRate()
		if err != nil {
			return 0, err
		}
		return how(gaps), nil
	}
}

// rateFigures returns the figures of a plane at several rates: its error, compared with
// hand-configured HTB. run returns the side of a policy.
func rateFigures(
	plane string, get func() (*wire, error), run func(policy string, f func(*wire) (float64, error)) side,
) (figures []figure) {
	for _, l := range liveRates {
		f := func(w *wire) (float64, error) { return w.rateError(l.rate) }
		figures = append(figures, amount(
			plane+": UDP through a queue of "+l.name+", rate error; other: hand-configured HTB", 0.1, 0.01,
			" %",
			run(queuedPolicy(l.rate, "l2"), f), handMade(get, l.rate, f)))
	}
	for _, l := range goodputRates {
		figures = append(figures, amount(
			plane+": TCP through a queue of "+l.name+", goodput off the ideal; other: hand-configured HTB",
			0.5, 0.1, " %",
			run(queuedPolicy(l.rate, "l3"),
				func(w *wire) (float64, error) { return w.goodput(l.rate, 1500) }),
			handMade(get, l.rate, func(w *wire) (float64, error) { return w.goodput(l.rate, 1514) })))
	}
	return figures
}

func pacingFigures(get func() (*wire, error)) []figure {
	run := func(policy string, f func(*wire) (float64, error)) side { return whileAttached(get, policy, f) }
	even := func(what string, how func([]float64) float64) figure {
		f := timeRatio("kernel: UDP 1472 B through a queue of 50 Mbit/s against hand-configured HTB, "+what,
			1.1, 1,
			run(queuedPolicy(evenRate, "l2"), gapsFigure(how)), handMade(get, evenRate, gapsFigure(how)))
		f.each = " µs"
		return f
	}
	figures := []figure{
		even("standard deviation of gaps", deviation),
		even("p99 error of the gaps", spread),
	}
	figures = append(figures, rateFigures("kernel", get, run)...)
	// All packets are queued, below the limit.
	const (
		waits  = "classes: [{name: all, green: {queue: q}}]\nqueues: {q: {rate: 2gbit, limit: 1s}}"
		passes = "classes: [{name: all, green: pass}]"
	)
	over := amount("kernel: program with a queue over the program without, 64 B", math.Inf(1), noAim, " ns",
		onSource(programOf(get, waits), costOf), onSource(programOf(get, passes), costOf))
	over.measured = func(ours, without float64) float64 { return ours - without }
	return append(figures, over)
}
