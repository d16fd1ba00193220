package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/chrome"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/cli"
)

// TestReportsDraw opens reports of the policies of the docs with all captures, of policies and captures
// whose series lack values, of random policies, and of comparisons. No script may fail, and every
// heading needs its chart.
func TestReportsDraw(t *testing.T) {
	t.Parallel()
	tab := chrome.Open(t)
	tab.Width(t, 1000)
	open := func(name string, args ...string) {
		t.Helper()
		var page, stderr bytes.Buffer
		if code := run(append(args, "--report", "-"),
			cli.Streams{Out: &page, Err: &stderr}); code != cli.ExitDone {
			t.Fatalf("%s: exit %d: %s", name, code, &stderr)
		}
		t.Run(name, func(t *testing.T) {
			tab.Load(t, "report.html", page.String())
			tab.Charts(t, -1)
			tab.Quiet(t)
		})
	}
	replay := func(policy, capture string) {
		t.Helper()
		open(filepath.Base(policy)+" of "+filepath.Base(capture), "replay", capture, "--policy", policy)
	}
	dir := t.TempDir()
	file := func(name, text string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}

	odd := []string{
		file("no packet.pcap", smallCapture()),
		file("ARP.pcap", smallCapture(0x0806)),
		file("one packet.pcap", smallCapture(0x0800)),
	}
	shipped, err := filepath.Glob("../../testdata/pcaps/*.pcap*")
	if err != nil || len(shipped) < 10 {
		t.Fatal(shipped, err)
	}
	policies, err := filepath.Glob("../../docs/*.yaml")
	if err != nil || len(policies) < 8 {
		t.Fatal(policies, err)
	}
	for _, policy := range policies {
		if filepath.Base(policy) == "simulate.yaml" {
			continue // a scenario of shaper simulate
		}
		for _, capture := range slices.Concat(shipped, odd) {
			replay(policy, capture)
		}
	}

	file("customers.csv", "customer,address,plan\na,203.0.113.52,home\nb,198.51.100.0/24,paced\n")
	for name, policy := range map[string]string{
		"nothing": `classes: [{name: none, match: {proto: 200}, meter: m}]
meters: {m: {type: token-bucket, rate: 1mbit, burst: 9kB}}`,
		"keyed": `classes: [{name: all, meter: m, red: drop}]
meters: {m: {type: srtcm, cir: 1mbit, cbs: 9kB, ebs: 9kB, per: src}}`,
		"links": `classes:
  - {name: a, match: {dscp: ef}, green: {queue: a}}
  - {name: b, green: {queue: b}}
  - {name: c, green: {queue: c}}
queues:
  a: {link: up, limit: 20ms}
  b: {link: up, limit: 20ms, fair: flow}
  c: {rate: 1mbit, limit: 20ms}
links: {up: {rate: 500kbit}}`,
		"budget": `classes: [{name: all, meter: m, red: drop}]
meters: {m: {type: token-bucket, rate: 1mbit, burst: 9kB, share: {budget: b, store: host}}}`,
		"packets": `classes: [{name: all, meter: m, red: drop}]
meters: {m: {type: trtcm, count: packets, cir: 100p/1s, cbs: 9, pir: 200p/1s, pbs: 9}}`,
		"windows": `classes: [{name: all, meter: m, red: drop}]
meters: {m: {type: sliding-log, limit: 9kB, window: 100ms}}`,
		"customers": `classes: [{name: home, per: customer, meter: plan}, {name: rest}]
customers: {file: customers.csv}
plans: {home: {type: token-bucket, rate: 1mbit, burst: 9kB}, paced: {queue: {rate: 500kbit, limit: 20ms}}}`,
		"many": "classes:\n" + manyClasses(4000),
	} {
		policy := file(name+".yaml", policy+"\n")
		for _, capture := range append(slices.Clone(odd), shipped[0], shipped[len(shipped)-1]) {
			if name != "many" || capture == shipped[0] {
				replay(policy, capture)
			}
		}
	}
	r := seededRand(t)
	for i := range *randomPolicyCount / 6 {
		text := randomPolicy(r, "wan", "lan")
		replay(file(fmt.Sprintf("random %d.yaml", i), text), randomCapture(t, r))
		customers, path := randomCustomers(t, r, "wan", "lan")
		replay(path, customerCapture(t, r))
		if t.Failed() {
			t.Fatal(text, customers)
		}
	}
	for _, capture := range slices.Concat(shipped, odd) {
		open("comparison of "+filepath.Base(capture), "compare", capture, "--rate", "800kbit")
		open("gcra of "+filepath.Base(capture), "compare", capture, "--meter", "gcra rate=1mbit burst=9kB")
	}
}

// manyClasses is a list of n classes, one a port, each with a meter.
func manyClasses(n int) string {
	var b strings.Builder
	for i := range n {
		const meter = "{type: token-bucket, rate: 1mbit, burst: 9kB}"
		fmt.Fprintf(&b, "  - {name: p%d, match: {dport: %d}, meter: %s}\n", i, i, meter)
	}
	return b.String() + "  - {name: rest}\n"
}

// smallCapture is a capture of UDP packets over IPv4 on Ethernet, each with an EtherType, at one time.
func smallCapture(types ...uint16) string {
	c := newIPCapture()
	c.file[20] = 1 // Ethernet
	for _, kind := range types {
		frame := append(make([]byte, 12), byte(kind>>8), byte(kind), 0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0)
		frame = append(frame, 192, 0, 2, 1, 203, 0, 113, 1, 0, 9, 0, 9, 0, 8, 0, 0)
		c.file = append(c.file, 0, 0, 0, 0, 0, 0, 0, 0, byte(len(frame)), 0, 0, 0, byte(len(frame)), 0, 0, 0)
		c.file = append(c.file, frame...)
	}
	return string(c.file)
}
