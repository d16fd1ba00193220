package routers

import (
	"fmt"
	"math/big"
	"strconv"
	"strings"

	"github.com/a-seed-32e5a53f/shaper/meter"
)

// args are the unread words of a statement.
type args struct{ words []string }

func (a *args) done() bool { return len(a.words) == 0 }

// peek returns the next word in lower case, or "".
func (a *args) peek() string {
	if a.done() {
		return ""
	}
	return strings.ToLower(a.words[0])
}

// next reads a word.
func (a *args) next() string {
	if a.done() {
		return ""
	}
	w := a.words[0]
	a.words = a.words[1:]
	return w
}

// take reads the next word if it is one of these, and returns it.
func (a *args) take(words ...string) string {
	for _, w := range words {
		if a.peek() == w {
			a.next()
			return w
		}
	}
	return ""
}

// unread returns an error that names the words which have not been read, if there are any.
func (a *args) unread() error {
	if a.done() {
		return nil
	}
	return fmt.Errorf("%q is not understood", strings.Join(a.words, " "))
}

// number reads a whole number of at most 18 digits, if the next word is one.
func (a *args) number() (int64, bool) {
	n, err := strconv.ParseUint(a.peek(), 10, 63)
	if err != nil || n > maxNumber {
		return 0, false
	}
	a.next()
	return int64(n), true
}

const maxNumber = 1e18

// suffixed is the value of a number with a decimal point and one of the suffixes k, m and g.
func suffixed(s string) (*big.Rat, bool) {
	factor := int64(1)
	if n := len(s); n > 0 {
		switch s[n-1] {
		case 'k', 'K':
			factor = 1e3
		case 'm', 'M':
			factor = 1e6
		case 'g', 'G':
			factor = 1e9
		}
		if factor > 1 {
			s = s[:n-1]
		}
	}
	if s == "" || len(s) > 18 || strings.Trim(s, "0123456789.") != "" || s[0] == '.' {
		return nil, false
	}
	v, ok := new(big.Rat).SetString(s)
	if !ok {
		return nil, false
	}
	return v.Mul(v, big.NewRat(factor, 1)), true
}

// whole rounds a number down to a whole one. It returns an error beyond maxNumber.
func whole(r *big.Rat) (int64, error) {
	n := new(big.Int).Quo(r.Num(), r.Denom())
	if !n.IsInt64() || n.Int64() > maxNumber {
		return 0, fmt.Errorf("%s is above %d", n, int64(maxNumber))
	}
	return n.Int64(), nil
}

// percentOf returns a percentage of a rate, in bit/s, rounded down.
func percentOf(percent *big.Rat, link meter.Rate) (int64, error) {
	if link.Bytes == 0 {
		return 0, fmt.Errorf(
			"a rate in percent needs the rate of the interface: give --link, such as --link 1gbit")
	}
	bits, ok := link.Bits()
	if !ok {
		return 0, fmt.Errorf("--link must be a whole number of bits per second")
	}
	v := new(big.Rat).Mul(percent, new(big.Rat).SetInt64(bits))
	return whole(v.Quo(v, big.NewRat(100, 1)))
}

// bytesIn returns the bytes of a rate in a time, rounded down.
func bytesIn(bits int64, ms *big.Rat) (int64, error) {
	v := new(big.Rat).Mul(ms, new(big.Rat).SetInt64(bits))
	return whole(v.Quo(v, big.NewRat(8000, 1)))
}
