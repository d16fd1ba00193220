package livetest

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
)

const quotaPolicy = `classes:
  - {name: customers, per: customer, meter: plan}
customers: {file: customers.csv}
plans:
  open: {type: token-bucket, rate: 1gbit, burst: 1MB, quota: {limit: 1kB, every: month, then: shut}}
  shut: {type: token-bucket, rate: 1B/1000s, burst: 100B}
  day: {type: token-bucket, rate: 1gbit, burst: 1MB, when: {at: "00:00-24:00", plan: always}}
  always: {type: token-bucket, rate: 1gbit, burst: 1MB}
`

// TestLiveQuota lets a customer use its quota half in each direction, in the kernel and in shaper
// tap. Then it has the other plan, also after a reload, until its limit is raised.
func TestLiveQuota(t *testing.T) {
	skipInVM(t)
	t.Run("run", func(t *testing.T) {
		p := newPair(t)
		testQuota(t, p, "v0", func(policy string) {
			p.runShaper("--policy", policy, "--both")
		}, func(address string) {
			p.near.Inject("v0", packetBetween("203.0.113.1", address))
			p.far.Inject("v0", packetBetween(address, "203.0.113.1"))
		})
		policy := writePolicy(t, quotaPolicy)
		rewriteFile(t, filepath.Join(filepath.Dir(policy), "customers.csv"),
			"customer,address,plan\nc,192.0.2.3,day\n")
		_, stderr := p.wantExit(2, "run", "v0", "--policy", policy, "--background")
		if !strings.Contains(stderr, "quotas and schedules need a process") {
			t.Errorf("without a process: %q", stderr)
		}
	})
	t.Run("tap", func(t *testing.T) {
		p := newTAPPair(t)
		testQuota(t, p, "t0", func(policy string) {
			p.startTap("--uplink", "v0", "--policy", policy, "--both")
		}, func(address string) {
			p.near.Inject("t0", packetBetween("203.0.113.1", address))
			p.far.Inject("v0", packetBetween(address, "203.0.113.1"))
		})
	})
}

func testQuota(t *testing.T, p *pair, name string, start func(policy string), send func(address string)) {
	t.Helper()
	policy := writePolicy(t, quotaPolicy)
	rewriteFile(t, filepath.Join(filepath.Dir(policy), "customers.csv"),
		"customer,address,plan,quota\na,192.0.2.1,open,\nb,192.0.2.2,open,1MB\nc,192.0.2.3,day,\n")
	start(policy)
	plans := func(want ...string) {
		t.Helper()
		eventually(t, func() error {
			rows := p.customers("--direction", "egress")
			for i, customer := range []string{"a", "b", "c"} {
				if got := rows[customer].Plan; got != want[i] {
					return fmt.Errorf("customer %s has plan %s, want %s", customer, got, want[i])
				}
			}
			return nil
		})
	}
	for range 5 { // 100 bytes in each direction
		send("192.0.2.1")
		send("192.0.2.2")
	}
	plans("shut", "open", "always")
	stdout, _ := p.wantExit(0, "set", name)
	if !strings.HasPrefix(stdout, name+`: customer "a": plan shut, until `) ||
		!strings.HasSuffix(stdout, " (quota)\n") || strings.Count(stdout, "\n") != 1 {
		t.Errorf("changes in force: %q", stdout)
	}
	p.wantExit(0, "reload", name)
	plans("shut", "open", "always")
	before := p.customers("--direction", "egress")["a"].Dropped.Packets
	for range 5 {
		send("192.0.2.1")
	}
	eventually(t, func() error {
		// one packet uses the burst
		if got := p.customers("--direction", "egress")["a"].Dropped.Packets - before; got < 4 {
			return fmt.Errorf("%d packets were dropped", got)
		}
		return nil
	})
	rewriteFile(t, policy, strings.Replace(quotaPolicy, "1kB", "1MB", 1))
	p.wantExit(0, "reload", name)
	plans("open", "open", "always")
}
