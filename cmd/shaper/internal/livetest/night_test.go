package livetest

import (
	"os"
	"regexp"
	"strings"
	"testing"
	"time"
)

// nightPolicy drops packets for each reason of the kernel, chosen by DSCP.
const nightPolicy = `
classes:
  - {name: peak, match: {dscp: 1}, meter: {type: token-bucket, rate: 8bit, burst: 1000}}
  - {name: late, match: {dscp: 2}, green: {ecn: ce, else: drop}}
  - {name: long, match: {dscp: 3}, green: {queue: long}}
  - {name: early, match: {dscp: 4}, green: {queue: early}}
  - {name: slow, match: {dscp: 5}, green: {queue: slow}}
queues:
  long: {rate: 80bit, limit: 1000, fair: false}
  early: {rate: 80bit, limit: 1h, fair: false, wred: {green: {min: 1ms, max: 2ms, probability: 1}}}
  slow: {rate: 80bit, limit: 1h, fair: false, codel: {target: 1ms, interval: 2ms}}
otherwise: drop
`

// TestLiveNight checks that each answer in the tables of "3 a.m." in docs/OPERATING.md is printed in its
// situation, so that a reader can compare the words.
func TestLiveNight(t *testing.T) {
	skipInVM(t)
	text, err := os.ReadFile("../../../../docs/OPERATING.md")
	if err != nil {
		t.Fatal(err)
	}
	_, night, _ := strings.Cut(string(text), "\n## 3 a.m.")
	night, _, _ = strings.Cut(night, "\n## ")
	var answers []string
	for _, row := range regexp.MustCompile("(?m)^\\| (`[^|]*) \\|").FindAllStringSubmatch(night, -1) {
		for _, quoted := range regexp.MustCompile("`([^`]*)`").FindAllStringSubmatch(row[1], -1) {
			if !strings.HasPrefix(quoted[1], "shaper ") { // a remedy
				answers = append(answers, quoted[1])
			}
		}
	}
	if len(answers) < 12 {
		t.Fatalf("only %d answers found: %q", len(answers), answers)
	}
	seen := nightSituations(t)
	for _, a := range answers {
		parts := strings.Split(strings.Join(strings.Fields(a), " "), "…")
		for i := range parts {
			parts[i] = regexp.QuoteMeta(parts[i])
		}
		if !regexp.MustCompile(strings.Join(parts, ".*")).MatchString(seen) {
			t.Errorf("%q is not printed in any situation:\n%s", a, seen)
		}
	}
}

// nightSituations returns what status and stats print in each situation, words separated by one space.
func nightSituations(t *testing.T) string {
	p := newQueuePair(t)
	var seen strings.Builder
	look := func(command ...string) {
		out, _ := p.wantExit(0, command...)
		seen.WriteString(strings.Join(strings.Fields(out), " ") + "\n")
	}
	look("status")

	p.wantExit(0, "run", "v0", "--rate", "5mbit", "--background")
	p.wantExit(0, "set", "v0", "queue", "all", "rate=10mbit")
	look("status")
	look("stats", "v0")
	p.near.Run("tc", "qdisc", "replace", "dev", "v0", "root", "handle", "9:", "pfifo")
	look("status")
	p.wantExit(0, "detach", "v0")
	p.near.Run("tc", "qdisc", "del", "dev", "v0", "root")

	r := p.runShaper("--policy", writePolicy(t, `
classes: [{name: all, meter: {type: token-bucket, rate: 5mbit, burst: 64KiB,
  share: {budget: night, store: "redis://127.0.0.1:1"}}}]`), "--confirm", "1h")
	look("status")
	p.wantExit(0, "confirm", "v0")
	r.stopBySIGTERM()

	r = p.runShaper("--policy", writePolicy(t, nightPolicy), "--pacer", "htb")
	_, to := p.addresses(placement{"tcx", "egress"}, false)
	for dscp := range 6 {
		conn := newSender(t, p.near, to, dscp<<2, 0)
		for range 8 { // CoDel drops only after an interval
			sendUDP(t, conn, 1, 500)
			time.Sleep(3 * time.Millisecond)
		}
	}
	look("stats", "v0")
	r.killWithGuard()
	look("status")
	p.wantExit(0, "detach", "v0")
	return seen.String()
}
