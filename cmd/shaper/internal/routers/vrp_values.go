package routers

import (
	"errors"
	"fmt"
	"math/big"
	"net/netip"
	"slices"
	"strings"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/routers/form"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

// vrpKinds are the kinds of values in statements.
var vrpKinds = form.Readers{
	"word":       conditionKinds["word"],
	"number":     readNumber,
	"rate":       readVRPRate,
	"bytes":      readVRPBytes,
	"action":     readVRPAction,
	"dscp":       ciscoKinds["dscp"],
	"0-7":        ciscoKinds["0-7"],
	"dscps":      conditionKinds["dscp"],
	"precedence": conditionKinds["precedence"],
	"pcps":       conditionKinds["0-7"],
	"vlan":       readVLANs,
	"ethertype":  one(readEtherType),
	"proto":      one(readProtocol),
	"ports":      readPorts,
	"address":    vrpAddressReader(false),
}

// vrpKinds6 are those in lists for IPv6.
var vrpKinds6 = replaced(vrpKinds, form.Readers{
	"address": vrpAddressReader(true), "proto": conditionKinds6["proto"],
})

// vrpRate is a rate as written: bit/s, or percent.
type vrpRate struct {
	value   *big.Rat
	percent bool
	text    string
}

// readVRPRate reads 64, which is kbit/s, 390 mbps, percent 10, or cir-percentage 10.
func readVRPRate(words []string) (any, int, error) {
	r, n := vrpRate{}, 0
	if slices.Contains([]string{"percent", "cir-percentage", "pir-percentage", "percentage"}, strings.ToLower(words[0])) {
		r.percent, n = true, 1
	}
	if n == len(words) {
		return nil, 0, errors.New("a rate is missing")
	}
	v, _, err := readNumber(words[n:])
	if err != nil {
		return nil, 0, fmt.Errorf("%q is not a rate in kbit/s", words[n])
	}
	r.value, r.text = new(big.Rat).SetInt64(v.(int64)), words[n]
	if n++; r.percent {
		return r, n, nil
	}
	factor, unit := rateUnits["kbps"], "kbit/s"
	if n < len(words) {
		if f := rateUnits[strings.ToLower(words[n])]; f >= 1000 {
			factor, unit = f, strings.ToLower(words[n])
			n++
		}
	}
	r.value.Mul(r.value, new(big.Rat).SetInt64(factor))
	r.text += " " + unit
	return r, n, nil
}

// of returns the rate in bit/s.
func (r vrpRate) of(o Options) (amount, error) {
	if r.percent {
		bits, err := percentOf(r.value, o.Link)
		return amount{bits, fmt.Sprintf("%s percent of %v", r.text, o.Link), true}, err
	}
	n, err := whole(r.value)
	if err == nil && n == 0 {
		err = errNoRate
	}
	return amount{n, r.text, true}, err
}

// readVRPBytes reads a burst: bytes, kbytes or mbytes.
func readVRPBytes(words []string) (any, int, error) {
	v, _, err := readNumber(words)
	if err != nil {
		return nil, 0, err
	}
	n, a := 1, amount{v.(int64), words[0], true}
	if len(words) > 1 {
		unit := strings.ToLower(words[1])
		if f := burstUnits[unit]; f > 0 && strings.HasSuffix(unit, "bytes") {
			a.text += " " + unit
			n = 2
			if a.value > maxNumber/f {
				return nil, 0, fmt.Errorf("%s is above %d", a.text, int64(maxNumber))
			}
			a.value *= f
		}
	}
	return a, n, nil
}

// vrpMarks are the actions of car that write a header field, without pass.
var vrpMarks = map[string]dataplane.Field{
	"remark-dscp": dataplane.DSCP, "remark-8021p": dataplane.PCP, "remark-dot1p": dataplane.PCP,
}

// readVRPAction reads pass, discard, remark-dscp af11, remark dscp af11 or, of H3C, remark-dscp-pass af11.
func readVRPAction(words []string) (any, int, error) {
	word, n := strings.ToLower(words[0]), 1
	switch word {
	case "pass":
		return treatment{text: word}, 1, nil
	case "discard":
		return treatment{drop: true, text: word}, 1, nil
	case "remark":
		if len(words) > 1 {
			word, n = word+"-"+strings.ToLower(words[1]), 2
		}
	}
	field, ok := vrpMarks[strings.TrimSuffix(word, "-pass")]
	switch {
	case !ok:
		return nil, 0, errors.New(noSuchAction(word))
	case n == len(words):
		return nil, 0, errors.New("a value is missing")
	}
	v, err := markValue(field, words[n])
	mark := dataplane.Mark{Field: field, Value: v}
	return treatment{marks: []dataplane.Mark{mark}, text: strings.Join(words[:n+1], " ")}, n + 1, err
}

// readVLANs reads 10, 10 to 20 or 10-20.
func readVLANs(words []string) (any, int, error) {
	if len(words) > 2 && strings.EqualFold(words[1], "to") {
		v, _, err := numbersTo(4095)([]string{words[0] + "-" + words[2]})
		return v, 3, err
	}
	return numbersTo(4095)(words)
}

// vrpAddressReader returns a reader of any, A W, A 0, A/n, or A n for IPv6.
func vrpAddressReader(v6 bool) form.Reader {
	return func(words []string) (any, int, error) {
		word := strings.ToLower(words[0])
		if slices.Contains([]string{"any", "ip-address"}, word) {
			return netip.PrefixFrom(netip.IPv4Unspecified(), 0), 1, nil
		}
		ip, err := netip.ParseAddr(word)
		if err != nil || len(words) == 1 {
			p, err := readPrefix(word, v6)
			return p, 1, err
		}
		if v6 {
			if n, _, err := readNumber(words[1:]); err == nil && n.(int64) <= 128 {
				p, err := readPrefix(fmt.Sprintf("%v/%d", ip, n), true)
				return p, 2, err
			}
			p, err := readPrefix(word, true)
			return p, 1, err
		}
		if words[1] == "0" {
			p, err := readPrefix(word, false)
			return p, 2, err
		}
		wildcard, err := netip.ParseAddr(words[1])
		if err != nil || !wildcard.Is4() {
			return nil, 0, fmt.Errorf("%q is not a wildcard mask", words[1])
		}
		p, err := withWildcard(word, wildcard)
		return p, 2, err
	}
}
