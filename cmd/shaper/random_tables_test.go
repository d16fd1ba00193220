package main

import (
	"fmt"
	"math/big"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/oracle"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// TestRandomTables compares the customers read from random files with those that the model reads: names,
// lines, addresses, VLANs, plans and rates. A changed byte of a file must be refused by both, or by none.
func TestRandomTables(t *testing.T) {
	t.Parallel()
	r := seededRand(t)
	seen := map[string]int{}
	for range 8 * *randomPolicyCount {
		policy, path := randomCustomers(t, r, "wan", "lan", "ap")
		sameTable(t, policy, path, seen)
		table := filepath.Join(filepath.Dir(path), "customers.csv")
		text, err := os.ReadFile(table)
		if err != nil {
			t.Fatal(err)
		}
		for range 4 {
			if err := os.WriteFile(table, damaged(r, text), 0o600); err != nil {
				t.Fatal(err)
			}
			sameTable(t, policy, path, seen)
		}
	}
	for what, least := range map[string]int{
		"columns": 20, "unit": 20, "plan": 10, "range": 100, "own rate": 100, "refused": 100, "accepted": 100,
	} {
		if seen[what] < least {
			t.Errorf("%s: seen %d times, want %d", what, seen[what], least)
		}
	}
}

// damaged changes, inserts or removes a character of a value.
func damaged(r *rand.Rand, text []byte) []byte {
	const inValues = "0123456789abcmMkKGpbsB/.:-"
	out, at := slices.Clone(text), r.IntN(len(text))
	for !strings.ContainsRune(inValues, rune(text[at])) {
		at = r.IntN(len(text))
	}
	c := inValues[r.IntN(len(inValues))]
	switch r.IntN(3) {
	case 0:
		out[at] = c
	case 1:
		out = slices.Insert(out, at, c)
	default:
		out = slices.Delete(out, at, at+1)
	}
	return out
}

// sameTable compares both readings of a policy and its file.
func sameTable(t *testing.T, policy, path string, seen map[string]int) {
	t.Helper()
	lines, refused := oracle.Site{Dir: filepath.Dir(path)}.Customers([]byte(policy))
	c, err := policyfile.Source{Name: path, Path: path, Text: policy}.Compile()
	if refused == nil && (noCommonUnit(t, err) || err != nil && limitOfWords.MatchString(err.Error())) {
		seen["refused"]++ // a limit of the program, and not of the model
		return
	}
	if (err != nil) != (refused != nil) {
		table, _ := os.ReadFile(filepath.Join(filepath.Dir(path), "customers.csv"))
		t.Fatalf("got %v, the model %v, for\n%s\n%s", err, refused, policy, table)
	}
	if err != nil {
		seen["refused"]++
		return
	}
	seen["accepted"]++
	for _, key := range []string{"columns", "unit", "plan"} {
		if strings.Contains(policy, "\n  "+key+":") {
			seen[key]++
		}
	}
	list := c.Policy.Customers.List
	if len(list) != len(lines) {
		t.Fatalf("got %d customers, the model %d", len(list), len(lines))
	}
	for i, want := range lines {
		got := &list[i]
		var vlans []int
		for _, id := range got.IDs {
			vlans = append(vlans, int(id))
		}
		slices.Sort(vlans)
		slices.Sort(want.VLANs)
		from, to := spansOf(got.Prefixes), mergedSpans(want.Addresses)
		place := fmt.Sprintf("customers.csv:%d", want.Line)
		if got.Name != want.Name || got.Plan.Name != want.Plan || !slices.Equal(vlans, want.VLANs) ||
			!slices.Equal(from, to) || !strings.HasSuffix(c.Place(got, ""), place) {
			table, _ := os.ReadFile(filepath.Join(filepath.Dir(path), "customers.csv"))
			t.Fatalf("got %+v with %v at %s, the model %+v with %v, for\n%s\n%s", got, from, c.Place(got, ""), want, to,
				policy, table)
		}
		if len(got.Prefixes) > len(want.Addresses) {
			seen["range"]++
		}
		for name, text := range want.Own {
			rate, err := policyfile.ParseRate(text)
			if own, ok := rateOf(got.Plan, name); ok && err == nil {
				if seen["own rate"]++; own.Cmp(rate) != 0 {
					t.Fatalf("customer %s: %s is %v, the model %s", got.Name, name, own, text)
				}
			}
		}
	}
}

// limitOfWords matches errors of values that 64 bits cannot count.
var limitOfWords = regexp.MustCompile(`is too fine to stay exact|is more than 2\^63 bytes`)

var commonUnit = regexp.MustCompile(`eir (\S+) and CIR (\S+) have no common unit`)

// noCommonUnit reports whether an error says that two rates have no common unit of 64 bits, and checks it.
func noCommonUnit(t *testing.T, err error) bool {
	t.Helper()
	m := commonUnit.FindStringSubmatch(fmt.Sprint(err))
	if m == nil {
		return false
	}
	var perNano [2]*big.Rat // bytes
	for i := range perNano {
		r, err := policyfile.ParseRate(m[1+i])
		if err != nil {
			t.Fatal(err)
		}
		perNano[i] = big.NewRat(r.Bytes, int64(r.Period))
	}
	a, b := perNano[0].Denom(), perNano[1].Denom()
	unit := new(big.Int).Mul(a, new(big.Int).Quo(b, new(big.Int).GCD(nil, nil, a, b))) // in a byte
	fits := unit.IsInt64()
	for _, r := range perNano {
		fits = fits && new(big.Rat).Mul(r, new(big.Rat).SetInt(unit)).Num().IsInt64()
	}
	if fits {
		t.Fatalf("%v, but the unit is 1/%v of a byte", err, unit)
	}
	return true
}

// rateOf returns a rate of a plan by the name of its parameter.
func rateOf(p *dataplane.ServicePlan, name string) (meter.Rate, bool) {
	if p.Queue != nil {
		return p.Queue.Rate, name == "rate"
	}
	for _, b := range p.Params.Buckets() {
		if strings.EqualFold(b.RateName, name) {
			return b.Rate, true
		}
	}
	return meter.Rate{}, false
}

// spansOf returns the addresses of prefixes.
func spansOf(list []netip.Prefix) [][2]netip.Addr {
	var out [][2]netip.Addr
	for _, p := range list {
		last := p.Addr().AsSlice()
		for bit := p.Bits(); bit < len(last)*8; bit++ {
			last[bit/8] |= 0x80 >> (bit % 8)
		}
		end, _ := netip.AddrFromSlice(last)
		out = append(out, [2]netip.Addr{p.Addr(), end})
	}
	return mergedSpans(out)
}

// mergedSpans sorts spans of addresses and joins those that overlap or are neighbors.
func mergedSpans(list [][2]netip.Addr) (out [][2]netip.Addr) {
	list = slices.Clone(list)
	slices.SortFunc(list, func(a, b [2]netip.Addr) int { return a[0].Compare(b[0]) })
	for _, s := range list {
		last := len(out) - 1
		if last >= 0 && out[last][0].BitLen() == s[0].BitLen() &&
			(!out[last][1].Less(s[0]) || out[last][1].Next() == s[0]) {
			if out[last][1].Less(s[1]) {
				out[last][1] = s[1]
			}
			continue
		}
		out = append(out, s)
	}
	return out
}
