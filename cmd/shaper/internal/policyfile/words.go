package policyfile

import (
	"errors"
	"fmt"
	"math/big"
	"strconv"

	"go.yaml.in/yaml/v3"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

// words reads what a type has beside rates and bursts.
func (l *loader) words(d *draft) {
	read := func(word string, f func(*yaml.Node)) {
		if n := d.values[word]; n != nil {
			f(n)
		}
	}
	read("limit", func(n *yaml.Node) {
		if d.packets {
			d.limit, _ = parsed(l, n, "limit", ParsePackets)
		} else {
			d.limit, _ = parsed(l, n, "limit", parseLimit)
		}
	})
	read("window", func(n *yaml.Node) { d.window, _ = parsed(l, n, "window", ParseDuration) })
	read("warmup", func(n *yaml.Node) {
		var ok bool
		if d.warmup, ok = parsed(l, n, "warmup", ParseDuration); ok && d.warmup == 0 {
			l.fail(n, "warmup must be above zero, such as 10s: leave it out for a rate that is full from the start")
		}
	})
	read("slots", func(n *yaml.Node) { d.slots, _ = parsed(l, n, "slots", parseInt) })
	read("entries", func(n *yaml.Node) { d.entries, _ = parsed(l, n, "entries", parseInt) })
	read("seed", func(n *yaml.Node) { d.seed, _ = parsed(l, n, "seed", parseSeed) })
	read("coupling", func(n *yaml.Node) { s, _ := l.word(n, "coupling", "true", "false"); d.coupling = s == "true" })
}

// need says what a word could be that was left out.
func (d *draft) need(word string) string {
	switch {
	case word == "window":
		return "a time, such as window: 1s"
	case d.packets:
		return "the packets that pass in a window, such as limit: 100"
	}
	return "the bytes that pass in a window, such as limit: 125kB"
}

// parseLimit reads the bytes of a window. A rate and a time are what people try
// who know buckets.
func parseLimit(s string) (int64, error) {
	if _, err := ParseRate(s); err == nil || isDuration(s) {
		return 0, fmt.Errorf("%q is not a size: write the bytes that pass in a window, such as 125kB, and how long that is as window: 1s", s)
	}
	return ParseSize(s)
}

func parseSeed(s string) (uint64, error) {
	v, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%q is not a whole number below 2^64", s)
	}
	return v, nil
}

func parseInt(s string) (int, error) {
	n, err := strconv.ParseInt(s, 10, 32)
	switch {
	case errors.Is(err, strconv.ErrRange):
		return 0, fmt.Errorf("%q is out of range", s)
	case err != nil:
		return 0, fmt.Errorf("%q is not a whole number", s)
	}
	return int(n), nil
}

// parseShare reads full, empty, or a percentage.
func parseShare(s string) (dataplane.Share, error) {
	switch s {
	case "full":
		return dataplane.Share{}, nil
	case "empty":
		return dataplane.Share{Num: 0, Den: 1}, nil
	}
	_, unit, value, ok := split(s)
	if !ok || unit != "%" {
		return dataplane.Share{}, fmt.Errorf("%q is not full, empty, or a share such as 50%%", s)
	}
	value.Mul(value, big.NewRat(1, 100))
	if value.Cmp(big.NewRat(1, 1)) > 0 || !value.Denom().IsInt64() || value.Denom().Int64() > 1e9 {
		return dataplane.Share{}, fmt.Errorf("%q is not a share from 0%% to 100%% with at most seven decimals", s)
	}
	return dataplane.Share{Num: value.Num().Int64(), Den: value.Denom().Int64()}, nil
}
