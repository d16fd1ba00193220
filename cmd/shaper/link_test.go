package main

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/cli"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/summary"
)

// linkPolicy puts each color into its own queue of one link. At the link's rate, no packet
// takes a whole number of nanoseconds.
const linkPolicy = `classes:
  - name: all
    meter: {type: trtcm, cir: 3mbit, cbs: 16KiB, pir: 6mbit, pbs: 32KiB}
    green: {queue: gold}
    yellow: {queue: silver}
    red: {queue: bronze}
queues:
  gold: {link: wan, limit: 64KiB}
  silver: {link: wan, priority: 1, weight: 3, limit: 100p, wred: {yellow: {min: 5p, max: 50p, probability: 0.2}}}
  bronze: {link: wan, priority: 1, limit: 50ms, codel: {target: 5ms, interval: 20ms}}
links:
  wan: {rate: 7mbit}
`

// linkRow is a row of --decisions.
type linkRow struct {
	number, now, length, departure int64
	color, reason                  string
	dropped                        bool
}

func linkRows(t *testing.T, text string) []linkRow {
	t.Helper()
	table, err := csv.NewReader(strings.NewReader(text)).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	var rows []linkRow
	number := func(s string) int64 {
		n, err := strconv.ParseInt(s, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	for _, f := range table[1:] {
		r := linkRow{
			number: number(f[0]), now: number(f[1]), length: number(f[2]), color: f[5], reason: f[10],
		}
		switch f[6] {
		case "drop":
			r.dropped = true
		case "queue":
			r.departure = number(f[9])
		default:
			t.Fatalf("packet %d: %s", r.number, f[6])
		}
		rows = append(rows, r)
	}
	return rows
}

// TestLink checks properties of a link that do not depend on the decisions of its queues.
func TestLink(t *testing.T) {
	dir := t.TempDir()
	policy, out := filepath.Join(dir, "p.yaml"), filepath.Join(dir, "out.pcap")
	if err := os.WriteFile(policy, []byte(linkPolicy), 0o600); err != nil {
		t.Fatal(err)
	}
	replayed := func(args ...string) string {
		var stdout, stderr bytes.Buffer
		args = append([]string{"replay", "../../testdata/pcaps/bursts.pcap", "--policy", policy}, args...)
		if code := run(args, cli.Streams{Out: &stdout, Err: &stderr}); code != cli.ExitDone {
			t.Fatalf("exit %d: %s", code, &stderr)
		}
		return stdout.String()
	}
	rows := linkRows(t, replayed("--decisions", "-", "-o", out))
	var sums summary.Totals
	if err := json.Unmarshal([]byte(replayed("--json")), &sums); err != nil {
		t.Fatal(err)
	}

	var left []linkRow
	reasons := map[string]int{}
	for i, r := range rows {
		if r.number != int64(i+1) {
			t.Fatalf("row %d is packet %d", i+1, r.number)
		}
		if r.dropped {
			reasons[r.reason]++
			continue
		}
		if r.departure < r.now {
			t.Errorf("packet %d leaves before it comes", r.number)
		}
		left = append(left, r)
	}
	for _, reason := range []string{"queue-full", "wred", "codel"} {
		if reasons[reason] == 0 {
			t.Errorf("nothing is dropped for %s: the test shows less than it should", reason)
		}
	}

	// Each packet is sent or dropped, and counted.
	file, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	written, err := countPackets(file)
	if all := sums.Classes[0]; err != nil || written != len(left) || all.Queued.Packets != int64(len(left)) ||
		all.Dropped.Packets != int64(len(rows)-len(left)) || all.Packets != int64(len(rows)) {
		t.Errorf("%d rows, %d leave, %d are written (%v); counted %+v", len(rows), len(left), written, err,
			all)
	}

	// The link sends one packet after the other, and is never idle while a packet is queued.
	byDeparture := slices.Clone(left)
	slices.SortStableFunc(byDeparture, func(a, b linkRow) int { return int(a.departure - b.departure) })
	free := new(big.Rat).SetInt64(byDeparture[0].now)
	for _, r := range byDeparture {
		if now := new(big.Rat).SetInt64(r.now); free.Cmp(now) < 0 {
			free = now
		}
		if want := ceilRat(free); r.departure != want {
			t.Fatalf("packet %d leaves at %d, the link is free for it at %d", r.number, r.departure, want)
		}
		free.Add(free, big.NewRat(r.length*8e9, 7e6))
	}

	// A queue keeps the order. gold is never sent after a packet of lower priority that started later.
	last := map[string]int64{}
	for _, r := range left {
		if r.departure <= last[r.color] {
			t.Errorf("%s packet %d overtakes one before it", r.color, r.number)
		}
		last[r.color] = r.departure
		for _, other := range left {
			if r.color == "green" && other.color != "green" && r.now < other.departure-1 &&
				other.departure < r.departure {
				t.Fatalf("packet %d of gold waits while packet %d of %s is sent", r.number, other.number,
					other.color)
			}
		}
	}
}

// ceilRat rounds a rational up.
func ceilRat(r *big.Rat) int64 {
	n := new(big.Int).Add(r.Num(), new(big.Int).Sub(r.Denom(), big.NewInt(1)))
	return n.Div(n, r.Denom()).Int64()
}
