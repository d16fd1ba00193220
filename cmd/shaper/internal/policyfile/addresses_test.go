package policyfile

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

// TestRanges checks the prefixes of ranges, from the addresses on both sides of each.
func TestRanges(t *testing.T) {
	for _, test := range []struct{ text, want string }{
		{"100.64.0.150-160", "100.64.0.150/31 100.64.0.152/29 100.64.0.160/32"},
		{"100.64.0.150-100.64.1.20", "100.64.0.150/31 100.64.0.152/29 100.64.0.160/27 100.64.0.192/26 100.64.1.0/28 100.64.1.16/30 100.64.1.20/32"},
		{"192.0.2.7-7", "192.0.2.7/32"},
		{"192.0.2.0-255", "192.0.2.0/24"},
		{"0.0.0.0-255.255.255.255", "0.0.0.0/0"},
		{"255.255.255.254-255", "255.255.255.254/31"},
		{"0.0.0.1-2", "0.0.0.1/32 0.0.0.2/32"},
		{"2001:db8::10-1f", "2001:db8::10/124"},
		{"2001:db8::-f", "2001:db8::/124"},
		{"2001:db8::ffff-2001:db8::1:0", "2001:db8::ffff/128 2001:db8::1:0/128"},
		{"2001:db8:1::-2001:db8:2:ffff:ffff:ffff:ffff:ffff", "2001:db8:1::/48 2001:db8:2::/48"},
		{"64:ff9b::192.0.2.0-64:ff9b::192.0.2.1", "64:ff9b::c000:200/127"},
		{"::-ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "::/0"},
		{"1::-ffff", "1::/112"},
	} {
		r, err := parseRange(test.text)
		var got []netip.Prefix
		if err == nil {
			r.prefixes(func(p netip.Prefix) { got = append(got, p) })
		}
		if want := prefixes(strings.Fields(test.want)...); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: got %v, %v, want %v", test.text, got, err, want)
		}
	}
}

// TestRangeErrors checks the exact errors of ranges in a file of customers.
func TestRangeErrors(t *testing.T) {
	notRange := func(s string) string {
		return fmt.Sprintf("%q is not a range of addresses such as 192.0.2.10-20 or 192.0.2.10-192.0.3.20", s)
	}
	for cell, want := range map[string]string{
		"192.0.2.20-10":                 `range "192.0.2.20-10" ends before it begins`,
		"192.0.2.20-192.0.1.30":         `range "192.0.2.20-192.0.1.30" ends before it begins`,
		"192.0.2.1-256":                 notRange("192.0.2.1-256"),
		"192.0.2.1-":                    notRange("192.0.2.1-"),
		"2001:db8:1::-":                 notRange("2001:db8:1::-"),
		"-":                             notRange("-"),
		"192.0.2.1 -":                   notRange("192.0.2.1-"),
		"192.0.2.1-5-9":                 notRange("192.0.2.1-5-9"),
		"192.0.2.1-010":                 notRange("192.0.2.1-010"),
		"192.0.2.1-1.20":                notRange("192.0.2.1-1.20"),
		"192.0.2.0/24-192.0.3.0/24":     notRange("192.0.2.0/24-192.0.3.0/24"),
		"192.0.2.1-2001:db8::1":         notRange("192.0.2.1-2001:db8::1"),
		"2001:db8::1-g":                 notRange("2001:db8::1-g"),
		"2001:db8::1-12345":             notRange("2001:db8::1-12345"),
		"fe80::1%eth0-5":                notRange("fe80::1%eth0-5"),
		"fe80::1-fe80::5%eth0":          notRange("fe80::1-fe80::5%eth0"),
		"64:ff9b::192.0.2.1-9":          `"64:ff9b::192.0.2.1-9": write the last address of the range in full`,
		"::ffff:10.0.0.2-::ffff:10.1.1": notRange("::ffff:10.0.0.2-::ffff:10.1.1"),
		"::ffff:a00:2-::ffff:a00:3":     `"::ffff:a00:2-::ffff:a00:3" is IPv4 in IPv6: write 10.0.0.2-10.0.0.3`,
		"::5-::ffff:a00:3":              notRange("::5-::ffff:a00:3"),
		"host-1":                        notRange("host-1"),
	} {
		_, err := loadCustomers(ispPolicy, "customer,plan,address\n1,quiet,"+cell+"\n")
		if err == nil || err.Error() != "etc/c.csv:2: address: "+want {
			t.Errorf("%s: got %v, want %s", cell, err, want)
		}
	}
}

