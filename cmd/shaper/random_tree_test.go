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
		policy, table := randomTree(r), ""
		if r.IntN(2) == 0 {
			policy, table = treeCustomers(r, policy)
		}
		for name, text := range map[string]string{path: policy, filepath.Join(filepath.Dir(path), "customers.csv"): table} {
			if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		n := againstModel(t, policy, path, randomCapture(t, r), dataplane.Egress)
		if t.Failed() {
			t.Fatalf("%s\n%s", policy, table)
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
		fair := pickWord(r, "", "", ", fair: flow", ", fair: src", ", fair: [src, flow]", ", fair: [dscp, hosts], seed: 7")
		queues += fmt.Sprintf("  q%d: {link: %s%s%s, limit: %s%s%s}\n", i, link, share(), guarantee, limit, fair,
			pickWord(r, "", "", ", codel: {target: 1ms, interval: 3ms}"))
		classes += fmt.Sprintf("  - {name: c%d, match: {%s}, green: {queue: q%[1]d}}\n", i, match)
	}
	return text + "queues:\n" + queues + "classes:\n" + classes
}

// treeCustomers adds customers to a policy of randomTree, and returns it with their file. They take some or all of
// the packets, and have queues on links, named by plans or rows, or of their own.
func treeCustomers(r *rand.Rand, policy string) (text, table string) {
	rate := func() string { return fmt.Sprintf("%dkbit", 100+r.IntN(6000)) }
	var links []string
	for _, line := range strings.Split(policy, "\n") {
		if name, rest, ok := strings.Cut(strings.TrimSpace(line), ": {"); ok && !strings.Contains(rest, "limit") &&
			!strings.HasPrefix(name, "-") {
			links = append(links, name)
		}
	}
	plans := "plans:\n"
	onLink, free := []bool{}, []bool{} // by plan
	for i := range 1 + r.IntN(3) {
		link := pickWord(r, "", ", link: "+pickWord(r, links...))
		speed := ", rate: " + rate()
		if link != "" {
			speed = pickWord(r, "", speed)
		}
		place := pickWord(r, "", "", ", guarantee: 12345bit", ", guarantee: 99kbit") +
			pickWord(r, "", fmt.Sprintf(", weight: %d", 1+r.IntN(9))) +
			pickWord(r, "", "", fmt.Sprintf(", priority: %d", r.IntN(3)))
		fair := pickWord(r, "", "", ", fair: flow", ", fair: dscp", ", fair: [dscp, flow]", ", fair: [flow, dscp]")
		codel := pickWord(r, "", "", ", codel: {target: 1ms, interval: 3ms}", ", codel: true")
		plans += fmt.Sprintf("  p%d: {queue: {limit: %s%s%s%s%s%s%s}%s}\n", i, pickWord(r, "20ms", "100ms", "400ms"),
			speed, link, place, fair, codel, pickWord(r, "", ", ecn: true"),
			pickWord(r, "", "", ", green: {dscp: 12}", ", green: {queue: q1}"))
		onLink, free = append(onLink, link != ""), append(free, place == "")
	}
	table = "customer,address,plan,rate,guarantee,weight,limit,link\n"
	for i := range 4 {
		plan := r.IntN(len(onLink))
		link := pickWord(r, append(links, "")...)
		switch {
		case onLink[plan]:
			link = ""
		case !free[plan]:
			link = pickWord(r, links...)
		}
		row := []string{pickWord(r, "", rate()), "", "", pickWord(r, "", "", "30ms"), link}
		if onLink[plan] || link != "" {
			row[1], row[2] = pickWord(r, "", "", "50kbit"), pickWord(r, "", "3")
		}
		table += fmt.Sprintf("k%d,192.0.2.%d,p%d,%s\n", i, i, plan, strings.Join(row, ","))
	}
	class := fmt.Sprintf("classes:\n  - {name: k, per: customer, meter: plan%s%s}\n",
		pickWord(r, "", ", match: {proto: 17}", ", match: {dscp: [0, 10, 12]}"), pickWord(r, "", ", then: up"))
	meters := "meters:\n  up: {type: token-bucket, rate: " + rate() + ", burst: 30kB, color: aware}\n"
	customers := "customers: {file: customers.csv, key: src}\n"
	return meters + plans + customers + strings.Replace(policy, "classes:\n", class, 1), table
}
