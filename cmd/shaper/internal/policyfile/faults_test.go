package policyfile

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

// TestGroupedErrors checks the exact errors of files with the same mistakes in many lines.
func TestGroupedErrors(t *testing.T) {
	const ambiguous = `"M" is ambiguous: megabits per second to some tools, megabytes per second to others (tc): write 50mbit or 50MB/s`
	const undefined = `: define it under plans:`
	rows := func(n int, row func(i int) string) string {
		var b strings.Builder
		b.WriteString("customer,address,plan,rate\n")
		for i := range n {
			b.WriteString(row(i) + "\n")
		}
		return b.String()
	}
	for _, test := range []struct {
		name, text string
		want       []string
	}{
		{
			"near plans", rows(4, func(i int) string {
				return fmt.Sprint(i, ",,", []string{"Home-50", "biz200", "Home-50", "hom-50"}[i])
			}),
			[]string{
				`c.csv:2: no plan named "Home-50" (did you mean "home-50"?)` + undefined + " (lines 2 and 4)",
				`c.csv:3: no plan named "biz200" (did you mean "biz-200"?)` + undefined,
				`c.csv:5: no plan named "hom-50" (did you mean "home-50"?)` + undefined,
			},
		},
		{
			"once", rows(1, func(int) string { return "1,::1,zzz" }),
			[]string{"c.csv:2: no plan named \"zzz\"" + undefined},
		},
		{
			"twice", rows(2, func(i int) string { return fmt.Sprint(i, ",,zzz") }),
			[]string{"c.csv:2: no plan named \"zzz\"" + undefined + " (lines 2 and 3)"},
		},
		{
			"three times", rows(3, func(i int) string { return fmt.Sprint(i, ",,zzz") }),
			[]string{"c.csv:2: no plan named \"zzz\"" + undefined + " (lines 2, 3 and 4)"},
		},
		{
			"a rate of an unknown plan", rows(3, func(i int) string { return fmt.Sprint(i, ",,", []string{"zzz", "", "zzz"}[i], ",50M") }),
			[]string{
				"c.csv:2: no plan named \"zzz\"" + undefined + " (lines 2 and 4)", "c.csv:2: rate: " + ambiguous + " (lines 2, 3 and 4)",
				"c.csv:3: plan is missing: each customer needs a plan of the policy",
			},
		},
		{
			"twice in a line", rows(2, func(i int) string { return fmt.Sprint(i, ",x x,quiet") }),
			[]string{`c.csv:2: address: "x" is not an address or a prefix such as 192.0.2.0/24 (lines 2 and 3)`},
		},
		{
			"7,504 errors of 3 causes", rows(3754, func(i int) string {
				plan, address, rate := "biz-200", fmt.Sprintf("10.%d.%d.0/24", i>>8, i&255), "50mbit"
				if i%1000 == 999 {
					plan = "Gold"
				} else if i != 2 {
					rate = "50M"
				}
				if i > 2 {
					address = fmt.Sprintf("10.%d.%d.1/24", i>>8, i&255)
				}
				return fmt.Sprint(i, ",", address, ",", plan, ",", rate)
			}),
			[]string{
				"c.csv:2: rate: " + ambiguous + " (3,750 lines, first 2, 3, 5)",
				"c.csv:5: address: 10.0.3.1/24 has bits beyond its length: write 10.0.3.0/24, or 10.0.3.1 for the single address (3,751 lines, first 5, 6, 7; also 10.0.4.1/24, 10.0.5.1/24,",
				"c.csv:1001: no plan named \"Gold\"" + undefined + " (lines 1001, 2001 and 3001)",
			},
		},
		{
			"20 plans", rows(40, func(i int) string { return fmt.Sprintf("%d,,zzz%c", i, 'A'+i/2) }),
			strings.Split(strings.TrimSpace(func() (out string) {
				for i := range 20 {
					out += fmt.Sprintf("c.csv:%d: no plan named \"zzz%c\"%s (lines %[1]d and %[4]d)\n", 2*i+2, 'A'+i,
						undefined, 2*i+3)
				}
				return out
			}()), "\n"),
		},
		{
			"21 plans, and another cause", rows(63, func(i int) string {
				return fmt.Sprintf("%d,x%d,zzz%c", i, i/60, 'A'+i/3)
			}),
			[]string{
				`c.csv:2: no plan named "zzzA": define it under plans: (63 lines, first 2, 3, 4; also "zzzB", "zzzC", "zzzD", "zzzE", "zzzF", "zzzG", "zzzH", "zzzI", "zzzJ", "zzzK", "zzzL", "zzzM", "zzzN", "zzzO", "zzzP", "zzzQ", "zzzR", "zzzS", "zzzT", "zzzU")`,
				`c.csv:2: address: "x0" is not an address or a prefix such as 192.0.2.0/24 (60 lines, first 2, 3, 4)`,
				`c.csv:62: address: "x1" is not an address or a prefix such as 192.0.2.0/24 (lines 62, 63 and 64)`,
			},
		},
		{
			"conflicts beside errors of rows", "customer,address,plan,rate\n1,10.0.0.0/24,quiet,\n2,10.0.0.8-9 ::1 x,biz-200,50M\n1,::1,biz-200,\n,,quiet\n,::2,quiet\n3,::2,gold\n",
			[]string{
				`c.csv:3: rate: ` + ambiguous,
				`c.csv:3: address: "x" is not an address or a prefix such as 192.0.2.0/24`,
				`c.csv:3: address 10.0.0.8/31 lies inside 10.0.0.0/24 of customer "1" (line 2): set nested: true to allow it`,
				`c.csv:4: customer "1" is the name of an earlier customer (line 2): names must differ`,
				`c.csv:4: address ::1 belongs to customer "2" too (line 3)`,
				`c.csv:5: customer is missing: each customer needs a name (lines 5 and 6)`,
				`c.csv:7: no plan named "gold": define it under plans:`,
				`c.csv:7: address ::2 belongs to customer "" too (line 6)`,
			},
		},
	} {
		_, err := loadCustomers(ispPolicy, test.text)
		if err == nil {
			t.Errorf("%s: no error", test.name)
			continue
		}
		lines := strings.Split(err.Error(), "\n")
		for i, line := range lines {
			if i >= len(test.want) || !strings.HasPrefix(line, "etc/"+test.want[i]) ||
				line != "etc/"+test.want[i] && !strings.HasSuffix(test.want[i], ",") {
				t.Errorf("%s: line %d is\n%s, want\netc/%s", test.name, i+1, line,
					append(test.want, "")[min(i, len(test.want))])
			}
		}
		if len(lines) < len(test.want) {
			t.Errorf("%s: %d lines, want %d", test.name, len(lines), len(test.want))
		}
	}
}

