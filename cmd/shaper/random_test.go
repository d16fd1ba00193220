package main

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestRandomPolicies replays captures through policies that nobody would write
// and holds every row to the reference model.
func TestRandomPolicies(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	all := captures(t)
	path := filepath.Join(t.TempDir(), "policy.yaml")
	rows := 0
	for range 60 {
		policy := randomPolicy(r, "q0", "q1")
		if err := os.WriteFile(path, []byte(policy), 0o600); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			rows += againstModel(t, policy, path, all[r.IntN(len(all))])
			if t.Failed() {
				t.Fatal(policy)
			}
		}
	}
	if rows < 5000 {
		t.Errorf("only %d rows were compared", rows)
	}
}

// pick chooses one of some words.
func pick(r *rand.Rand, words ...string) string { return words[r.IntN(len(words))] }

// randomPolicy has the queues named.
func randomPolicy(r *rand.Rand, queues ...string) string {
	var b strings.Builder
	b.WriteString("queues:\n")
	for _, q := range queues {
		fmt.Fprintf(&b, "  %s: {rate: %s, limit: %s}\n", q, randomRate(r), pick(r, "5ms", "50ms", "3000", "20KiB", "1p", "7p"))
	}
	b.WriteString("meters:\n")
	for i := range 3 { // each may lead to a later one
		then := ""
		if i < 2 && r.IntN(2) == 0 {
			then = fmt.Sprintf(", then: m%d", i+1+r.IntN(2-i))
		}
		fmt.Fprintf(&b, "  m%d: {%s, color: aware%s}\n", i, randomMeter(r), then)
	}
	b.WriteString("classes:\n")
	for i := range 1 + r.IntN(6) {
		fmt.Fprintf(&b, "  - name: c%d\n", i)
		if r.IntN(5) > 0 {
			fmt.Fprintf(&b, "    match: {%s}\n", randomMatch(r))
		}
		if r.IntN(5) > 0 {
			color := ""
			if r.IntN(2) == 0 {
				color = ", color: aware" + pick(r, "", "", ", precolor: {from: pcp, map: {0: yellow, 5: red}}",
					", precolor: {from: mpls, map: {0: yellow, 3: red}}", ", precolor: {from: dscp, map: {ef: red, 0: yellow}}")
			}
			fmt.Fprintf(&b, "    meter: {%s%s}\n", randomMeter(r), color)
			if r.IntN(2) == 0 {
				fmt.Fprintf(&b, "    then: m%d\n", r.IntN(3))
			}
		}
		for _, color := range []string{"green", "yellow", "red"} {
			if r.IntN(2) == 0 {
				fmt.Fprintf(&b, "    %s: %s\n", color, randomAction(r, queues))
			}
		}
	}
	if r.IntN(3) == 0 {
		fmt.Fprintf(&b, "length: %s\n", pick(r, "l2", "l1", "{base: l3, overhead: -20}", "{base: l3, overhead: 38, mpu: 84}"))
	}
	return b.String()
}

func randomRate(r *rand.Rand) string {
	return fmt.Sprintf(pick(r, "%dbit", "%dkbit", "%dB/s", "%dB/7ms", "%dkB/1min"), 1+r.IntN(1_000_000)/(1+r.IntN(1000)))
}

func randomMeter(r *rand.Rand) string {
	burst := func() string { return pick(r, "1500", "3000", "9KiB", "64", "100kB", "1") }
	options := pick(r, "", "", ", initial: empty", ", initial: 33.3%")
	rate := fmt.Sprint(1 + r.IntN(10_000_000))
	switch r.IntN(5) {
	case 0:
		return fmt.Sprintf("type: srtcm, cir: %s, cbs: %s, ebs: %s%s", randomRate(r), burst(), burst(), options)
	case 1:
		return fmt.Sprintf("type: trtcm, cir: %sbit, cbs: %s, pir: %skbit, pbs: %s%s", rate, burst(), rate, burst(), options)
	case 2:
		return fmt.Sprintf("type: trtcm4115, cir: %s, cbs: %s, eir: %sbit, ebs: %s%s", randomRate(r), burst(), rate, burst(), options)
	case 3:
		return fmt.Sprintf("type: trtcm4115, cir: %sbit, cbs: %s, eir: 999kbit, ebs: %s, coupling: true%s", rate, burst(), burst(), options)
	}
	if r.IntN(3) == 0 {
		return fmt.Sprintf("type: token-bucket, rate: %dp/%s, burst: %d, count: packets%s", 1+r.IntN(1000), pick(r, "1s", "300ms"), 1+r.IntN(20), options)
	}
	return fmt.Sprintf("type: token-bucket, rate: %s, burst: %s%s", randomRate(r), burst(), options)
}

func randomMatch(r *rand.Rand) string {
	keys := map[string]func() string{
		"src": func() string {
			return pick(r, "192.0.2.0/24", "198.51.100.0/24", "0.0.0.0/0", "2001:db8::/32", "'::/0'", "[192.0.2.1, 2001:db8::1]")
		},
		"dst":       func() string { return pick(r, "192.0.2.0/25", "203.0.113.0/24", "128.0.0.0/1", "2001:db8::/33") },
		"proto":     func() string { return pick(r, "tcp", "udp", "icmp", "[tcp, udp]", "0-100", "58") },
		"sport":     func() string { return pick(r, "0-1023", "1024-65535", "53") },
		"dport":     func() string { return pick(r, "[53, 443]", "5000-5999", "0") },
		"dscp":      func() string { return pick(r, "ef", "[af11, af12, af13]", "0", "1-63") },
		"vlan":      func() string { return pick(r, "0-4095", "1-100", "100") },
		"pcp":       func() string { return pick(r, "0", "[1, 3, 5]", "2-7") },
		"mark":      func() string { return pick(r, "0", "1-9") },
		"ethertype": func() string { return pick(r, "arp", "ipv4", "[ipv6, 0x8847]", "0x8864", "0-0xffff") },
		"length":    func() string { return pick(r, "0-100", "40", "1000-9000", "0-65535") },
	}
	var parts []string
	for _, key := range []string{"src", "dst", "proto", "sport", "dport", "dscp", "vlan", "pcp", "mark", "ethertype", "length"} {
		if r.IntN(6) == 0 {
			parts = append(parts, key+": "+keys[key]())
		}
	}
	return strings.Join(parts, ", ")
}

func randomAction(r *rand.Rand, queues []string) string {
	if r.IntN(3) == 0 {
		return pick(r, "pass", "drop")
	}
	choices := []string{
		"dscp: " + pick(r, "af12", "0", "63"), "pcp: 3", "mpls: 4",
		pick(r, "ecn: ce", "ecn: ce, else: drop"), "mark: 7",
	}
	if queues != nil {
		choices = append(choices, "queue: "+pick(r, queues...))
	} else {
		choices = append(choices, "dei: 1") // which the reference model does not know
	}
	var parts []string
	for _, part := range choices {
		if r.IntN(3) == 0 {
			parts = append(parts, part)
		}
	}
	if parts == nil {
		return "pass"
	}
	return "{" + strings.Join(parts, ", ") + "}"
}
