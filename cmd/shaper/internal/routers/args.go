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
