package oracle

import (
	"fmt"
	"math/big"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// table holds the states of a per-key meter, up to a maximum number.
type table struct {
	per  string                     // the value in the policy
	key  func(frame) (string, bool) // false for a packet without a key
	most int
	idle bool // evict a key only if nothing is lost
	make func() keyable

	shared keyable // state of packets without a key
	known  []entry // least recently used first
}

type entry struct {
	key   string
	state keyable
}

// keyable is a state of which each key can have one.
type keyable interface {
	state
	// likeNew reports whether a used state decides from now on like a full new one.
	likeNew(now *big.Rat) bool
}

// of returns the state for a packet, and makes its key the most recently used one.
func (t *table) of(f frame, now *big.Rat) state {
	key, ok := t.key(f)
	if !ok {
		return t.shared
	}
	var e entry
	i := slices.IndexFunc(t.known, func(e entry) bool { return e.key == key })
	switch {
	case i >= 0:
		e = t.known[i]
		t.known = slices.Delete(t.known, i, i+1)
	case len(t.known) < t.most:
		e = entry{key, t.make()}
	case t.idle && !t.known[0].state.likeNew(now):
		return t.shared
	default:
		e = entry{key, t.make()}
		t.known = t.known[1:]
	}
	t.known = append(t.known, e)
	return e.state
}

// parseTable reads a meter with `per`. parse reads the state of its type.
func parseTable(o *options, parse func(*options) func() state) *table {
	if o.has("initial") {
		o.fail("initial beside per")
	}
	begin := o.choice("new", "full", "empty")
	if o.err != nil {
		return nil
	}
	o.share, _ = parseShare(begin)
	t := &table{
		most: int(o.integer("keys", "65536", 1, 1<<22)),
		idle: o.choice("evict", "lru", "idle") == "idle",
	}
	if t.idle && begin != "full" {
		o.fail("evict: idle needs new: full")
	}
	var err error
	if n := o.entries["per"]; n.Kind == yaml.SequenceNode {
		var words []string
		for _, word := range n.Content {
			words = append(words, word.Value)
		}
		t.per = strings.Join(words, " ")
	} else {
		t.per = o.text("per", "")
	}
	t.key, err = parseKey(t.per)
	o.keep(err)

	build := parse(o)
	if o.err != nil {
		return nil
	}
	t.make = func() keyable { return build().(keyable) }
	if t.shared, _ = build().(keyable); t.shared == nil {
		o.fail("%s has no per here", o.kind)
	}
	if w, ok := t.shared.(*window); ok && t.most*w.most > 1<<26 {
		o.fail("%d keys of %d entries or slots", t.most, w.most)
	}
	return t
}

// parseKey reads the value of `per`. Different keys of a meter have different texts.
func parseKey(s string) (func(frame) (string, bool), error) {
	what, sizes, isPrefix := strings.Cut(s, "/")
	bits4, bits6 := 32, 128
	if isPrefix {
		var err error
		if bits4, bits6, err = parseSizes(sizes); err != nil || what != "src" && what != "dst" && what != "address" {
			return nil, fmt.Errorf("per: %q is unknown", s)
		}
	}
	switch what {
	case "src":
		return func(f frame) (string, bool) { return prefix(f.src, bits4, bits6), f.isIP() }, nil
	case "dst":
		return func(f frame) (string, bool) { return prefix(f.dst, bits4, bits6), f.isIP() }, nil
	case "flow":
		return func(f frame) (string, bool) {
			if f.fragmented { // one key for all fragments of a packet
				return fmt.Sprint(f.src, f.dst, f.fragmentProto, 0, 0), f.isIP()
			}
			return fmt.Sprint(f.src, f.dst, f.proto, f.sport, f.dport), f.isIP()
		}, nil
	case "vlan":
		return func(f frame) (string, bool) { return strconv.Itoa(f.vlan), f.hasVLAN }, nil
	case "address":
		return func(f frame) (string, bool) {
			if f.fromCustomers {
				return prefix(f.src, bits4, bits6), f.isIP()
			}
			return prefix(f.dst, bits4, bits6), f.isIP()
		}, nil
	case "vni":
		return func(f frame) (string, bool) { return strconv.Itoa(f.vni), f.hasVNI }, nil
	case "teid":
		return func(f frame) (string, bool) { return strconv.Itoa(f.teid), f.hasTEID }, nil
	case "mac":
		return func(f frame) (string, bool) { return strconv.Itoa(f.insideMAC()), f.hasMACs }, nil
	case "vlan mac":
		return func(f frame) (string, bool) {
			return fmt.Sprint(f.vlan, f.insideMAC()), f.hasMACs && f.hasVLAN
		}, nil
	case "dscp":
		return func(f frame) (string, bool) { return strconv.Itoa(f.dscp()), f.isIP() }, nil
	}
	return nil, fmt.Errorf("per: %q is unknown", s)
}

// parseSizes reads the bits of "24" or "24,64". Without the second number, the whole v6 address
// is the key.
func parseSizes(s string) (bits4, bits6 int, err error) {
	v4, v6, both := strings.Cut(s, ",")
	if !both {
		v6 = "128"
	}
	a, err4 := strconv.ParseUint(v4, 10, 8)
	b, err6 := strconv.ParseUint(v6, 10, 8)
	if err4 != nil || err6 != nil || a > 32 || b > 128 {
		return 0, 0, fmt.Errorf("%q is not a size of prefixes", s)
	}
	return int(a), int(b), nil
}

// prefix returns "" for a missing address.
func prefix(addr netip.Addr, bits4, bits6 int) string {
	bits := bits6
	if addr.Is4() {
		bits = bits4
	}
	p, err := addr.Prefix(bits)
	if err != nil {
		return ""
	}
	return p.String()
}
