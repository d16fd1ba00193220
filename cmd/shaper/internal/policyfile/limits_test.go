package policyfile

import (
	"fmt"
	"strings"
	"testing"
)

// TestLimits checks each limit with the largest accepted value and the next one.
func TestLimits(t *testing.T) {
	const class = "classes: [{name: a}]\n"
	// The first class has a list of 999 values, other classes have an alias of it. The
	// first class has 7 values besides, each other one has 7, the list and the alias.
	aliases := func(classes, more int) string {
		var b strings.Builder
		b.WriteString("classes:\n- {name: c, match: {sport: &l [" + strings.Repeat("1, ", 998) + "1]}}\n")
		for i := range classes - 1 {
			fmt.Fprintf(&b, "- {name: c%d, match: {sport: *l}}\n", i)
		}
		b.WriteString("length: {base: l3, overhead: 0, mpu: 0}\n" + strings.Repeat("# no value\n", more))
		return b.String()
	}
	// The policy is a mapping, two keys and the list of classes; length has 7 values; each
	// class is a mapping with name, its value, match, a mapping, sport and the list of 999.
	values := func(classes int) int { return 4 + 7 + classes*(7+999) }
	most := (1_000_000 - 11) / (7 + 999)
	parts := func(kind, part string, n int) string {
		var b strings.Builder
		b.WriteString(class + kind + ":\n")
		for i := range n {
			fmt.Fprintf(&b, "  p%d: %s\n", i, part)
		}
		return b.String()
	}
	classes := func(n int) string {
		var b strings.Builder
		b.WriteString("classes:\n")
		for i := range n {
			fmt.Fprintf(&b, "- {name: c%d}\n", i)
		}
		return b.String()
	}
	for _, test := range []struct {
		name, passes, fails string
		place, says         string
	}{
		{"size", class + "#" + strings.Repeat("x", 4<<20-len(class)-1), class + "#" + strings.Repeat("x", 4<<20-len(class)), "1:1", "larger than 4 MiB"},
		{"lines", class + strings.Repeat("\n", 999_997), class + strings.Repeat("\n", 999_999), "1:1", "more than 1000000 lines and entries"},
		{"list", "classes: [{name: a, match: {sport: [" + strings.Repeat("1,", 999_988) + "1]}}]", "classes: [{name: a, match: {sport: [" + strings.Repeat("1,", 1_000_000) + "1]}}]", "1:1", "more than 1000000"},
		{"values of aliases", aliases(most, 0), aliases(most+1, 0), fmt.Sprintf("%d:31", most+2), "more than 1000000 values"},
		{"classes", classes(4096), classes(4097), "4098:3", "4097 classes: at most 4096 are allowed"},
		{"meters", parts("meters", "{type: gcra, rate: 1mbit, burst: 9000}", 4096), parts("meters", "{type: gcra, rate: 1mbit, burst: 9000}", 4097), "4099:3", "4097 meters: at most 4096 are allowed"},
		{"queues", parts("queues", "{rate: 1mbit, limit: 1s}", 4096), parts("queues", "{rate: 1mbit, limit: 1s}", 4097), "4099:3", "4097 queues: at most 4096 are allowed"},
		{"links", parts("links", "{rate: 1mbit}", 4096), parts("links", "{rate: 1mbit}", 4097), "4099:3", "4097 links: at most 4096 are allowed"},
		{"envelopes", parts("envelopes", "{cirmax: 1mbit}", 4096), parts("envelopes", "{cirmax: 1mbit}", 4097), "4099:3", "4097 envelopes: at most 4096 are allowed"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if _, err := Load("p.yaml", []byte(test.passes)); err != nil {
				t.Errorf("at the limit: got %.200v, want nil", err)
			}
			_, err := Load("p.yaml", []byte(test.fails))
			if err == nil || strings.Contains(err.Error(), "\n") ||
				!strings.HasPrefix(err.Error(), "p.yaml:"+test.place+": ") ||
				!strings.Contains(err.Error(), test.says) {
				t.Errorf("above it: got %.200v, want one error at %s that says %q", err, test.place,
					test.says)
			}
		})
	}
	if values(most) > 1_000_000 || values(most+1) <= 1_000_000 {
		t.Errorf("the test has %d and %d values, want the limit between them", values(most), values(most+1))
	}
}

// TestRecursiveAlias checks that an alias that contains itself is an error.
func TestRecursiveAlias(t *testing.T) {
	for _, text := range []string{
		"classes: &c [*c]", "a: &a [b, *a]", "classes: [{name: a, match: &m {sport: [1, {x: *m}]}}]",
	} {
		_, err := Load("p.yaml", []byte(text))
		if err == nil || strings.Contains(err.Error(), "\n") ||
			!strings.Contains(err.Error(), "contains itself") {
			t.Errorf("%s: got %v, want that an alias contains itself", text, err)
		}
	}
}

// TestManyErrors checks that the first hundred errors are reported, and the number of others.
func TestManyErrors(t *testing.T) {
	for count, more := range map[int]string{
		100: "", 101: "p.yaml:1:%d: and 1 more error here",
		1000: "p.yaml:1:%d: and 900 more errors up to here",
	} {
		text := "classes: [{name: a, match: {sport: [" + strings.Repeat("x,", count-1) + "x]}}]"
		_, err := Load("p.yaml", []byte(text))
		if err == nil {
			t.Fatal("got nil, want an error")
		}
		lines := strings.Split(err.Error(), "\n")
		if more == "" {
			if len(lines) != count {
				t.Errorf("got %d lines, want %d", len(lines), count)
			}
			continue
		}
		last := fmt.Sprintf(more, strings.LastIndex(text, "x")+1)
		if len(lines) != 101 || lines[100] != last {
			t.Errorf("%d lines for %d errors, the last is %q, want %q", len(lines), count,
				lines[len(lines)-1], last)
		}
	}
	// Errors that Compile finds: 200 classes with a bad name.
	_, err := loadAndCompile("classes:\n" + strings.Repeat("- {name: '-', match: {sport: 70000}}\n", 200))
	if err == nil || strings.Count(err.Error(), "\n") != 99 {
		t.Errorf("got %d errors, want 100", strings.Count(err.Error(), "\n")+1)
	}
}
