package oracle

import (
	"testing"
)

func parsePolicy(text []byte) (*policy, error) { return Site{}.parse(text) }

func TestRefusedPolicies(t *testing.T) {
	for _, policy := range []string{
		"",
		"classes: {}",
		"classes: [{name: a}, {name: a}]",
		"classes: [{name: a, math: {dscp: ef}}]",
		"classes: [{name: a, match: {dscp: 64}}]",
		"classes: [{name: a, match: {sport: 9-8}}]",
		"classes: [{name: a, green: {queue: none}}]",
		"classes: [{name: a, meter: {type: trtcm, cir: 2mbit, cbs: 1, pir: 1mbit, pbs: 1}}]",
		"classes: [{name: a, meter: {type: srtcm, cir: 2mbit, cbs: 0, ebs: 0}}]",
		"classes: [{name: a, meter: {type: srtcm, cir: 2mbit, cbs: 1}}]",
		"classes: [{name: a, meter: {type: token-bucket, rate: 2mbit, burst: 1kB, count: packets}}]",
		"classes: [{name: a, meter: {type: token-bucket, rate: 2mbit, burst: 1}, then: b}]\n" +
			"meters: {b: {type: token-bucket, rate: 2mbit, burst: 1}}",
		"classes: [{name: a, meter: {type: token-bucket, rate: 2mbit, burst: 1}, then: b}]\n" +
			"meters: {b: {type: token-bucket, rate: 2mbit, burst: 1, color: aware, then: b}}",
		"classes: []\nlinks: {wan: {}}",
		"classes: []\nlinks: {wan: {rate: 0mbit}}",
		"classes: []\nlinks: {wan: {rate: 8mbit, limit: 1p}}",
		"classes: []\nlinks: {wan: {rate: 8mbit, weight: 1}}",
		"classes: []\nlinks: {wan: {link: lan}}",
		"classes: []\nlinks: {wan: {link: lan}, lan: {link: wan}}",
		"classes: []\nlinks: {wan: {rate: 8mbit}, lan: {link: wan, weight: 0}}",
		"classes: []\nlinks: {a: {rate: 8mbit}, b: {link: a}, c: {link: b}, d: {link: c}, e: {link: d}, " +
			"f: {link: e}, g: {link: f}, h: {link: g}}",
	} {
		if _, err := parsePolicy([]byte(policy)); err == nil {
			t.Errorf("got nil, want an error: %s", policy)
		}
	}
}

func TestRefusedQueues(t *testing.T) {
	for _, queue := range []string{
		"{}",
		"{rate: 8mbit}",
		"{limit: 9p}",
		"{rate: 0mbit, limit: 9p}",
		"{rate: 8mbit, guarantee: 1mbit, limit: 9p}",
		"{rate: 1mbit, link: wan, guarantee: 2mbit, limit: 9p}",
		"{link: lan, limit: 9p}",
		"{rate: 8mbit, limit: 9p, weight: 1}",
		"{rate: 8mbit, limit: 9p, priority: 1}",
		"{link: wan, limit: 9p, priority: 8}",
		"{link: wan, limit: 9p, weight: 0}",
		"{link: wan, limit: 9p, weight: 1001}",
		"{rate: 8mbit, limit: 65537p}",
		"{rate: 8mbit, limit: 1.5p}",
		"{rate: 8mbit, limit: 9p, ecn: yes please}",
		"{rate: 8mbit, limit: 9p, seed: -1}",
		"{rate: 8mbit, limit: 9p, wred: {blue: {min: 1p, max: 2p, probability: 1}}}",
		"{rate: 8mbit, limit: 9p, wred: {red: {min: 1p, max: 2p}}}",
		"{rate: 8mbit, limit: 9p, wred: {red: {max: 2p, probability: 1}}}",
		"{rate: 8mbit, limit: 9p, wred: {red: {min: 3p, max: 2p, probability: 1}}}",
		"{rate: 8mbit, limit: 9p, wred: {red: {min: 1p, max: 10p, probability: 1}}}",
		"{rate: 8mbit, limit: 9p, wred: {red: {min: 1p, max: 2p, probability: 1.1}}}",
		"{rate: 8mbit, limit: 9p, wred: {red: {min: 1p, max: 2p, probability: 10%}}}",
		"{rate: 8mbit, limit: 9p, wred: {red: {min: 0, max: 2p, probability: 1}}}",
		"{rate: 8mbit, limit: 9ms, wred: {red: {min: 1ms, max: 2000, probability: 1}}}",
		"{link: wan, limit: 9ms, wred: {red: {min: 1ms, max: 2000, probability: 1}}}",
		"{rate: 8mbit, limit: 9p, codel: {target: 5}}",
		"{rate: 8mbit, limit: 9p, codel: {interval: 4.1s}}",
		"{rate: 8mbit, limit: 9p, codel: {interval: 0ms}}",
		"{rate: 8mbit, limit: 9p, codel: maybe}",
	} {
		policy := "classes: []\nlinks: {wan: {rate: 8mbit}}\nqueues: {q: " + queue + "}"
		if _, err := parsePolicy([]byte(policy)); err == nil {
			t.Errorf("got nil, want an error: %s", queue)
		}
	}
}