// TestManyCauses checks that the errors beyond the bounds are counted.
func TestManyCauses(t *testing.T) {
	place := func(line int) string { return fmt.Sprint("c.csv:", line) }
	word := func(i int) string { return fmt.Sprintf("%c%c is wrong", 'a'+i/26, 'a'+i%26) }
	var f faults
	for i := range maxCauses {
		f.add(i+1, word(i))
		f.add(i+2, word(i))
	}
	list := f.errors(place)
	if n := len(list); n != maxRowErrors+1 || list[0].Error() != "c.csv:1: aa is wrong (lines 1 and 2)" ||
		list[n-1].Error() != "c.csv:0: and 180 more errors" {
		t.Errorf("got %d errors, the last one %v", n, list[n-1])
	}
	f.add(3, "zz is wrong")
	if list := f.errors(place); list[len(list)-1].Error() != "c.csv:0: and 181 more errors" {
		t.Errorf("got %v", list[len(list)-1])
	}
	f = faults{}
	for i := range 21 {
		f.add(i+1, word(i))
	}
	if list := f.errors(place); len(list) != 21 || list[20].Error() != "c.csv:0: and 1 more error" {
		t.Errorf("got %v", list)
	}
	f = faults{}
	for i := range 2 * maxReasons {
		f.add(i+1, fmt.Sprintf("%q is wrong", word(i)))
	}
	if list := f.errors(place); len(list) != 1 ||
		!strings.HasPrefix(list[0].Error(), `c.csv:1: "aa is wrong" is wrong (128 lines, first 1, 2, 3; also "ab is wrong", "`) ||
		!strings.HasSuffix(list[0].Error(), ` and others)`) {
		t.Errorf("got %v", list)
	}
}

// TestKinds checks which parts of a reason are values.
func TestKinds(t *testing.T) {
	for reason, want := range map[string]string{
		`rate: "50M" is ambiguous: write 50mbit or 50MB/s`:             `rate: # is ambiguous: write # or #`,
		`no plan named "a \"quoted\" name \\": define it`:              `no plan named #: define it`,
		`address fe80::/10 lies inside :: of customer "x" (line 7): y`: `address # lies inside # of customer # (line #): y`,
		`cbs: 1ms at 8bit is less than one byte`:                       `cbs: # at # is less than one byte`,
		`"open`:                                                        `#`,
		`"open\`:                                                       `#`,
		`a "b"c`:                                                       `a #c`,
		``:                                                             ``,
		"  7, 8  ":                                                     `  #, #  `,
	} {
		if got := kindOf(reason); got != want {
			t.Errorf("%s: got %q, want %q", reason, got, want)
		}
	}
}

// TestPlacedConflicts checks that errors of dataplane about customers are grouped, and name both lines.
func TestPlacedConflicts(t *testing.T) {
	f, err := loadCustomers(ispPolicy,
		"customer,address,plan,rate\n"+strings.Repeat("1,,quiet,\n2,,quiet,1mbit\n", 20))
	if err != nil {
		t.Fatal(err)
	}
	c := f.Policy.Customers
	errs := []error{&dataplane.FieldError{Object: c.List[1].Plan, Field: "rate", Reason: "is wrong"}}
	for i := range c.List {
		errs = append(errs,
			&dataplane.FieldError{Object: &c.List[len(c.List)-1-i], Field: "address", Reason: "is wrong"})
	}
	errs = append(errs, &dataplane.FieldError{Object: c.Plans[3], Field: "rate", Reason: "is wrong"},
		&dataplane.FieldError{
			Object: &c.List[1], Other: &c.List[9], Field: "address", Reason: "is that of another", Remedy: "change it",
		})
	const want = `etc/p.yaml:8:25: rate is wrong
etc/c.csv:2: address is wrong (40 lines, first 2, 3, 4)
etc/c.csv:3: rate is wrong
etc/c.csv:3: address is that of another (line 11): change it`
	if got := f.Placed(errors.Join(errs...)).Error(); got != want {
		t.Errorf("got %s", got)
	}
}
