package main

import (
	"fmt"
	"math/rand/v2"
	"strings"
)

// randomPlan is a plan for customers.
type randomPlan struct {
	text string
	own  map[string]func() string // values of parameters that a customer can have
}

// newRandomPlan returns a plan whose meter counts bytes or packets, or a paced one.
func newRandomPlan(r *rand.Rand, packets bool, queues []string, kernel bool) randomPlan {
	// Any fast rate is above any slow one, and has tokens within any time.
	slow := func() string { return fmt.Sprintf("%dbit", 1+r.IntN(10_000_000)) }
	fast := func() string { return fmt.Sprintf("%dkbit", 10_000+r.IntN(90_000)) }
	size := func() string { return pickWord(r, "1500", "3000", "9KiB", "64", "100kB", "1") }
	limit := func() string { return pickWord(r, "1", "1500", "4000", "9KiB", "30kB", "100kB") }
	if packets {
		slow = func() string { return fmt.Sprintf("%dp/1s", 1+r.IntN(1000)) }
		fast = func() string { return fmt.Sprintf("%dp/10ms", 10+r.IntN(90)) }
		size = func() string { return fmt.Sprint(1 + r.IntN(20)) }
		limit = func() string { return fmt.Sprint(1 + r.IntN(40)) }
	}
	timed := func() string { return pickWord(r, size(), fmt.Sprintf("%dus", 2000+r.IntN(9000))) }
	either := func() string { return pickWord(r, slow(), fast()) }

	p, fixed := randomPlan{}, ""
	switch r.IntN(9) {
	case 0:
		fixed = "type: srtcm"
		p.own = map[string]func() string{"cir": either, "cbs": size, "ebs": size}
	case 1, 2:
		fixed = "type: trtcm"
		p.own = map[string]func() string{"cir": slow, "cbs": size, "pir": fast, "pbs": timed}
	case 3:
		fixed = "type: trtcm4115" + pickWord(r, "", ", coupling: true", ", coupling: false")
		p.own = map[string]func() string{"cir": either, "cbs": size, "eir": fast, "ebs": timed}
	case 4:
		fixed = "type: " + pickWord(r, "token-bucket", "gcra")
		p.own = map[string]func() string{"rate": either, "burst": size}
	case 5:
		fixed = "type: " + pickWord(r, "token-bucket", "gcra")
		p.own = map[string]func() string{"rate": fast, "burst": timed}
	case 6:
		fixed = "type: " + pickWord(r, "fixed-window", "sliding-counter")
		p.own = map[string]func() string{"limit": limit, "window": func() string { return randomTime(r) }}
	default:
		p.own = map[string]func() string{
			"rate":  func() string { return pickWord(r, randomRate(r), "1mbit", "7777777bit", "33 Mbit/s") },
			"limit": func() string { return fmt.Sprintf("%dms", 1+r.IntN(200)) },
		}
		text := join(p.values(r)) + pickWord(r, "", ", codel: true", ", codel: {}",
			", codel: {target: 1ms, interval: 3ms}", ", codel: {target: 100us, interval: 1us}") +
			pickWord(r, "", ", ecn: true")
		p.text = "queue: {" + text + "}" + planActions(r, nil, kernel)
		return p
	}
	p.text = fixed + ", " + join(p.values(r)) + planActions(r, queues, kernel)
	return p
}

// values returns a value of each parameter.
func (p randomPlan) values(r *rand.Rand) map[string]string {
	out := map[string]string{}
	for _, key := range sortedKeys(p.own) {
		out[key] = p.own[key]()
	}
	return out
}

// planActions returns the actions of a plan. Without queues, they have none.
func planActions(r *rand.Rand, queues []string, kernel bool) string {
	var b strings.Builder
	for _, color := range []string{"green", "yellow", "red"} {
		if r.IntN(3) > 0 {
			continue
		}
		action := randomAction(r, []string{"none"}, kernel)
		if queues != nil {
			action = randomAction(r, queues, kernel)
		}
		for strings.Contains(action, "none") {
			action = randomAction(r, []string{"none"}, kernel)
		}
		fmt.Fprintf(&b, ", %s: %s", color, action)
	}
	return b.String()
}
