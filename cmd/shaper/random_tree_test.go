package main

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

// TestRandomTrees replays captures through trees of links whose queues compete, and compares every row
// with the reference model.
func TestRandomTrees(t *testing.T) {
	t.Parallel()
	r, path := seededRand(t), filepath.Join(t.TempDir(), "policy.yaml")
	rows, accepted := 0, 0
	for range *randomPolicyCount {
		policy := randomTree(r)
		if err := os.WriteFile(path, []byte(policy), 0o600); err != nil {
			t.Fatal(err)
		}
		n := againstModel(t, policy, path, randomCapture(t, r), dataplane.Egress)
		if t.Failed() {
			t.Fatal(policy)
		}
		if rows += n; n > 0 {
			accepted++
		}
	}
	if accepted < *randomPolicyCount*3/4 {
		t.Errorf("only %d policies were compared", accepted)
	}
	t.Logf("%d policies, %d rows were compared", accepted, rows)
}

// randomTree returns a policy with a tree of links of up to five levels. Its classes put packets of
// randomCapture into different queues, faster than the root sends them.
func randomTree(r *rand.Rand) string {
	rate := func() string { return fmt.Sprintf("%dkbit", 100+r.IntN(6000)) }
	share := func() string {
		return pickWord(r, "", "", ", rate: "+rate()) +
			pickWord(r, "", "", fmt.Sprintf(", priority: %d", r.IntN(3))) +
			pickWord(r, "", fmt.Sprintf(", weight: %d", 1+r.IntN(9)))
	}
	links := []string{"wan"}
	text := "links:\n  wan: {rate: " + pickWord(r, "1mbit", "3mbit", "7777777bit", "12112kbit") + "}\n"
	for i := range 1 + r.IntN(4) {
		link := fmt.Sprintf("l%d", i)
		guarantee := pickWord(r, "", fmt.Sprintf(", guarantee: %dkbit", 10+r.IntN(90)),
			fmt.Sprintf(", guarantee: %dkbit", 1000+r.IntN(6000)))
		own := share()
		if strings.Contains(own, "rate") { // the guarantee must be at most the rate
			guarantee = pickWord(r, "", ", guarantee: 99kbit")
		}
		text += fmt.Sprintf("  %s: {link: %s%s%s}\n", link, pickWord(r, links...), own, guarantee)
		links = append(links, link)
	}
	var classes, queues string
	matches := []string{"dscp: 0", "dscp: 10", "dscp: 12", "proto: 6", "src: 192.0.2.1", "dscp: 14", "proto: 17", ""}
	for i, match := range matches {
		link := pickWord(r, links...)
		if i < len(links) {
			link = links[i] // each has a queue
		}
		guarantee := pickWord(r, "", "", ", guarantee: 10kbit", ", guarantee: 12345bit")
		limit := pickWord(r, "9p", "50p", "100kB", "300ms", "50ms")
		fair := pickWord(r, "", "", ", fair: flow", ", fair: src")
		queues += fmt.Sprintf("  q%d: {link: %s%s%s, limit: %s%s%s}\n", i, link, share(), guarantee, limit, fair,
			pickWord(r, "", "", ", codel: {target: 1ms, interval: 3ms}"))
		classes += fmt.Sprintf("  - {name: c%d, match: {%s}, green: {queue: q%[1]d}}\n", i, match)
	}
	return text + "queues:\n" + queues + "classes:\n" + classes
}
