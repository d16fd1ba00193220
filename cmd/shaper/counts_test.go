package main

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/cli"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/summary"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

// TestCountsAreTheRows compares the counts of replay --json with the rows of --decisions, which
// other tests compare with the reference model.
func TestCountsAreTheRows(t *testing.T) {
	capture, path := randomCapture(t, rand.New(rand.NewPCG(1, 0))), filepath.Join(t.TempDir(), "policy.yaml")
	engines := []string{"go"}
	if os.Geteuid() == 0 {
		engines = append(engines, "bpf")
	}
	for name, policy := range map[string]string{
		"action": `
classes:
  - name: tcp
    match: {proto: tcp}
    meter: {type: trtcm, cir: 1mbit, cbs: 3000, pir: 2mbit, pbs: 6000}
    yellow: {ecn: ce, dscp: af12}
    red: {ecn: ce, else: drop}
  - {name: udp, match: {proto: udp}, green: {ecn: ce}}`,
		"queue": `
queues:
  early: {rate: 3mbit, limit: 60ms, ecn: true, wred: {green: {min: 0ms, max: 40ms, probability: 0.9}}}
  stale: {rate: 3mbit, limit: 60ms, ecn: true, codel: {target: 100us, interval: 1ms}, fair: false}
classes:
  - {name: tcp, match: {proto: tcp}, green: {queue: early}}
  - {name: udp, match: {proto: udp}, green: {queue: stale, dscp: af11}}`,
	} {
		if err := os.WriteFile(path, []byte(policy), 0o600); err != nil {
			t.Fatal(err)
		}
		for _, engine := range engines {
			rows := filepath.Join(t.TempDir(), "rows.csv")
			var out, stderr bytes.Buffer
			if code := run(
				[]string{"replay", capture, "-p", path, "--engine", engine, "--json", "--decisions", rows},
				cli.Streams{Out: &out, Err: &stderr}); code != cli.ExitDone {
				t.Fatalf("%s, %s: exit %d: %s", name, engine, code, &stderr)
			}
			want := countRows(t, rows)
			if want["ce"]["tcp"] == 0 || want["ce"]["udp"] == 0 ||
				want["drop"]["tcp"]+want["drop"]["udp"] == 0 || want["mark"]["tcp"]+want["mark"]["udp"] == 0 {
				t.Errorf("%s, %s: a count is missing in the rows: %v", name, engine, want)
			}
			var got summary.Totals
			if err := json.Unmarshal(out.Bytes(), &got); err != nil {
				t.Fatal(err)
			}
			for _, class := range got.Classes {
				for what, n := range map[string]dataplane.Count{
					"drop": class.Dropped, "mark": class.Marked, "ce": class.CE, "queue": class.Queued,
				} {
					if n.Packets != want[what][class.Name] {
						t.Errorf("%s, %s: class %s counts %d of %s, its rows %d", name, engine, class.Name,
							n.Packets, what, want[what][class.Name])
					}
				}
			}
		}
	}
}

// countRows counts the rows of decisions by action and class.
func countRows(t *testing.T, path string) map[string]map[string]int64 {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	rows, err := csv.NewReader(file).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	class, action := slices.Index(rows[0], "class"), slices.Index(rows[0], "action")
	out := map[string]map[string]int64{"drop": {}, "mark": {}, "ce": {}, "queue": {}}
	for _, row := range rows[1:] {
		for _, what := range strings.Split(row[action], "+") {
			if what == "ecn" {
				what = "ce"
			}
			if out[what] != nil {
				out[what][row[class]]++
			}
		}
	}
	return out
}

// TestTableShowsCE checks that the table of replay has a column for CE marks if there are any.
func TestTableShowsCE(t *testing.T) {
	capture := randomCapture(t, rand.New(rand.NewPCG(1, 0)))
	for action, want := range map[string]bool{"pass": false, "ecn=ce": true} {
		var out, stderr bytes.Buffer
		args := []string{
			"replay", capture, "--meter", "token-bucket rate=1gbit burst=1MiB", "--green", action, "--red",
			"pass",
		}
		if code := run(args, cli.Streams{Out: &out, Err: &stderr}); code != cli.ExitDone {
			t.Fatalf("exit %d: %s", code, &stderr)
		}
		lines := strings.Split(out.String(), "\n")
		columns := strings.Fields(lines[0])
		if got := slices.Contains(columns, "ce"); got != want {
			t.Errorf("%s: columns %v", action, columns)
		}
		if !want {
			continue
		}
		row := strings.Fields(lines[2])
		if n, err := strconv.Atoi(strings.ReplaceAll(row[len(row)-1], ",", "")); err != nil || n == 0 {
			t.Errorf("%s: row %v", action, row)
		}
	}
}
