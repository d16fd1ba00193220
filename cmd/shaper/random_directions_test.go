package main

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

// directed returns a text in which each rate of a pattern, its third group, became one of a mapping. The
// other direction has another rate.
func directed(text string, pattern *regexp.Regexp, up bool, r *rand.Rand) (string, int) {
	n := 0
	out := pattern.ReplaceAllStringFunc(text, func(found string) string {
		m := pattern.FindStringSubmatch(found)
		number, err := strconv.ParseInt(m[3], 10, 64)
		if err != nil || r.IntN(4) == 0 {
			return found
		}
		n++
		rate, other := m[3]+m[4], fmt.Sprintf("%d%s", 2*number, m[4])
		if m[2] == "guarantee" { // it must stay below the rate
			other = "1kbit"
		}
		if up {
			return fmt.Sprintf("%s%s: {down: %s, up: %s}", m[1], m[2], other, rate)
		}
		return fmt.Sprintf("%s%s: {up: %s, down: %s}", m[1], m[2], other, rate)
	})
	return out, n
}

// TestRandomDirections replays captures in one direction through policies whose rates differ by direction,
// and compares every row with the model's for the policy with the rates of that direction alone.
func TestRandomDirections(t *testing.T) {
	t.Parallel()
	r := seededRand(t)
	inTree := regexp.MustCompile(`()(rate|guarantee): (\d+)([kmg]?bit)\b`)
	inPlan := regexp.MustCompile(`(?m)(^  plan.*\b)(rate): (\d+)([kmg]?bit)\b`)
	rows, pairs := 0, 0
	for i := range *randomPolicyCount {
		policy, path, capture := randomTree(r), filepath.Join(t.TempDir(), "policy.yaml"), ""
		pattern := inTree
		if i%2 == 0 {
			capture = randomCapture(t, r)
		} else {
			policy, path = randomCustomers(t, r, "wan", "lan", "ap")
			pattern, capture = inPlan, customerCapture(t, r)
		}
		direction := dataplane.Direction(r.IntN(2))
		up := direction == dataplane.Ingress
		switch {
		case strings.Contains(policy, "key: src"), strings.Contains(policy, "key: [src]"):
			up = true
		case strings.Contains(policy, "key: dst"):
			up = false
		}
		text, n := directed(policy, pattern, up, r)
		pairs += n
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		rows += againstModel(t, policy, path, capture, direction)
		if t.Failed() {
			t.Fatal(text)
		}
	}
	if pairs < *randomPolicyCount || rows < 20**randomPolicyCount {
		t.Errorf("only %d rates and %d rows were compared", pairs, rows)
	}
	t.Logf("%d rates, %d rows were compared", pairs, rows)
}
