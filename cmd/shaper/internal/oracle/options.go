package oracle

import (
	"errors"
	"fmt"
	"math/big"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// meterKinds holds the keys of each meter type, other than those of all meters, and the parser of
// its state.
var meterKinds = map[string]struct {
	keys  string
	parse func(*options) func() state
}{
	"srtcm":           {"initial cir cbs ebs", parseBuckets},
	"trtcm":           {"initial cir cbs pir pbs", parseBuckets},
	"trtcm4115":       {"initial cir cbs eir ebs coupling envelope rank cirmax eirmax", parseBuckets},
	"token-bucket":    {"initial rate burst warmup", parseBuckets},
	"gcra":            {"initial rate burst", parseBuckets},
	"fixed-window":    {"initial limit window", parseWindow},
	"sliding-window":  {"initial limit window slots", parseWindow},
	"sliding-counter": {"initial limit window", parseWindow},
	"sliding-log":     {"initial limit window entries", parseWindow},
	"tswtcm":          {"cir pir window seed", parseTSW},
}

const commonKeys = "type color precolor count then per keys new evict"

// options reads the mapping of a meter. It collects mistakes in err; after a mistake the values
// are meaningless.
type options struct {
	kind      string
	packets   bool     // the meter counts packets
	share     *big.Rat // initial part of the tokens
	entries   map[string]*yaml.Node
	envelopes map[string]*envelope
	err       error
}

func parseMeter(n *yaml.Node, envelopes map[string]*envelope) (*meter, error) {
	entries, err := mapping(n)
	if err != nil {
		return nil, err
	}
	o := &options{entries: entries, envelopes: envelopes}
	o.kind = o.text("type", "")
	kind, ok := meterKinds[o.kind]
	if !ok {
		return nil, at(n, fmt.Errorf("meter type %q is unknown", o.kind))
	}
	if _, err := mapping(n, strings.Fields(commonKeys+" "+kind.keys)...); err != nil {
		return nil, err
	}
	o.packets = o.choice("count", "bytes", "packets") == "packets"
	if o.share, err = parseShare(o.text("initial", "full")); err != nil {
		return nil, at(n, err)
	}
	m := &meter{
		kind:     o.kind,
		aware:    o.choice("color", "blind", "aware") == "aware",
		packets:  o.packets,
		then:     o.text("then", ""),
		precolor: defaultPrecolor(),
	}
	if entries["precolor"] != nil {
		if m.precolor, err = parsePrecolor(entries["precolor"]); err != nil {
			return nil, err
		}
	}
	if o.has("per") {
		m.keys = parseTable(o, kind.parse)
	} else {
		if o.has("keys") || o.has("new") || o.has("evict") {
			o.fail("keys, new and evict need per")
		}
		if build := kind.parse(o); o.err == nil {
			m.state = build()
		}
	}
	if o.err != nil {
		return nil, at(n, o.err)
	}
	return m, nil
}

func (o *options) has(key string) bool { return o.entries[key] != nil }

func (o *options) fail(format string, args ...any) { o.keep(fmt.Errorf(format, args...)) }

func (o *options) keep(err error) { o.err = errors.Join(o.err, err) }

func (o *options) text(key, otherwise string) string {
	s, err := optional(o.entries, key, otherwise)
	o.keep(err)
	return s
}

// choice returns one of some words; the first by default.
func (o *options) choice(key string, words ...string) string {
	s := o.text(key, words[0])
	if !slices.Contains(words, s) {
		o.fail("%s: %q is none of %q", key, s, words)
	}
	return s
}

func (o *options) integer(key, otherwise string, low, high uint64) uint64 {
	i, err := strconv.ParseUint(o.text(key, otherwise), 10, 64)
	if err != nil || i < low || i > high {
		o.fail("%s: not from %d to %d", key, low, high)
	}
	return i
}

// duration reads a time in whole ns, at least 1 us.
func (o *options) duration(key string, most *big.Rat) *big.Int {
	t, isTime, err := parseTime(o.text(key, ""))
	if err != nil || !isTime || !t.IsInt() || t.Cmp(whole(1e3)) < 0 || t.Cmp(most) > 0 {
		o.fail("%s: not a time from 1 us to %s ns", key, most.RatString())
		return big.NewInt(1e3)
	}
	return t.Num()
}

func (o *options) rate(key string) *big.Rat {
	rate, err := parseRate(o.text(key, ""), o.packets)
	if err != nil {
		o.fail("%s: %w", key, err)
		return whole(1)
	}
	return rate
}

// bucket reads one bucket. A burst given as a time is converted at the bucket's own rate.
func (o *options) bucket(rateKey, burstKey string) *bucket {
	rate := o.rate(rateKey)
	size, err := parseBurst(o.text(burstKey, ""), rate, o.packets)
	if err != nil {
		o.fail("%s: %w", burstKey, err)
		size = whole(1)
	}
	return &bucket{rate: rate, size: size, tokens: o.initial(size)}
}

// initial returns the initial part of a size or limit.
func (o *options) initial(of *big.Rat) *big.Rat {
	return new(big.Rat).SetInt(floor(new(big.Rat).Mul(of, o.share)))
}

// parseBuckets reads the state of the meters with plain buckets.
func parseBuckets(o *options) func() state {
	if o.has("warmup") {
		return parseWarmBucket(o)
	}
	build := func() *buckets {
		b := &buckets{kind: o.kind}
		switch o.kind {
		case "srtcm":
			b.c, b.e = o.bucket("cir", "cbs"), o.bucket("cir", "ebs")
			if b.c.size.Sign() == 0 && b.e.size.Sign() == 0 || b.c.rate.Sign() == 0 {
				o.fail("both bursts zero, or the rate (RFC 2697 §2)")
			}
		case "trtcm":
			b.c, b.p = o.bucket("cir", "cbs"), o.bucket("pir", "pbs")
			if b.p.rate.Cmp(b.c.rate) < 0 {
				o.fail("pir below cir (RFC 2698 §2)")
			}
			if b.c.size.Sign() == 0 || b.p.size.Sign() == 0 || b.c.rate.Sign() == 0 {
				o.fail("a burst or rate of zero (RFC 2698 §2)")
			}
		case "trtcm4115":
			b.c, b.e = o.bucket("cir", "cbs"), o.bucket("eir", "ebs")
			if b.c.size.Sign() == 0 && b.e.size.Sign() == 0 {
				o.fail("both bursts zero")
			}
			b.coupling = o.choice("coupling", "false", "true") == "true"
		default:
			b.c = o.bucket("rate", "burst")
			if b.c.size.Sign() == 0 || b.c.rate.Sign() == 0 {
				o.fail("a burst or rate of zero")
			}
		}
		return b
	}
	build() // reports mistakes
	if o.has("envelope") || o.has("rank") || o.has("cirmax") || o.has("eirmax") {
		return parseMember(o, build)
	}
	return func() state { return build() }
}
