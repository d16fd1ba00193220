package policyfile

import (
	"errors"
	"fmt"
	"math/big"
	"strconv"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

// parseLimit reads the limit of a window, in bytes. It explains the limit to users who give a
// rate or a time, as for a bucket.
func parseLimit(s string) (int64, error) {
	return parseBytes(s, "a number of bytes, such as 125kB, and their time as window: 1s")
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

// parseShare reads full, empty, or a percentage such as 50%.
func parseShare(s string) (dataplane.Fraction, error) {
	switch s {
	case "full":
		return dataplane.Fraction{}, nil
	case "empty":
		return dataplane.Fraction{Num: 0, Den: 1}, nil
	}
	_, unit, value, ok := splitQuantity(s)
	if !ok || unit != "%" {
		return dataplane.Fraction{}, fmt.Errorf("%q is not full, empty, or a share such as 50%%", s)
	}
	value.Mul(value, big.NewRat(1, 100))
	if value.Cmp(big.NewRat(1, 1)) > 0 || !value.Denom().IsInt64() || value.Denom().Int64() > 1e9 {
		return dataplane.Fraction{}, fmt.Errorf(
			"%q is not a share from 0%% to 100%% with at most seven decimals", s)
	}
	return dataplane.Fraction{Num: value.Num().Int64(), Den: value.Denom().Int64()}, nil
}