// TestRangesInCells checks cells with ranges, with blanks around dashes and beside other addresses.
func TestRangesInCells(t *testing.T) {
	for cell, want := range map[string]string{
		"10.0.0.8-9":          "10.0.0.8/31",
		"10.0.0.8 - 10.0.0.9": "10.0.0.8/31",
		"10.0.0.8-\n 10.0.0.9; 10.0.0.1,10.0.0.5":   "10.0.0.8/31 10.0.0.1/32 10.0.0.5/32",
		"::1 10.0.0.8 -9 10.1.0.0/16 - 2.2.2.2":     "",
		"2001:db8::/64 10.0.0.8\t-\t9 2001:db8::-1": "2001:db8::/64 10.0.0.8/31 2001:db8::/127",
	} {
		f, err := loadCustomers(ispPolicy, "customer,plan,address\n1,quiet,\""+cell+"\"\n")
		if want == "" {
			if err == nil {
				t.Errorf("%q: no error", cell)
			}
			continue
		}
		if err != nil || !slices.Equal(f.Policy.Customers.List[0].Prefixes,
			prefixes(strings.Fields(want)...)) {
			t.Errorf("%q: got %+v, %v, want %s", cell, f, err, want)
		}
	}
}

// TestRandomRanges checks that the prefixes of a range contain its addresses once and no others, in their
// order, and that no two of them are the halves of one prefix: then there are no fewer.
func TestRandomRanges(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 20_000 {
		bits := 1 + r.IntN(12) // of the addresses that differ
		first, last := r.Uint64N(1<<bits), r.Uint64N(1<<bits)
		if first > last {
			first, last = last, first
		}
		at := func(n uint64) netip.Addr { return netip.AddrFrom4([4]byte{10, 9, byte(n >> 8), byte(n)}) }
		if r.IntN(2) == 0 {
			shift := r.IntN(56)
			at = func(n uint64) netip.Addr {
				b := [16]byte{0x20, 1}
				for i, n := 0, n<<shift|(1<<shift-1)&-(n&1); i < 8; i++ {
					b[15-i] = byte(n >> (8 * i))
				}
				return netip.AddrFrom16(b)
			}
		}
		whole, err := parseRange(at(first).String() + "-" + at(last).String())
		if err != nil && at(first).Compare(at(last)) <= 0 {
			t.Fatal(err)
		} else if err != nil {
			continue
		}
		next := at(first)
		var before netip.Prefix
		whole.prefixes(func(p netip.Prefix) {
			if p.Masked() != p || p.Addr() != next {
				t.Fatalf("%v: prefix %v, want one from %v", whole, p, next)
			}
			if before.Bits() == p.Bits() && p.Bits() > 0 &&
				netip.PrefixFrom(before.Addr(), p.Bits()-1).Masked().Contains(p.Addr()) {
				t.Fatalf("%v: %v and %v are halves of one prefix", whole, before, p)
			}
			before, next = p, lastOf(p).Next()
		})
		if next.Prev() != at(last) {
			t.Fatalf("%v: the last address is %v", whole, next.Prev())
		}
	}
}

// lastOf returns the last address of a prefix.
func lastOf(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	for bit := p.Bits(); bit < 8*len(b); bit++ {
		b[bit/8] |= 0x80 >> (bit % 8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

// FuzzRange checks that any range contains the addresses between its ends, in ascending prefixes.
func FuzzRange(f *testing.F) {
	for _, seed := range []string{
		"10.0.0.1-9", "::1-::ffff", "2001:db8::-f", "64:ff9b::1.2.3.4-5", "1-2", "-", "::-", "::ffff:1.2.3.4-5",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		r, err := parseRange(text)
		if err != nil {
			return
		}
		next, n := r.first, 0
		r.prefixes(func(p netip.Prefix) {
			if n++; n > 2*p.Addr().BitLen() || p.Addr() != next || p.Masked() != p {
				t.Fatalf("%v: prefix %v, want one from %v", r, p, next)
			}
			next = lastOf(p).Next()
		})
		if next != r.last.Next() {
			t.Fatalf("%v ends at %v", r, next.Prev())
		}
	})
}
