package routers

import (
	"errors"
	"fmt"
	"maps"
	"math/big"
	"slices"
	"strconv"
	"strings"

	"github.com/a-seed-32e5a53f/shaper/marker"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// ciscoPolice is a police statement with its actions.
type ciscoPolice struct {
	line     Line
	packets  bool // rates count packets, bursts too
	cir, pir amount
	bc, be   amount
	actions  [3][]Line // by color, as sub-statements
	percent  bool
	broken   bool // it was not understood
	violate  bool
	plain    bool // NX-OS: conform and violate, without exceed
}

// amount is a number of a statement with its text.
type amount struct {
	value int64
	text  string
	given bool
}

var rateUnits = map[string]int64{"bps": 1, "kbps": 1e3, "mbps": 1e6, "gbps": 1e9, "tbps": 1e12}

// ciscoRate reads a rate: 8000, 1.5m, 10 mbps, percent 20, 100 pps.
func (p *ciscoPolice) ciscoRate(a *args, link meter.Rate) (amount, error) {
	percent := a.take("percent") != ""
	word := a.next()
	if strings.HasSuffix(word, "%") {
		percent, word = true, strings.TrimSuffix(word, "%")
	}
	v, ok := suffixed(word)
	if !ok {
		return amount{}, fmt.Errorf("%q is not a rate", word)
	}
	text := word
	if !percent && a.take("percent") != "" {
		percent = true
	}
	if percent {
		bits, err := percentOf(v, link)
		p.percent = true
		return amount{bits, fmt.Sprintf("%s percent of %v", word, link), true}, err
	}
	unit := strings.Trim(a.peek(), "(),")
	switch factor := rateUnits[unit]; {
	case unit == "pps", unit == "packets":
		a.next()
		p.packets = true
		text += " pps"
	case factor > 0:
		a.next()
		v.Mul(v, new(big.Rat).SetInt64(factor))
		text += " " + unit
	case unit == "cps", unit == "cells":
		return amount{}, errors.New("rates in ATM cells are not supported")
	default:
		text += " bps"
	}
	n, err := whole(v)
	if err == nil && !v.IsInt() {
		err = fmt.Errorf("%s is not a whole number", text)
	}
	if err == nil && n == 0 {
		err = errors.New("a rate of 0 passes nothing: write red: drop in a class without meter")
	}
	return amount{n, text, true}, err
}

var burstUnits = map[string]int64{
	"bytes": 1, "byte": 1, "kbytes": 1e3, "mbytes": 1e6, "gbytes": 1e9, "packets": 1,
}

// ciscoBurst reads a burst: bytes, a size with a unit, or a time at a rate.
func (p *ciscoPolice) ciscoBurst(a *args, rate amount) (amount, error) {
	word := a.next()
	v, ok := suffixed(word)
	if !ok {
		return amount{}, fmt.Errorf("%q is not a burst", word)
	}
	unit := a.take("ms", "us", "bytes", "byte", "kbytes", "mbytes", "gbytes", "packets")
	if unit == "packets" && !p.packets {
		return amount{}, errors.New("a burst in packets needs a rate in packets")
	}
	switch {
	case unit == "us":
		v.Quo(v, big.NewRat(1000, 1))
		fallthrough
	case unit == "ms":
		if p.packets {
			v.Mul(v, big.NewRat(rate.value, 1000))
			n, err := whole(v)
			return amount{n, fmt.Sprintf("%s %s at %d pps", word, unit, rate.value), true}, err
		}
		n, err := bytesIn(rate.value, v)
		return amount{n, fmt.Sprintf("%s %s at %s", word, unit, BitRate(rate.value)), true}, err
	case unit == "" && p.percent:
		return amount{}, errors.New("a burst of a rate in percent is a time: write it with ms")
	case unit != "":
		v.Mul(v, new(big.Rat).SetInt64(burstUnits[unit]))
		word += " " + unit
	default:
		word += " bytes"
	}
	n, err := whole(v)
	return amount{n, word, true}, err
}

// parsePolice reads a police statement. Its actions may follow on lines of their own.
func parsePolice(l Line, o Options) (*ciscoPolice, error) {
	p := &ciscoPolice{line: l}
	a := &args{l.Words[1:]}
	first := a.take("rate", "cir", "aggregate", "flow")
	if first == "aggregate" || first == "flow" || first == "rate" && a.peek() == "" {
		return p, fmt.Errorf("police %s is not supported", first)
	}
	if first == "" && a.take("pps") != "" {
		p.packets = true
	}
	var err error
	if p.cir, err = p.ciscoRate(a, o.Link); err != nil {
		return p, err
	}
	for !a.done() {
		switch w := a.peek(); w {
		case "bc", "burst", "burst-size", "peak-burst", "be":
			a.next()
			rate, to := p.cir, &p.bc
			if w == "be" || w == "peak-burst" {
				to = &p.be
				if p.pir.given {
					rate = p.pir
				}
			}
			*to, err = p.ciscoBurst(a, rate)
		case "pir", "peak-rate":
			a.next()
			p.pir, err = p.ciscoRate(a, o.Link)
		case "conform-action", "exceed-action", "violate-action", "conform", "exceed", "violate", "transmit",
			"drop":
			err = p.inline(a)
		case "account":
			err = errors.New("account adds bytes to the length of packets: set length in the policy")
		default:
			if w < "0" || w >= ":" { // no digit, or empty
				return p, fmt.Errorf("%q is not understood", a.next())
			}
			to := &p.bc // the bursts may stand without keywords
			if p.bc.given {
				to = &p.be
			}
			*to, err = p.ciscoBurst(a, p.cir)
		}
		if err != nil {
			return p, err
		}
	}
	return p, nil
}

// inline reads actions behind the parameters of police.
func (p *ciscoPolice) inline(a *args) error {
	color := ""
	for !a.done() {
		w := a.next()
		switch key, _, long := strings.Cut(strings.ToLower(w), "-"); {
		case slices.Contains([]string{"conform", "exceed", "violate"}, key):
			color = key
			p.plain = p.plain || !long
			continue
		case slices.Contains([]string{"bc", "be", "pir"}, key):
			return fmt.Errorf("%q behind the actions is not understood", w)
		}
		if color == "" {
			color = "conform" // police 8000 1500 1500 transmit
		}
		words := []string{w}
		for strings.HasPrefix(strings.ToLower(w), "set-") && !a.done() && !isPoliceColor(a.peek()) {
			words = append(words, a.next())
			if _, err := strconv.Atoi(words[len(words)-1]); err == nil {
				break
			}
		}
		p.act(color, Line{Number: p.line.Number, Words: words})
	}
	return nil
}

func isPoliceColor(w string) bool {
	key, _, _ := strings.Cut(w, "-")
	return slices.Contains([]string{"conform", "exceed", "violate", "transmit", "drop"}, key) ||
		strings.HasPrefix(w, "set-")
}

var policeColors = map[string]meter.Color{
	"conform": meter.Green, "exceed": meter.Yellow, "violate": meter.Red,
}

// act adds an action for a color.
func (p *ciscoPolice) act(color string, l Line) {
	c := policeColors[color]
	p.violate = p.violate || c == meter.Red
	p.actions[c] = append(p.actions[c], l)
}

// policeMarks are the actions of police to write a header field.
var policeMarks = map[string]string{
	"set-dscp-transmit": "dscp", "set-cos-transmit": "pcp", "set-mpls-exp-topmost-transmit": "mpls",
	"set-mpls-experimental-topmost-transmit": "mpls",
}

// policeAction translates the actions of a color. marks holds those of set, which apply before.
func policeAction(lines []Line, marks map[string]string) (drop bool, out map[string]string, err error) {
	if out = maps.Clone(marks); out == nil {
		out = map[string]string{}
	}
	for _, l := range lines {
		word := strings.ToLower(l.Words[0])
		field, marked := policeMarks[word]
		switch {
		case word == "transmit":
		case word == "drop":
			drop = true
		case !marked:
			return false, nil, errors.New(noSuchAction(word))
		case len(l.Words) != 2:
			return false, nil, errors.New("only a fixed value can be set")
		default:
			if out[field], err = markValue(field, l.Words[1]); err != nil {
				return false, nil, err
			}
		}
	}
	return drop, out, nil
}

// noSuchAction is the reason why an action cannot be expressed.
func noSuchAction(word string) string {
	switch {
	case strings.Contains(word, "prec"):
		return "it writes the three bits of the precedence and keeps the other three of the DSCP, and a policy writes the whole DSCP"
	case strings.Contains(word, "imposition"), strings.Contains(word, "mpls"):
		return "it writes labels that the router adds, and a policy writes the top label of the packet"
	case strings.Contains(word, "qos"), strings.Contains(word, "discard-class"):
		return "it is internal to the router"
	}
	return "a policy has no such action"
}

// markValue checks the value of a header field.
func markValue(field, value string) (string, error) {
	if field == "dscp" {
		v, err := ciscoDSCP(value)
		if err != nil {
			return "", err
		}
		return marker.DSCPName(v), nil
	}
	n, err := strconv.ParseUint(value, 10, 8)
	if err != nil || n > 7 {
		return "", fmt.Errorf("%q is not a value from 0 to 7", value)
	}
	return strconv.Itoa(int(n)), nil
}

// ciscoDSCP reads a DSCP.
func ciscoDSCP(s string) (uint8, error) {
	if s = strings.ToLower(s); s == "default" {
		s = "0"
	}
	return marker.ParseDSCP(s)
}
