package routers

import (
	"errors"
	"fmt"
	"math/big"
	"strconv"
	"strings"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/routers/form"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/marker"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// ciscoKinds are the kinds of values in statements of policy maps.
var ciscoKinds = form.Readers{
	"word":   func(words []string) (any, int, error) { return words[0], 1, nil },
	"number": readNumber,
	"rate":   readCiscoRate,
	"burst":  readCiscoBurst,
	"color":  readCiscoColor,
	"action": readCiscoAction,
	"dscp":   func(words []string) (any, int, error) { v, err := ciscoDSCP(words[0]); return uint32(v), 1, err },
	"0-7": func(words []string) (any, int, error) {
		n, err := strconv.ParseUint(words[0], 10, 8)
		if err != nil || n > 7 {
			return nil, 0, fmt.Errorf("%q is not a value from 0 to 7", words[0])
		}
		return uint32(n), 1, nil
	},
}

// readNumber reads a whole number.
func readNumber(words []string) (any, int, error) {
	n, err := strconv.ParseUint(words[0], 10, 63)
	if err != nil || n > maxNumber {
		return nil, 0, fmt.Errorf("%q is not a number", words[0])
	}
	return int64(n), 1, nil
}

// ciscoRate is a rate as written.
type ciscoRate struct {
	value   *big.Rat // bit/s, packets per second, or percent
	percent bool
	packets bool
	text    string
}

var rateUnits = map[string]int64{"bps": 1, "kbps": 1e3, "mbps": 1e6, "gbps": 1e9, "tbps": 1e12}

// readCiscoRate reads 8000, 1.5m, 10 mbps, kbps 5000 (NX-OS), percent 20, 20 percent, 100 pps.
func readCiscoRate(words []string) (any, int, error) {
	var r ciscoRate
	n, before := 0, int64(1)
	switch first := strings.ToLower(words[0]); {
	case first == "percent":
		r.percent, n = true, 1
	case rateUnits[first] > 0:
		before, n = rateUnits[first], 1
	}
	if n == len(words) {
		return nil, 0, errors.New("a rate is missing")
	}
	word := words[n]
	if cut, ok := strings.CutSuffix(word, "%"); ok {
		r.percent, word = true, cut
	}
	v, ok := suffixed(word)
	if !ok {
		return nil, 0, fmt.Errorf("%q is not a rate", words[n])
	}
	r.value, r.text = v.Mul(v, new(big.Rat).SetInt64(before)), word
	n++
	unit := ""
	if n < len(words) {
		unit = strings.ToLower(strings.Trim(words[n], "(),"))
	}
	switch factor := rateUnits[unit]; {
	case unit == "percent", unit == "%":
		r.percent, n = true, n+1
	case r.percent:
	case unit == "pps", unit == "packets":
		r.packets, n = true, n+1
		r.text += " pps"
	case unit == "cps", unit == "cells":
		return nil, 0, errors.New("rates in ATM cells are not supported")
	case factor > 0:
		r.value.Mul(r.value, new(big.Rat).SetInt64(factor))
		r.text += " " + unit
		n++
	case before > 1:
		r.text = strings.ToLower(words[0]) + " " + r.text
	default:
		r.text += " bps"
	}
	return r, n, nil
}

// of returns the rate in bit/s or packets per second. link is that of percentages.
func (r ciscoRate) of(link meter.Rate) (amount, error) {
	if r.percent {
		bits, err := percentOf(r.value, link)
		return amount{bits, fmt.Sprintf("%s percent of %v", r.text, link), true}, err
	}
	n, err := whole(r.value)
	if err == nil && !r.value.IsInt() {
		err = fmt.Errorf("%s is not a whole number", r.text)
	}
	if err == nil && n == 0 {
		err = errNoRate
	}
	return amount{n, r.text, true}, err
}

var errNoRate = errors.New("a rate of 0 passes nothing: write red: drop in a class without meter")

// ciscoBurst is a burst as written.
type ciscoBurst struct {
	value      *big.Rat
	unit, text string
}

var burstUnits = map[string]int64{
	"": 1, "bytes": 1, "byte": 1, "kbytes": 1e3, "mbytes": 1e6, "gbytes": 1e9, "packets": 1, "ms": 1, "us": 1,
}

// readCiscoBurst reads bytes, a size with a unit, or a time.
func readCiscoBurst(words []string) (any, int, error) {
	v, ok := suffixed(words[0])
	if !ok {
		return nil, 0, fmt.Errorf("%q is not a burst", words[0])
	}
	b := ciscoBurst{value: v, text: words[0]}
	if len(words) > 1 {
		if unit := strings.ToLower(strings.Trim(words[1], "(),")); unit != "" && burstUnits[unit] > 0 {
			b.unit, b.text = unit, b.text+" "+unit
			return b, 2, nil
		}
	}
	return b, 1, nil
}

// kbyteNote is the note for bursts in kbytes and above.
const kbyteNote = "a kbyte is assumed to be 1000 bytes: the guides do not say it"

// isKBytes reports whether a unit is a multiple of bytes.
func isKBytes(unit string) bool { return strings.HasSuffix(unit, "bytes") && unit != "bytes" }

// of returns the burst at a rate in bytes or, with packets, in packets.
func (b ciscoBurst) of(rate amount, packets, percent bool) (amount, error) {
	v := new(big.Rat).Mul(b.value, new(big.Rat).SetInt64(burstUnits[b.unit]))
	switch {
	case b.unit == "packets" && !packets:
		return amount{}, errors.New("a burst in packets needs a rate in packets")
	case b.unit == "" && percent:
		return amount{}, errors.New("a burst of a rate in percent is a time: write it with ms")
	case b.unit == "us":
		v.Quo(v, big.NewRat(1000, 1))
		fallthrough
	case b.unit == "ms":
		at := BitRate(rate.value)
		perSecond := big.NewRat(rate.value, 8)
		if packets {
			at, perSecond = fmt.Sprintf("%d pps", rate.value), big.NewRat(rate.value, 1)
		}
		v.Mul(v, perSecond).Quo(v, big.NewRat(1000, 1))
		n, err := whole(v)
		return amount{n, b.text + " at " + at, true}, err
	case b.unit == "":
		b.text += " bytes"
	}
	n, err := whole(v)
	return amount{n, b.text, true}, err
}

// ciscoColor is the word before the actions of a color.
type ciscoColor struct {
	meter.Color
	short bool // conform, not conform-action: NX-OS
}

func readCiscoColor(words []string) (any, int, error) {
	key, action, long := strings.Cut(strings.ToLower(words[0]), "-")
	color, ok := policeColors[key]
	if !ok || long && action != "action" {
		return nil, 0, fmt.Errorf("%q is not understood", words[0])
	}
	return ciscoColor{color, !long}, 1, nil
}

var policeColors = map[string]meter.Color{
	"conform": meter.Green, "exceed": meter.Yellow, "violate": meter.Red,
}

// policeMarks are the actions of police that write a header field.
var policeMarks = map[string]dataplane.Field{
	"set-dscp-transmit": dataplane.DSCP, "set-cos-transmit": dataplane.PCP,
	"set-dei-transmit": dataplane.DEI, "set-dot1ad-dei-transmit": dataplane.DEI,
	"set-mpls-exp-topmost-transmit":          dataplane.MPLSTC,
	"set-mpls-experimental-topmost-transmit": dataplane.MPLSTC,
	"set dscp":                               dataplane.DSCP, "set cos": dataplane.PCP, "set dei": dataplane.DEI,
	"set mpls experimental topmost": dataplane.MPLSTC,
}

// readCiscoAction reads an action of police: transmit, drop, set-dscp-transmit af11 or, of IOS XR, set dscp
// af11.
func readCiscoAction(words []string) (any, int, error) {
	word, n := strings.ToLower(words[0]), 1
	if word == "set" {
		n = max(len(words)-1, 1)
		word = strings.ToLower(strings.Join(words[:n], " "))
		for long := range policeMarks {
			if size := strings.Count(long, " ") + 1; size > 1 && size <= len(words) &&
				strings.EqualFold(strings.Join(words[:size], " "), long) {
				word, n = long, size
			}
		}
	}
	switch field, marks := policeMarks[word]; {
	case word == "transmit":
		return treatment{text: word}, 1, nil
	case word == "drop":
		return treatment{drop: true, text: word}, 1, nil
	case !marks:
		return nil, 0, errors.New(noSuchAction(word))
	case len(words) == n:
		return nil, 0, errors.New("a value is missing")
	default:
		v, err := markValue(field, words[n])
		marks := []dataplane.Mark{{Field: field, Value: v}}
		return treatment{marks: marks, text: word + " " + words[n]}, n + 1, err
	}
}

const (
	internalReason   = "it is internal to the router"
	precedenceReason = "it writes the three bits of the precedence and keeps the other three of the DSCP, and a policy writes the whole DSCP"
	impositionReason = "it writes labels that the router adds, and a policy writes the top label of the packet"
)

// noSuchAction is the reason why an action of a policer cannot be expressed.
func noSuchAction(word string) string {
	switch {
	case strings.Contains(word, "qos"), strings.Contains(word, "discard-class"), strings.Contains(word, "drop-prec"):
		return internalReason
	case strings.Contains(word, "prec"):
		return precedenceReason
	case strings.Contains(word, "mpls"):
		return impositionReason
	}
	return fmt.Sprintf("action %q is not understood", word)
}

// markValue checks the value of a header field.
func markValue(field dataplane.Field, value string) (uint32, error) {
	most := uint64(7)
	switch field {
	case dataplane.DSCP:
		v, err := ciscoDSCP(value)
		return uint32(v), err
	case dataplane.DEI:
		most = 1
	}
	n, err := strconv.ParseUint(value, 10, 8)
	if err != nil || n > most {
		return 0, fmt.Errorf("%q is not a value from 0 to %d", value, most)
	}
	return uint32(n), nil
}

// ciscoDSCP reads a DSCP.
func ciscoDSCP(s string) (uint8, error) {
	if s = strings.ToLower(s); s == "default" {
		s = "0"
	} else if hex, ok := strings.CutPrefix(s, "0x"); ok { // Junos
		v, err := strconv.ParseUint(hex, 16, 8)
		if err != nil {
			return 0, fmt.Errorf("%q is not a DSCP", s)
		}
		s = fmt.Sprint(v)
	}
	return marker.ParseDSCP(s)
}
