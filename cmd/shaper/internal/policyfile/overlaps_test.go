package policyfile

import (
	"fmt"
	"math/bits"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
)

// TestOverlaps checks the exact errors of addresses of two customers.
func TestOverlaps(t *testing.T) {
	const nested = true
	inPart := func(line int, a, b, name string, other int) string {
		return fmt.Sprintf("c.csv:%d: address %s and %s of customer %q (line %d) overlap in part: with nested: true one must contain the other",
			line, a, b, name, other)
	}
	for _, test := range []struct {
		nested bool
		cells  []string // of customers a, b, c and so on
		want   string
	}{
		{!nested, []string{"10.0.0.0-9", "10.0.0.10-19"}, ""},
		{!nested, []string{"10.0.0.0-9 10.0.0.5-12", "10.0.0.13"}, ""},
		{!nested, []string{"10.0.0.0-9", "10.0.0.9-19"}, `c.csv:3: address 10.0.0.9 lies inside 10.0.0.8/31 of customer "a" (line 2): set nested: true to allow it`},
		{!nested, []string{"10.0.0.9", "10.0.0.0-19"}, `c.csv:2: address 10.0.0.9 lies inside 10.0.0.0/28 of customer "b" (line 3): set nested: true to allow it`},
		{!nested, []string{"10.0.0.9-9", "10.0.0.9"}, `c.csv:3: address 10.0.0.9 belongs to customer "a" too (line 2)`},
		{nested, []string{"10.0.0.0-9", "10.0.0.10-19"}, ""},
		{nested, []string{"10.0.0.0-9", "10.0.0.5-6"}, ""},
		{nested, []string{"10.0.0.0/16", "10.0.0.5-77", "10.0.0.70-10.0.0.71"}, ""},
		{nested, []string{"10.0.0.0-10.0.1.3", "10.0.0.8/29 2001:db8::-3", "::/0"}, ""},
		{nested, []string{"10.0.0.3-8", "10.0.0.5-8"}, `c.csv:3: address 10.0.0.8 belongs to customer "a" too (line 2)`},
		{nested, []string{"10.0.0.0-9", "10.0.0.9-19"}, inPart(3, "10.0.0.9-10.0.0.19", "10.0.0.0-10.0.0.9", "a", 2)},
		{nested, []string{"10.0.0.9-19", "10.0.0.0-9"}, inPart(3, "10.0.0.0-10.0.0.9", "10.0.0.9-10.0.0.19", "a", 2)},
		{nested, []string{"10.0.0.8/30", "10.0.0.9-19"}, inPart(3, "10.0.0.9-10.0.0.19", "10.0.0.8/30", "a", 2)},
		{nested, []string{"10.0.0.9-19", "10.0.0.8/30"}, inPart(3, "10.0.0.8/30", "10.0.0.9-10.0.0.19", "a", 2)},
		{nested, []string{"::5 ::1-::3", "10.0.0.1 ::3-::4"}, inPart(3, "::3-::4", "::1-::3", "a", 2)},
	} {
		var b strings.Builder
		b.WriteString("customer,plan,address\n")
		for i, cell := range test.cells {
			fmt.Fprintf(&b, "%c,quiet,%s\n", 'a'+i, cell)
		}
		policy := ispClasses + fmt.Sprintf("customers: {file: c.csv, nested: %t}\n", test.nested) + ispPlans
		f, err := loadCustomers(policy, b.String())
		if err == nil {
			_, err = f.Compile()
		}
		got := ""
		if err != nil {
			got = err.Error()
			if i := strings.IndexByte(got, '\n'); i >= 0 && strings.Contains(test.want, "in part") {
				got = got[:i] // besides, a common prefix
			}
		}
		if want := test.want; want != "" && got != "etc/"+want || want == "" && got != "" {
			t.Errorf("nested %t, %q: got\n%s, want\n%s", test.nested, test.cells, got, test.want)
		}
	}
}

// TestRandomNestedRanges compares the customer of each address with the smallest range around it, in policies
// with nested ranges. A policy with ranges of which neither contains the other must be refused.
func TestRandomNestedRanges(t *testing.T) {
	const size = 64 // addresses
	r := rand.New(rand.NewPCG(3, 4))
	type own struct{ first, last, customer int }
	accepted, refused := 0, 0
	for range 2000 {
		var list []own
		cells := make([][]string, 2+r.IntN(4))
		for range 2 + r.IntN(6) {
			o := own{r.IntN(size), r.IntN(size), r.IntN(len(cells))}
			text := ""
			if r.IntN(3) == 0 {
				n := 1 << r.IntN(5)
				o.first -= o.first % n
				o.last = o.first + n - 1
				text = fmt.Sprintf("10.0.0.%d/%d", o.first, 32-bits.Len(uint(n))+1)
			} else {
				o.first, o.last = min(o.first, o.last), max(o.first, o.last)
				text = fmt.Sprintf("10.0.0.%d-%d", o.first, o.last)
			}
			list, cells[o.customer] = append(list, o), append(cells[o.customer], text)
		}
		var b strings.Builder
		b.WriteString("customer,plan,address\n")
		for i, cell := range cells {
			fmt.Fprintf(&b, "%d,quiet,%s\n", i, strings.Join(cell, " "))
		}
		inPart := false
		for _, x := range list {
			for _, y := range list {
				inPart = inPart || x.customer != y.customer && x.first < y.first && y.first <= x.last &&
					x.last < y.last
			}
		}
		f, err := loadCustomers(ispClasses+"customers: {file: c.csv, nested: true}\n"+ispPlans, b.String())
		if inPart != (err != nil && strings.Contains(err.Error(), "overlap in part")) {
			t.Fatalf("overlaps in part: %t, got %v for\n%s", inPart, err, &b)
		}
		if err == nil {
			_, err = f.Compile()
		}
		if err != nil { // a prefix of two
			refused++
			continue
		}
		accepted++
		for a := range size {
			want, least := -1, size+1
			for _, o := range list {
				if n := o.last - o.first; o.first <= a && a <= o.last && n < least {
					want, least = o.customer, n
				}
			}
			got, longest := -1, -1
			for i, c := range f.Policy.Customers.List {
				for _, p := range c.Prefixes {
					if p.Contains(netip.AddrFrom4([4]byte{10, 0, 0, byte(a)})) && p.Bits() > longest {
						got, longest = i, p.Bits()
					}
				}
			}
			if got != want {
				t.Fatalf("address %d belongs to customer %d, want %d, in\n%s", a, got, want, &b)
			}
		}
	}
	if accepted < 100 || refused < 100 {
		t.Errorf("%d tables were accepted and %d refused", accepted, refused)
	}
}
