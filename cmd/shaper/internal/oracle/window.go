package oracle

import (
	"math/big"
	"slices"
)

// window is the state of the four meters counting over a span of time. They divide time into places
// of equal length, and remember the amount taken in each place in view. They differ in the length
// of a place and in the number of places in view:
//
//	fixed-window     a window   1
//	sliding-window   a slot     slots
//	sliding-counter  a window   2, of which the older is weighed
//	sliding-log      1 ns       window, of which `entries` at most are remembered
type window struct {
	limit   *big.Rat
	initial *big.Rat // counts as taken at the first packet
	place   *big.Int // ns
	view    *big.Int // places, including the current one
	weighed bool
	most    int // maximum number of remembered places

	begun bool
	taken []portion // oldest first, none of zero
}

// portion is the amount taken in one place.
type portion struct {
	place  *big.Int
	tokens *big.Rat
}

func (w *window) decide(now, cost *big.Rat, in color) color {
	place := w.look(now)
	if !w.begun {
		w.begun = true
		w.take(place, w.initial)
	}
	if in == red {
		return red
	}
	total := w.used(now, place)
	if total.Add(total, cost).Cmp(w.limit) > 0 || !w.room(place, cost) {
		return red
	}
	w.take(place, cost)
	return in
}

func (w *window) likeNew(now *big.Rat) bool {
	w.look(now)
	return len(w.taken) == 0
}

// look removes places out of view, and returns the current place.
func (w *window) look(now *big.Rat) *big.Int {
	place := floor(new(big.Rat).Quo(now, new(big.Rat).SetInt(w.place)))
	w.taken = slices.DeleteFunc(w.taken, func(p portion) bool {
		return new(big.Int).Sub(place, p.place).Cmp(w.view) >= 0
	})
	return place
}

// used returns the counted amount of all places in view.
func (w *window) used(now *big.Rat, place *big.Int) *big.Rat {
	sum := new(big.Rat)
	for _, p := range w.taken {
		if w.weighed && p.place.Cmp(place) < 0 {
			sum.Add(sum, new(big.Rat).Mul(p.tokens, w.weight(now, place)))
			continue
		}
		sum.Add(sum, p.tokens)
	}
	return sum
}

// weight returns the part of the previous window still in view.
func (w *window) weight(now *big.Rat, place *big.Int) *big.Rat {
	length := new(big.Rat).SetInt(w.place)
	start := new(big.Rat).SetInt(new(big.Int).Mul(place, w.place))
	gone := new(big.Rat).Sub(now, start)
	return gone.Quo(gone.Sub(length, gone), length)
}

// room reports whether a cost can be remembered.
func (w *window) room(place *big.Int, cost *big.Rat) bool {
	return cost.Sign() == 0 || w.at(place) >= 0 || len(w.taken) < w.most
}

// at returns the index of a place's portion, or -1.
func (w *window) at(place *big.Int) int {
	return slices.IndexFunc(w.taken, func(p portion) bool { return p.place.Cmp(place) == 0 })
}

func (w *window) take(place *big.Int, cost *big.Rat) {
	if cost.Sign() == 0 {
		return
	}
	i := w.at(place)
	if i < 0 {
		w.taken = append(w.taken, portion{place, new(big.Rat)})
		i = len(w.taken) - 1
	}
	w.taken[i].tokens = new(big.Rat).Add(w.taken[i].tokens, cost)
}

const (
	mostLimit   = 1 << 47
	mostEntries = 1 << 20
	mostSlots   = 4096
)

// longest is 366 days.
var longest = whole(366 * 24 * 3600e9)

func parseWindow(o *options) func() state {
	limit, err := parseBurst(o.text("limit", ""), new(big.Rat), o.packets)
	if err != nil || limit.Cmp(whole(1)) < 0 || limit.Cmp(whole(mostLimit)) > 0 {
		o.fail("limit: %q is not from 1 to %d", o.text("limit", ""), mostLimit)
		limit = whole(1)
	}
	length := o.duration("window", longest)
	w := window{limit: limit, initial: new(big.Rat).Sub(limit, o.initial(limit))}
	switch o.kind {
	case "fixed-window":
		w.place, w.view, w.most = length, big.NewInt(1), 1
	case "sliding-counter":
		w.place, w.view, w.most, w.weighed = length, big.NewInt(2), 2, true
	case "sliding-log":
		w.place, w.view = big.NewInt(1), length
		w.most = int(o.integer("entries", "65536", 1, mostEntries))
	case "sliding-window":
		w.most = int(o.integer("slots", "10", 1, mostSlots))
		if o.err != nil {
			break
		}
		w.view = big.NewInt(int64(w.most))
		var rest *big.Int
		if w.place, rest = new(big.Int).DivMod(length, w.view, new(big.Int)); rest.Sign() != 0 {
			o.fail("window is not a multiple of slots")
		}
	}
	return func() state {
		fresh := w
		return &fresh
	}
}
