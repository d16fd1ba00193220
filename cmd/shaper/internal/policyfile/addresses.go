package policyfile

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
)

// A cell of addresses contains addresses, prefixes and ranges of addresses: 192.0.2.10-20,
// 192.0.2.10-192.0.3.20, 2001:db8::10-1f or 2001:db8::10-2001:db8::1:0. The short form replaces what
// follows the last dot or colon of the first address.

// joinRanges removes the blanks around the dashes of a cell, because blanks separate addresses.
func joinRanges(cell string) string {
	if strings.IndexByte(cell, '-') < 0 {
		return cell
	}
	parts := strings.Split(cell, "-")
	for i := range parts {
		if i > 0 {
			parts[i] = strings.TrimLeft(parts[i], " \t\r\n")
		}
		if i < len(parts)-1 {
			parts[i] = strings.TrimRight(parts[i], " \t\r\n")
		}
	}
	return strings.Join(parts, "-")
}

// addressRange is a range of addresses of one family.
type addressRange struct{ first, last netip.Addr }

func (r addressRange) String() string { return r.first.String() + "-" + r.last.String() }

// contains reports whether another range of the same family lies inside.
func (r addressRange) contains(o addressRange) bool {
	return r.first.Compare(o.first) <= 0 && o.last.Compare(r.last) <= 0
}

// parseRange reads a range of addresses.
func parseRange(s string) (r addressRange, err error) {
	first, last, _ := strings.Cut(s, "-")
	if r.first, err = plainAddress(first); err != nil || last == "" {
		return r, notRange(s)
	}
	if !strings.ContainsAny(last, ".:") {
		if r.first.Is6() && strings.Contains(first, ".") {
			return r, fmt.Errorf("%q: write the last address of the range in full", s)
		}
		last = first[:strings.LastIndexAny(first, ".:")+1] + last
	}
	if r.last, err = plainAddress(last); err != nil || r.first.Is4() != r.last.Is4() {
		return r, notRange(s)
	}
	switch {
	case r.first.Is4In6() && r.last.Is4In6():
		return r, fmt.Errorf("%q is IPv4 in IPv6: write %v-%v", s, r.first.Unmap(), r.last.Unmap())
	case r.first.Is4In6() || r.last.Is4In6():
		return r, notRange(s)
	case r.last.Less(r.first):
		return r, fmt.Errorf("range %q ends before it begins", s)
	}
	return r, nil
}

func notRange(s string) error {
	return fmt.Errorf("%q is not a range of addresses such as 192.0.2.10-20 or 192.0.2.10-192.0.3.20", s)
}

// plainAddress reads an address without a zone.
func plainAddress(s string) (netip.Addr, error) {
	a, err := netip.ParseAddr(s)
	if err == nil && a.Zone() != "" {
		err = errors.New("zone")
	}
	return a, err
}

// prefixes calls add for the least prefixes that together contain exactly the addresses of the range.
func (r addressRange) prefixes(add func(netip.Prefix)) {
	for a := r.first; ; {
		end, bits := a, a.BitLen()
		for bits > 0 {
			wider, ok := withBit(end, bits-1)
			if !ok || r.last.Less(wider) {
				break
			}
			end, bits = wider, bits-1
		}
		add(netip.PrefixFrom(a, bits))
		if end == r.last {
			return
		}
		a = end.Next()
	}
}

// withBit sets a bit of an address, counted from the first one. ok is false if it is set already.
func withBit(a netip.Addr, bit int) (out netip.Addr, ok bool) {
	b := a.As16()
	bit += 128 - a.BitLen()
	mask := byte(1) << (7 - bit%8)
	ok = b[bit/8]&mask == 0
	b[bit/8] |= mask
	if out = netip.AddrFrom16(b); a.Is4() {
		out = out.Unmap()
	}
	return out, ok
}

// wholePrefix returns the addresses of a prefix.
func wholePrefix(p netip.Prefix) addressRange {
	r := addressRange{p.Addr(), p.Addr()}
	for bit := p.Bits(); bit < p.Addr().BitLen(); bit++ {
		r.last, _ = withBit(r.last, bit)
	}
	return r
}
