package oracle

import (
	"errors"
	"fmt"
	"math/big"
	"regexp"
	"strings"

	"go.yaml.in/yaml/v3"
)

var quantity = regexp.MustCompile(`^([0-9]+(?:\.[0-9]+)?)(?: ?([A-Za-zµ%]+))?$`)

// split splits "1.5mbit" into an exact number and its unit.
func split(s string) (*big.Rat, string, error) {
	m := quantity.FindStringSubmatch(s)
	if m == nil {
		return nil, "", fmt.Errorf("%q is not a number with a unit", s)
	}
	n, ok := new(big.Rat).SetString(m[1])
	if !ok {
		return nil, "", fmt.Errorf("%q is not a number", m[1])
	}
	return n, m[2], nil
}

// Units in bytes, bits and nanoseconds.
var (
	sizeUnits = map[string]int64{
		"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12,
		"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40,
	}
	bitUnits = map[string]int64{
		"bit": 1, "kbit": 1e3, "mbit": 1e6, "gbit": 1e9, "tbit": 1e12,
		"Kbit": 1e3, "Mbit": 1e6, "Gbit": 1e9, "Tbit": 1e12,
	}
	timeUnits = map[string]int64{
		"ns": 1, "us": 1e3, "µs": 1e3, "ms": 1e6, "s": 1e9,
		"min": 60e9, "h": 3600e9,
	}
)

// parseRate returns tokens per nanosecond. A token is a byte or a packet.
func parseRate(s string, packets bool) (*big.Rat, error) {
	amount, period, isFraction := strings.Cut(s, "/")
	n, unit, err := split(amount)
	if err != nil {
		return nil, err
	}
	ns := whole(1e9)
	if isFraction {
		if ns, err = parsePeriod(period); err != nil {
			return nil, err
		}
	}

	switch {
	case packets && unit == "p" && isFraction:
	case !packets && bitUnits[unit] != 0:
		n.Mul(n, big.NewRat(bitUnits[unit], 8))
	case !packets && sizeUnits[unit] != 0 && isFraction:
		n.Mul(n, whole(sizeUnits[unit]))
	default:
		return nil, fmt.Errorf("%q is not a rate here", s)
	}
	return n.Quo(n, ns), nil
}

// parsePeriod returns the nanoseconds of "1min", or of "s", which is one second.
func parsePeriod(s string) (*big.Rat, error) {
	if timeUnits[s] != 0 {
		s = "1" + s
	}
	n, isTime, err := parseTime(s)
	if err == nil && (!isTime || n.Sign() == 0) {
		err = fmt.Errorf("%q is not a period", s)
	}
	return n, err
}

// parseTime returns nanoseconds, or false if the unit is not a unit of time.
func parseTime(s string) (*big.Rat, bool, error) {
	n, unit, err := split(s)
	if err != nil || timeUnits[unit] == 0 {
		return nil, false, err
	}
	return n.Mul(n, whole(timeUnits[unit])), true, nil
}

// parseSize returns whole bytes; a bare number is bytes.
func parseSize(s string) (*big.Rat, error) {
	n, unit, err := split(s)
	if err != nil {
		return nil, err
	}
	if unit != "" {
		if sizeUnits[unit] == 0 {
			return nil, fmt.Errorf("%q is not a size", s)
		}
		n.Mul(n, whole(sizeUnits[unit]))
	}
	if !n.IsInt() {
		return nil, fmt.Errorf("%q is not whole", s)
	}
	return n, nil
}

// parseBurst returns whole tokens: a size, or a time at the rate, rounded down.
func parseBurst(s string, rate *big.Rat, packets bool) (*big.Rat, error) {
	ns, isTime, err := parseTime(s)
	if err != nil {
		return nil, err
	}
	if isTime {
		burst := floor(ns.Mul(ns, rate))
		if burst.Sign() == 0 {
			return nil, fmt.Errorf("burst %q is zero at its rate", s)
		}
		return new(big.Rat).SetInt(burst), nil
	}
	if packets && strings.Trim(s, "0123456789") != "" {
		return nil, fmt.Errorf("burst %q of a meter that counts packets", s)
	}
	return parseSize(s)
}

// parseShare returns the initial part of a bucket.
func parseShare(s string) (*big.Rat, error) {
	switch s {
	case "full":
		return whole(1), nil
	case "empty":
		return new(big.Rat), nil
	}
	n, unit, err := split(s)
	if err != nil || unit != "%" || n.Cmp(whole(100)) > 0 {
		return nil, fmt.Errorf("%q is not full, empty or a share", s)
	}
	return n.Quo(n, whole(100)), nil
}

// parseSpeed reads a rate in bytes per nanosecond, above zero.
func parseSpeed(n *yaml.Node) (*big.Rat, error) {
	rate, err := parseRate(n.Value, false)
	if err == nil && rate.Sign() == 0 {
		err = errors.New("a rate of zero")
	}
	if err != nil {
		return nil, at(n, err)
	}
	return rate, nil
}

// parseLevel reads a limit and its unit. A time is converted to bytes at a speed, unless that is nil.
func parseLevel(s string, speed *big.Rat) (axis string, value *big.Rat, err error) {
	if number, unit, err := split(s); err == nil && unit == "p" {
		if !number.IsInt() {
			err = fmt.Errorf("%q is not whole", s)
		}
		return inPackets, number, err
	}
	value, isTime, err := parseTime(s)
	if err != nil {
		return "", nil, err
	}
	if isTime {
		if speed != nil {
			value.SetInt(floor(value.Mul(value, speed)))
		}
		return inTime, value, nil
	}
	value, err = parseSize(s)
	return inBytes, value, err
}
