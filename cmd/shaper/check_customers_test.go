package main

import (
	"bytes"
	"errors"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/cli"
)

// TestCheckRules checks the description of quotas and schedules, and that replay and why warn
// about them once.
func TestCheckRules(t *testing.T) {
	text, err := os.ReadFile("../../docs/quotas.yaml")
	if err != nil {
		t.Fatal(err)
	}
	text = bytes.Replace(bytes.ReplaceAll(text, []byte("Europe/Berlin"), []byte("local")),
		[]byte("then: slow, zone: local"), []byte("then: slow"), 1)
	dir := t.TempDir()
	path := dir + "/quotas.yaml"
	csv, err := os.ReadFile("../../docs/quotas.csv")
	if err == nil {
		err = errors.Join(os.WriteFile(path, text, 0o644), os.WriteFile(dir+"/quotas.csv", csv, 0o644))
	}
	if err != nil {
		t.Fatal(err)
	}
	const capture = "../../testdata/pcaps/bursts.pcap"
	const warning = "shaper: warning: quotas and schedules of plans are not applied in a replay: each customer has its own plan\n"
	for _, test := range []struct {
		args string
		want []string
	}{
		{"check " + path, []string{
			"\n  replay  ignores the quotas and schedules of plans\n",
			"\n  quota   500,000,000,000 B every month (UTC), then plan slow; 1 customer with an own limit\n  when    22:00-06:00 (local): plan night\n",
		}},
		{"check " + path, []string{
			"\nplan home-50\n  used    by 2 customers\n  meter",
			"\nplan night\n  used    by 0 customers; selected by plan home-50\n",
			"\nplan slow\n  used    by 0 customers; selected by plan home-50\n",
		}},
		{"check --json " + path, []string{
			`"quota":{"limit_bytes":500000000000,"every":"month","zone":"UTC","then":"slow","customers_with_own_limit":1},"when":[{"at":"22:00-06:00","zone":"local","plan":"night"}]},{"name":"night"`,
		}},
		{"replay --policy " + path + " " + capture, []string{warning}},
		{"why --policy " + path + " " + capture + " 1", []string{warning}},
	} {
		var out, errs bytes.Buffer
		if code := run(strings.Fields(test.args), cli.Streams{Out: &out, Err: &errs}); code != 0 {
			t.Errorf("%s: code %d: %s", test.args, code, errs.String())
		}
		for _, want := range test.want {
			if n := strings.Count(out.String()+errs.String(), want); n != 1 {
				t.Errorf("%s prints\n%s%s, want once\n%s", test.args, out.String(), errs.String(), want)
			}
		}
	}
	var errs bytes.Buffer
	if code := run([]string{"replay", "--policy", "../../docs/isp.yaml", capture},
		cli.Streams{Out: io.Discard, Err: &errs}); code != 0 {
		t.Errorf("code %d", code)
	}
	if strings.Contains(errs.String(), "quotas") {
		t.Errorf("a policy without quotas: %s", errs.String())
	}
}
