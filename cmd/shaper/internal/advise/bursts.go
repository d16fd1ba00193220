package advise

import (
	"fmt"
	"math"
	"slices"
	"sort"
	"strings"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// whole answers for all packets.
func (s *Stream) whole(a *Advice, o Options) (err error) {
	if o.Rate.Bytes > 0 {
		cir, _ := o.Rate.Bits()
		pir, _ := o.Peak.Bits()
		like := []meter.Params{
			meter.TokenBucket{Rate: o.Rate},
			meter.SRTCM{CIR: o.Rate},
			meter.TRTCM{CIR: o.Rate, PIR: o.Peak},
			meter.TRTCM4115{CIR: o.Rate, EIR: meter.BitRate(pir - cir)},
		}
		if a.Bursts, err = s.bursts(o.Rate, like, o.LossTarget, o.phase.part(0, openPart)); err != nil {
			return err
		}
		a.LowerBound = a.Capture.TCP.Throttled
	}
	a.Rates, err = s.atRates(o.Rate, a.Capture.Rate(), o.phase.part(openPart, 1))
	return err
}

// class answers for classes with a meter of these parameters.
func (s *Stream) class(p meter.Params, o Options) (*Class, error) {
	b, err := s.bursts(p.Buckets()[0].Rate, []meter.Params{p}, o.LossTarget, o.phase)
	if err != nil {
		return nil, err
	}
	c := &Class{Meter: oneLine(p), Bursts: *b}
	for i := range s.keys {
		c.Yellow, c.Red = c.Yellow.Plus(s.keys[i].Yellow), c.Red.Plus(s.keys[i].Red)
	}
	if s.numbers != nil {
		c.Worst = worstOf(s.keys, b.hungry)
	}
	return c, nil
}

// bursts returns the curve of burst and loss at a rate, and the meters with the smallest bursts
// whose losses stay within w.
func (s *Stream) bursts(
	rate meter.Rate, meters []meter.Params, w LossTarget, work phase,
) (*Bursts, error) {
	d, err := s.demandAt(rate)
	if err != nil {
		return nil, err
	}
	b := &Bursts{
		Rate: rate.String(), Offered: s.Total(), LossFree: d.lossFree, hungry: d.hungry,
		Meters: make([]Suggestion, len(meters)),
	}
	b.RateBits, _ = rate.Bits()
	if s.numbers != nil {
		b.Keys = len(s.keys)
		for _, most := range s.allowed(w.Loss) {
			if most == 0 && w.Loss.Num > 0 {
				b.NoLoss++
			}
		}
	}
	if b.Frontier, err = d.frontier(); err != nil {
		return nil, err
	}
	return b, work.parallel(len(meters), func(i int) error {
		p, err := s.fitBursts(meters[i], w)
		if err != nil {
			return err
		}
		b.Meters[i] = Suggestion{Meter: oneLine(p), Params: p}
		if s.numbers == nil {
			return nil
		}
		profile, err := p.Profile()
		if err == nil {
			b.Meters[i].Worst = s.worst(profile, d.hungry)
		}
		return err
	})
}

// atRates returns the bursts of token buckets at several rates: from the average rate up, and at
// the wanted one.
func (s *Stream) atRates(wanted meter.Rate, average float64, work phase) ([]AtRate, error) {
	var rates []meter.Rate
	for _, percent := range []float64{100, 110, 125, 150, 200, 300, 500} {
		if n := twoDigits(average * percent / 100); n > 0 {
			rates = append(rates, meter.BitRate(n))
		}
	}
	if wanted.Bytes > 0 {
		rates = append(rates, wanted)
	}
	sort.Slice(rates, func(i, j int) bool { return rates[i].Cmp(rates[j]) < 0 })
	rates = slices.CompactFunc(rates, func(a, b meter.Rate) bool { return a.Cmp(b) == 0 })
	list := make([]AtRate, len(rates))
	permille, percent := s.allowed(dataplane.Fraction{Num: 1, Den: 1000}),
		s.allowed(dataplane.Fraction{Num: 1, Den: 100})
	err := work.parallel(len(rates), func(i int) error {
		r := rates[i]
		list[i].Rate = r.String()
		list[i].RateBits, _ = r.Bits()
		d, err := s.demandAt(r)
		if err != nil {
			return err
		}
		list[i].LossFree = d.lossFree
		if list[i].Permille, err = d.smallest(permille); err == nil {
			list[i].Percent, err = d.smallest(percent)
		}
		return err
	})
	return list, err
}

// twoDigits rounds a rate up to two significant digits, bit/s.
func twoDigits(bits float64) int64 {
	if bits < 1 || bits > 1e15 {
		return 0
	}
	unit := int64(1)
	for bits/float64(unit) >= 100 {
		unit *= 10
	}
	return int64(math.Ceil(bits/float64(unit))) * unit
}

// oneLine writes a meter in the syntax of --meter.
func oneLine(p meter.Params) string {
	kind := p.Kind().Info()
	words := []string{kind.Name}
	for _, name := range slices.Concat(kind.Required, kind.Optional) {
		if v := meter.Field(p, name); slices.Contains(kind.Required, name) ||
			v != meter.Field(kind.Defaults, name) {
			words = append(words, fmt.Sprintf("%s=%v", name, v))
		}
	}
	return strings.Join(words, " ")
}
