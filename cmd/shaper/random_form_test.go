package main

import (
	"fmt"
	"math/big"
	"math/rand/v2"
	"net/netip"
	"regexp"
	"slices"
	"strings"
)

// randomForm is the form of a file of customers.
type randomForm struct {
	key     string
	named   bool                // the policy names the columns
	names   map[string][]string // columns by content
	ignored []string
	unit    string // "": none
	plan    int    // of customers without one; -1: none
}

// newRandomForm returns a form for customers with a key.
func newRandomForm(r *rand.Rand, key string, packets bool, plans int) *randomForm {
	f := &randomForm{key: key, names: map[string][]string{}, ignored: []string{"note"}, plan: -1}
	f.named = r.IntN(2) == 0
	if r.IntN(4) == 0 {
		f.plan = r.IntN(plans)
	}
	if !packets {
		f.unit = pickWord(r, "", "", "bit", "kbit", "Mbit/s", "gbit", "kB/s", "MB/s")
	}
	contents := []string{"customer"}
	if f.plan < 0 || r.IntN(2) == 0 {
		contents = append(contents, "plan")
	}
	for _, name := range []string{"rate", "burst", "cir", "cbs", "pir", "pbs", "eir", "ebs", "limit", "window"} {
		if name == "rate" && f.unit != "" || r.IntN(5) > 0 {
			contents = append(contents, name)
		}
	}
	switch key {
	case "vlan":
		contents = append(contents, "vlan")
	case "svlan, cvlan":
		contents = append(contents, "svlan", "cvlan")
	default:
		contents = append(contents, "address")
	}
	for _, content := range contents {
		f.names[content] = []string{content}
		several := content == "address" || content == "vlan"
		if !f.named {
			if content == "address" {
				f.names[content][0] = pickWord(r, "address", "addresses")
			}
			continue
		}
		f.names[content][0] = pickWord(r, content, "The "+content, content+"; x", "its, "+content)
		for several && r.IntN(2) == 0 {
			f.names[content] = append(f.names[content], fmt.Sprint(content, " ", len(f.names[content])))
		}
	}
	if f.named && r.IntN(2) == 0 { // it would count without names
		for _, name := range []string{"rate", "plan", "quota", "burst"} {
			taken := func(content string) bool { return slices.Contains(f.names[content], name) }
			if !slices.ContainsFunc(contents, taken) {
				f.ignored = append(f.ignored, name)
			}
		}
	}
	return f
}

// text returns the keys of customers for the form.
func (f *randomForm) text(r *rand.Rand) string {
	var b strings.Builder
	if f.unit != "" {
		fmt.Fprintf(&b, "  unit: %s\n", f.unit)
	}
	if f.plan >= 0 {
		fmt.Fprintf(&b, "  plan: plan%d\n", f.plan)
	}
	if f.named {
		b.WriteString("  columns:\n")
		for _, content := range sortedKeys(f.names) {
			list := f.names[content]
			value := fmt.Sprintf("%q", pickWord(r, list[0], strings.ToUpper(list[0])))
			if len(list) > 1 {
				value = fmt.Sprintf("[%q]", list)
				value = strings.ReplaceAll(strings.Trim(value, "[]"), "\" \"", "\", \"")
				value = "[" + value + "]"
			}
			if content == "address" {
				content = pickWord(r, content, "addresses")
			}
			fmt.Fprintf(&b, "    %s: %s\n", content, value)
		}
	}
	return b.String()
}

// columns returns all columns.
func (f *randomForm) columns() []string {
	out := slices.Clone(f.ignored)
	for _, content := range sortedKeys(f.names) {
		out = append(out, f.names[content]...)
	}
	return out
}

// wholeRate matches a rate in bit/s.
var wholeRate = regexp.MustCompile(`^([0-9]+)([kmg]?)bit$`)

