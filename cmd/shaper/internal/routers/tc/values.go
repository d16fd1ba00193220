package tc

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/routers/form"
)

// kinds are the kinds of values in commands.
var kinds = form.Readers{
	"word":     func(words []string) (any, int, error) { return words[0], 1, nil },
	"u3":       upTo(3),
	"u8":       upTo(8),
	"u12":      upTo(12),
	"u16":      upTo(16),
	"number":   upTo(32),
	"int":      one(strconv.Atoi),
	"size":     one(parseTCSize),
	"time":     one(parseTCTime),
	"handle":   one(parseTCHandle),
	"classid":  one(parseTCClassID),
	"minor":    one(parseTCMinor),
	"protocol": one(parseTCProtocol),
	"ipproto":  one(parseIPProto),
	"prefix":   one(parseTCPrefix),
	"ports":    one(parseTCPorts),
	"verdict":  one(parseVerdict),
	"hex":      one(func(s string) (uint32, error) { return parseTCNumber("0x"+strings.TrimPrefix(s, "0x"), 32) }),
	"offset":   readOffset,
	"exceed":   readExceed,
	"cake":     readCake,
	"checksum": oneOf("", checksums...),
	"field":    one(parseField),
	"foreign":  oneOf("cannot be expressed", foreign...),
}

// one returns a reader of values that are one word.
func one[T any](parse func(string) (T, error)) form.Reader {
	return func(words []string) (any, int, error) {
		v, err := parse(words[0])
		return v, 1, err
	}
}

// upTo returns a reader of numbers of at most some bits.
func upTo(bits int) form.Reader {
	return one(func(s string) (uint32, error) { return parseTCNumber(s, bits) })
}

// oneOf returns a reader of a word among others.
func oneOf(reason string, known ...string) form.Reader {
	return one(func(s string) (string, error) {
		if !slices.Contains(known, strings.Trim(s, "(),")) {
			return "", fmt.Errorf("%q is not understood", s)
		}
		return strings.TrimSpace(s + " " + reason), nil
	})
}

// foreign are kinds of qdiscs, classes, filters and actions that a policy cannot express.
var foreign = []string{
	"bpf", "cbs", "cbq", "choke", "drr", "dsmark", "dualpi2", "etf", "ets", "fq", "fq_pie", "gred", "hfsc", "hhf",
	"mq", "mqprio", "multiq", "netem", "noqueue", "pie", "plug", "qfq", "red", "sfb", "skbprio", "taprio", "teql0",
	"cgroup", "flow", "route", "rsvp", "tcindex",
	"connmark", "ct", "ctinfo", "gate", "ife", "mpls", "nat", "sample", "simple", "skbmod", "tunnel_key", "vlan", "xt",
}

// parseTCMinor reads the second number of a class, which is hexadecimal.
func parseTCMinor(s string) (uint32, error) { return parseTCHandle(":" + strings.TrimPrefix(s, ":")) }

// place is the place of a comparison: an offset from the network header, or from the transport header.
type place struct {
	next bool
	at   int
}

// readOffset reads 12, nexthdr+2 or nexthdr+ 2.
func readOffset(words []string) (any, int, error) {
	var p place
	word, n := words[0], 1
	if word == "nexthdr+" && len(words) > 1 {
		word, n = word+words[1], 2
	}
	word, p.next = strings.CutPrefix(word, "nexthdr+")
	at, err := strconv.ParseInt(word, 0, 16)
	p.at = int(at)
	return p, n, err
}

// readExceed reads EXCEED/CONFORM, with or without blanks, or EXCEED alone.
func readExceed(words []string) (any, int, error) {
	parts, n := strings.Split(words[0], "/"), 1
	if len(words) > 2 && words[1] == "/" {
		parts, n = append(parts, words[2]), 3
	}
	out := [2]verdict{"", tcOK}
	for i, w := range parts {
		v, err := parseVerdict(w)
		if err != nil || i > 1 {
			return nil, 0, fmt.Errorf("conform-exceed %s is not understood", strings.Join(parts, "/"))
		}
		out[i] = v
	}
	return out, n, nil
}

// parseVerdict reads a control. tc accepts prefixes.
func parseVerdict(s string) (verdict, error) {
	if s == "goto" || s == "jump" || s == "trap" {
		return "", fmt.Errorf("%s cannot be expressed", s)
	}
	for _, v := range tcVerdicts {
		if len(s) > 1 && strings.HasPrefix(v.name, s) {
			return v.verdict, nil
		}
	}
	return "", fmt.Errorf("%q is not understood", s)
}
