package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/cli"
)

// TestReportCustomers writes a report of customers with a meter and with a queue. The report has
// the meter that all customers share, and none of single customers. A queue of the policy has only
// the packets that a plan sends there.
func TestReportCustomers(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"policy.yaml": `classes:
  - {name: customers, per: customer, meter: plan, then: uplink, green: {queue: unused}}
  - {name: strangers}
customers: {file: customers.csv}
plans:
  metered: {type: token-bucket, rate: 100kbit, burst: 2kB, green: pass, red: {queue: excess}}
  paced: {queue: {rate: 500kbit, limit: 20ms}}
queues:
  unused: {rate: 1gbit, limit: 20ms}
  excess: {rate: 200kbit, limit: 100ms}
meters:
  uplink: {type: token-bucket, rate: 100mbit, burst: 64kB, color: aware}
`,
		"customers.csv": "customer,address,plan\na,203.0.113.52,metered\nb,203.0.113.53,paced\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	path := filepath.Join(dir, "report.html")
	var stdout, stderr bytes.Buffer
	args := []string{
		"replay", "../../testdata/pcaps/voice-bulk.pcapng", "--policy", filepath.Join(dir, "policy.yaml"),
		"--report", path, "--json",
	}
	if code := run(args, cli.Streams{Out: &stdout, Err: &stderr}); code != cli.ExitDone {
		t.Fatalf("exit %d: %s", code, &stderr)
	}
	// 164 packets are for a, 128 for b. Some of each are dropped, and some of b are queued.
	class, _, _ := strings.Cut(stdout.String(), `{"name":"strangers"`)
	if strings.Contains(class, `"dropped":{"packets":0,`) ||
		strings.Contains(class, `"queued":{"packets":0,`) {
		t.Errorf("counted %s: want dropped and queued packets", class)
	}
	html, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(html), `id="series">`)
	var series struct {
		Queues []struct{ Delay, Waiting []int64 }
	}
	if err := json.NewDecoder(strings.NewReader(text)).Decode(&series); err != nil ||
		len(series.Queues) != 2 {
		t.Fatalf("%d queues, %v", len(series.Queues), err)
	}
	for i, used := range []bool{false, true} {
		if q := series.Queues[i]; (slices.Max(q.Delay) > 0) != used || (slices.Max(q.Waiting) > 0) != used {
			t.Errorf("queue %d: got %v, want packets: %v", i, q, used)
		}
	}
	// The shared meter has a chart of its level, and a line in the chart of the class's rate.
	for want, times := range map[string]int{
		"the meter of the customer's plan": 1, "rate 100mbit": 2, "rate 100kbit": 0,
	} {
		if n := strings.Count(strings.ReplaceAll(string(html), "&#39;", "'"), want); n != times {
			t.Errorf("the report has %q %d times, want %d", want, n, times)
		}
	}
}