// rate writes a value in another way that the unit of the form allows, if it is a rate.
func (f *randomForm) rate(r *rand.Rand, value string) string {
	m := wholeRate.FindStringSubmatch(value)
	if f.unit == "" || m == nil || r.IntN(3) == 0 {
		return value
	}
	powers := map[string]int64{"": 1, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
	amount, _ := new(big.Rat).SetString(m[1])
	amount.Mul(amount, big.NewRat(powers[m[2]], 1))
	unit := strings.ToLower(strings.TrimSuffix(f.unit, "/s"))
	unit, suffixes := strings.TrimSuffix(unit, "bit"), []string{"b", "bps", "b/s"}
	if strings.HasSuffix(f.unit, "B/s") {
		unit, suffixes = strings.TrimSuffix(unit, "b"), []string{"B", "Bps", "Bps"}
		amount.Quo(amount, big.NewRat(8, 1))
	}
	letter := ""
	if r.IntN(2) == 0 {
		letter = pickWord(r, "k", "m", "g", "t")
		unit = letter
	}
	text := amount.Quo(amount, big.NewRat(powers[unit], 1)).FloatString(15) // exact
	text = strings.TrimSuffix(strings.TrimRight(text, "0"), ".")
	if letter == "" {
		return text
	}
	return text + pickWord(r, "", " ") + pickWord(r, letter, strings.ToUpper(letter)) +
		pickWord(r, append(suffixes, "")...)
}

// divided divides values among columns.
func divided(r *rand.Rand, list []string, columns int, separators ...string) []string {
	out := make([]string, columns)
	for i := range out {
		n := len(list)
		if i < columns-1 {
			n = r.IntN(n + 1)
		}
		out[i] = strings.Join(list[:n], pickWord(r, separators...))
		list = list[n:]
	}
	return out
}

// ownBlock is a block of addresses of a customer.
type ownBlock struct {
	first, last netip.Addr
	isRange     bool // written as a range
	customer    int
}

func (b ownBlock) contains(o ownBlock) bool {
	return b.first.BitLen() == o.first.BitLen() && !o.first.Less(b.first) && !b.last.Less(o.last)
}

func (b ownBlock) overlaps(o ownBlock) bool {
	return b.first.BitLen() == o.first.BitLen() && !o.last.Less(b.first) && !b.last.Less(o.first)
}

// beside reports whether the blocks of two customers may be in one file. With nested, one of two prefixes may
// contain the other, and a larger prefix a range.
func (b ownBlock) beside(o ownBlock, nested bool) bool {
	switch same := b.first == o.first && b.last == o.last; {
	case same:
		return false
	case b.customer == o.customer || !b.overlaps(o):
		return true
	}
	return nested && (b.contains(o) && !b.isRange || o.contains(b) && !o.isRange)
}

// addressLists returns a function for the addresses of the next customer in some columns, none of which
// another one has.
func addressLists(r *rand.Rand, nested bool) func(columns int) []string {
	var used []ownBlock
	customer := 0
	return func(columns int) []string {
		customer++
		var list []string
		for range r.IntN(6) {
			addr := netip.MustParseAddr(insideAddrs[r.IntN(len(insideAddrs))])
			b, text := randomPrefix(r, addr)
			if r.IntN(3) == 0 {
				b, text = randomRange(r, addr)
			}
			b.customer = customer
			if slices.ContainsFunc(used, func(o ownBlock) bool { return !b.beside(o, nested) }) {
				continue
			}
			used = append(used, b)
			list = append(list, text)
		}
		return divided(r, list, columns, " ", ",", ";", ", ", " ;\n", "  ")
	}
}

// randomPrefix returns a prefix that contains an address.
func randomPrefix(r *rand.Rand, addr netip.Addr) (ownBlock, string) {
	bits := []int{
		addr.BitLen(), addr.BitLen(), addr.BitLen() - r.IntN(5), r.IntN(addr.BitLen() + 1), r.IntN(9),
	}[r.IntN(5)]
	p := netip.PrefixFrom(addr, bits).Masked()
	last := p.Addr().AsSlice()
	for bit := bits; bit < addr.BitLen(); bit++ {
		last[bit/8] |= 0x80 >> (bit % 8)
	}
	end, _ := netip.AddrFromSlice(last)
	text := p.String()
	if p.IsSingleIP() && r.IntN(2) == 0 {
		text = addr.String()
	}
	return ownBlock{first: p.Addr(), last: end}, text
}

// randomRange returns a range that contains an address.
func randomRange(r *rand.Rand, addr netip.Addr) (ownBlock, string) {
	b := ownBlock{first: addr, last: addr, isRange: true}
	for range r.IntN(1 << r.IntN(4)) {
		b.first = b.first.Prev()
	}
	for range r.IntN(1 << r.IntN(11)) {
		b.last = b.last.Next()
	}
	from, to := b.first.String(), b.last.String()
	at := strings.LastIndexAny(to, ".:") + 1
	if at == strings.LastIndexAny(from, ".:")+1 && from[:at] == to[:at] && r.IntN(2) == 0 {
		to = to[at:]
		if to == "" {
			to = "0"
		}
	}
	return b, from + pickWord(r, "-", "-", " - ", "- ", " -\n") + to
}
