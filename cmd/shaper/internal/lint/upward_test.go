package lint

import (
	"strings"
	"testing"
)

// TestDirections checks that findings of both directions are listed once, and those of one direction are
// marked.
func TestDirections(t *testing.T) {
	t.Parallel()
	const policy = `classes:
  - {name: a, match: {proto: udp, dport: 5000}, green: {queue: a}}
  - {name: b, match: {proto: udp, dport: 5001}, green: {queue: b}}
  - {name: none, match: {proto: udp, dport: 5000}}
links:
  site: {rate: {down: 9mbit, up: 2mbit}}
  ap: {link: site, guarantee: {down: 2mbit, up: 1mbit}}
queues:
  a: {link: ap, limit: 64KiB}
  b: {link: site, guarantee: 1500kbit, limit: 64KiB}
`
	var got []string
	for _, f := range findings(t, policy, Options{MTU: 1500}) {
		got = append(got, f.Place+" "+f.Text)
	}
	want := []string{
		"p.yaml:4:25 ", // the same in both directions
		// up, 2.5 Mbit/s are guaranteed of 2
		"p.yaml:6:16 the guarantees of the links and queues of link site add up to 1.25 times its rate of 2mbit",
	}
	if len(got) != len(want) {
		t.Fatalf("got\n%s", strings.Join(got, "\n"))
	}
	for i := range want {
		if up := strings.HasSuffix(got[i], " (up)"); !strings.HasPrefix(got[i], want[i]) || up != (i == 1) {
			t.Errorf("got %q, want %q", got[i], want[i])
		}
	}
}
