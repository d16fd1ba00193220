package oracle

import (
	"fmt"
	"math/big"
	"net/netip"
	"regexp"
	"slices"
	"strings"
)

// block is a range of addresses of one family.
type block struct{ first, last netip.Addr }

func (b block) String() string {
	if b.first == b.last {
		return b.first.String()
	}
	return fmt.Sprintf("%v-%v", b.first, b.last)
}

func (b block) contains(a netip.Addr) bool {
	n := number(a)
	return a.BitLen() == b.first.BitLen() && number(b.first).Cmp(n) <= 0 && n.Cmp(number(b.last)) <= 0
}

func (b block) overlaps(o block) bool { return b.contains(o.first) || o.contains(b.first) }

func (b block) within(o block) bool { return o.contains(b.first) && o.contains(b.last) }

// sharesPrefix reports whether one of the largest prefixes in a block is one of those in another block.
func (b block) sharesPrefix(o block) bool {
	return slices.ContainsFunc(b.prefixes(), func(p block) bool { return slices.Contains(o.prefixes(), p) })
}

// prefixes returns the largest prefixes in a block, by halving the prefixes that overlap it.
func (b block) prefixes() (list []block) {
	most := new(big.Int).Lsh(big.NewInt(1), uint(b.first.BitLen()))
	var halve func(from, size *big.Int)
	halve = func(from, size *big.Int) {
		end := new(big.Int).Add(from, new(big.Int).Sub(size, big.NewInt(1)))
		part := block{address(from, b.first), address(end, b.first)}
		switch half := new(big.Int).Rsh(size, 1); {
		case part.within(b):
			list = append(list, part)
		case part.overlaps(b):
			halve(from, half)
			halve(new(big.Int).Add(from, half), half)
		}
	}
	halve(new(big.Int), most)
	return list
}

// smaller reports whether a block has fewer addresses than another one.
func (b block) smaller(o block) bool { return b.size().Cmp(o.size()) < 0 }

func (b block) size() *big.Int { return new(big.Int).Sub(number(b.last), number(b.first)) }

// number returns an address as a number.
func number(a netip.Addr) *big.Int { return new(big.Int).SetBytes(a.AsSlice()) }

// address returns the address of a number, of the family of another one.
func address(n *big.Int, like netip.Addr) netip.Addr {
	bytes := n.FillBytes(make([]byte, like.BitLen()/8))
	a, _ := netip.AddrFromSlice(bytes)
	return a
}

// spacedDash matches the dash of a range.
var spacedDash = regexp.MustCompile(`\s*-\s*`)

// addressBlocks reads addresses, prefixes without bits after their lengths, and ranges.
func addressBlocks(cell string) (list []block, err error) {
	for _, word := range strings.FieldsFunc(spacedDash.ReplaceAllString(cell, "-"), separates) {
		if from, to, ok := strings.Cut(word, "-"); ok {
			b, err := addressRange(from, to)
			if err != nil {
				return nil, err
			}
			list = append(list, b)
			continue
		}
		p, err := parsePrefix(word)
		switch q, plain := netip.ParsePrefix(word); {
		case err != nil:
			return nil, err
		case p.Addr().Is4In6() || strings.Contains(word, "%"):
			return nil, fmt.Errorf("%q is an IPv4-mapped address, or has a zone", word)
		case plain == nil && q != p:
			return nil, fmt.Errorf("%q has bits after its length: write %s", word, p)
		}
		rest := new(big.Int).Lsh(big.NewInt(1), uint(p.Addr().BitLen()-p.Bits()))
		last := rest.Add(number(p.Addr()), rest.Sub(rest, big.NewInt(1)))
		list = append(list, block{p.Addr(), address(last, p.Addr())})
	}
	return list, nil
}

// addressRange reads a range. Its end may be the last part of an address only.
func addressRange(from, to string) (b block, err error) {
	if b.first, err = netip.ParseAddr(from); err != nil {
		return b, err
	}
	if b.last, err = netip.ParseAddr(to); err != nil {
		parts := strings.Split(strings.ReplaceAll(from, ":", "."), ".")
		head := strings.TrimSuffix(from, parts[len(parts)-1])
		mixed := strings.Contains(from, ":") && strings.Contains(from, ".")
		if mixed || strings.ContainsAny(to, ".:") || to == "" {
			return b, fmt.Errorf("%q is not the end of a range", to)
		}
		if b.last, err = netip.ParseAddr(head + to); err != nil {
			return b, err
		}
	}
	for _, a := range []netip.Addr{b.first, b.last} {
		if a.Zone() != "" || a.Is4In6() || a.BitLen() != b.first.BitLen() {
			return b, fmt.Errorf("%s-%s: a zone, IPv4 in IPv6, or two families", from, to)
		}
	}
	if b.last.Less(b.first) {
		return b, fmt.Errorf("%s-%s ends before it begins", from, to)
	}
	return b, nil
}
