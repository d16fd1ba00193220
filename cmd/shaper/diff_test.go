package main

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/cli"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/diff"
	"github.com/a-seed-32e5a53f/shaper/dataplane/nettest"
)

// diffJSON runs shaper diff --json.
func diffJSON(t *testing.T, args ...string) diff.Result {
	t.Helper()
	var out, stderr bytes.Buffer
	if code := run(append([]string{"diff", "--json"}, args...),
		cli.Streams{Out: &out, Err: &stderr}); code != cli.ExitDone {
		t.Fatalf("%q: exit %d: %s", args, code, &stderr)
	}
	var got diff.Result
	if err := json.Unmarshal(out.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	return got
}

// decisionRows returns the rows of replay --decisions, without the header.
func decisionRows(t *testing.T, args ...string) [][]string {
	t.Helper()
	var out, stderr bytes.Buffer
	if code := run(append([]string{"replay", "--decisions", "-"}, args...),
		cli.Streams{Out: &out, Err: &stderr}); code != cli.ExitDone {
		t.Fatalf("%q: exit %d: %s", args, code, &stderr)
	}
	rows, err := csv.NewReader(&out).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	return rows[1:]
}

// Columns of replay --decisions.
const (
	columnPacket, columnLength, columnClass, columnColor, columnAction = 0, 2, 3, 5, 6
	columnDSCP, columnDeparture, columnReason                          = 8, 9, 10
)

// TestDiffAsReplays compares the differences of fates with those between two separate replays, row
// by row.
func TestDiffAsReplays(t *testing.T) {
	t.Parallel()
	policies, err := filepath.Glob("internal/oracle/testdata/*.yaml")
	if err != nil || len(policies) < 10 {
		t.Fatal(policies, err)
	}
	policies = append(policies, "../../docs/customer.yaml", "../../docs/link.yaml", "../../docs/isp.yaml")
	pairs, different := 0, 0
	captures := []string{"voice-bulk.pcapng", "back.pcap", "office.pcap", "cooked.pcapng", "border.pcap"}
	if !nettest.Deep() {
		captures = captures[:2]
	}
	for _, capture := range captures {
		capture = "../../testdata/pcaps/" + capture
		for i, a := range policies {
			b := policies[(i+1+len(capture))%len(policies)] // another partner for each capture
			direction := []string{"egress", "ingress"}[i%2]
			if replays(capture, a) && replays(capture, b) {
				pairs++
				different += checkDiff(t, capture, a, b, direction)
			}
		}
	}
	if pairs < 10*len(captures) || different < 200*len(captures) {
		t.Errorf("only %d pairs with %d packets of other fates", pairs, different)
	}
}

// replays reports whether the policy accepts the capture.
func replays(capture, policy string) bool {
	var out, stderr bytes.Buffer
	return run([]string{"replay", capture, "--policy", policy},
		cli.Streams{Out: &out, Err: &stderr}) == cli.ExitDone
}

// checkDiff compares shaper diff with two replays, and returns the number of packets with another
// fate.
func checkDiff(t *testing.T, capture, a, b, direction string) int {
	t.Helper()
	got := diffJSON(t, a, b, capture, "--direction", direction).Capture
	from := decisionRows(t, capture, "--policy", a, "--direction", direction)
	to := decisionRows(t, capture, "--policy", b, "--direction", direction)
	fate := func(row []string) []string {
		return []string{row[columnColor], row[columnAction], row[columnDSCP], row[columnDeparture]}
	}
	want, packets, size := map[string][2]int64{}, []string{}, int64(0)
	var onlyA, onlyB int64
	for i, row := range from {
		other := to[i]
		length, _ := strconv.ParseInt(row[columnLength], 10, 64)
		size += length
		if slices.Equal(fate(row), fate(other)) {
			continue
		}
		key := strings.Join([]string{
			row[columnClass], row[columnColor], row[columnAction], other[columnClass], other[columnColor],
			other[columnAction],
		}, " ")
		want[key] = [2]int64{want[key][0] + 1, want[key][1] + length}
		packets = append(packets, strings.Join([]string{
			row[columnPacket], row[columnReason], row[columnDeparture], other[columnReason],
			other[columnDeparture],
		}, " "))
		if dropA, dropB := row[columnAction] == "drop", other[columnAction] == "drop"; dropA && !dropB {
			onlyA++
		} else if dropB && !dropA {
			onlyB++
		}
	}
	rows, changed := map[string][2]int64{}, int64(0)
	for _, r := range got.Matrix {
		if !shown(r.Differs) {
			continue
		}
		key := strings.Join(
			[]string{r.From.Class, r.From.Color, r.From.Action, r.To.Class, r.To.Color, r.To.Action}, " ")
		rows[key] = [2]int64{rows[key][0] + r.Packets, rows[key][1] + r.Bytes}
		changed += r.Packets
	}
	if !maps.Equal(rows, want) || changed != int64(len(packets)) || got.Packets != int64(len(from)) ||
		got.Bytes != size || got.OnlyA.Packets != onlyA || got.OnlyB.Packets != onlyB {
		t.Errorf("%s, %s, %s: %d of %d packets, %v; %d and %d dropped by one only\nreplays: %d of %d, %v; %d and %d",
			capture, a, b, changed, got.Packets, rows, got.OnlyA.Packets, got.OnlyB.Packets, len(packets),
			len(from), want, onlyA, onlyB)
	}
	text := func(n *int64) string {
		if n == nil {
			return ""
		}
		return fmt.Sprint(*n)
	}
	var first []string
	for _, p := range got.First {
		if shown(p.Differs) {
			first = append(first, strings.Join([]string{
				fmt.Sprint(p.Packet), p.From.Reason, text(p.From.DepartureNS), p.To.Reason,
				text(p.To.DepartureNS),
			}, " "))
		}
	}
	if n := min(10, len(packets)); len(first) == len(got.First) && !slices.Equal(first, packets[:n]) {
		t.Errorf("%s, %s, %s: first %v\nreplays: %v", capture, a, b, first, packets[:n])
	}
	return len(packets)
}

// shown reports whether rows of decisions show a difference.
func shown(differs []string) bool {
	return slices.ContainsFunc([]string{"color", "action", "dscp", "departure"},
		func(word string) bool { return slices.Contains(differs, word) })
}

// TestDiffMarks checks marks that the DSCP does not show, and the commands that explain a packet.
func TestDiffMarks(t *testing.T) {
	dir := t.TempDir()
	file := func(name, policy string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(policy), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	a := file("it's a.yaml", "classes: [{name: a, green: {mark: 1}}]")
	b := file("b.yaml", "classes: [{name: a, green: {mark: 2}}]")
	const capture = "../../testdata/pcaps/office.pcap"
	got := diffJSON(t, a, b, capture).Capture
	if len(got.Matrix) != 1 || got.Matrix[0].Differs[0] != "mark" || got.Differ.Packets == 0 {
		t.Errorf("%+v", got.Matrix)
	}
	if got := diffJSON(t, a, a, capture); len(got.Changes)+len(got.Capture.Matrix) != 0 {
		t.Errorf("a policy differs from itself: %+v", got)
	}
	var out bytes.Buffer
	if code := run([]string{"diff", a, b, capture, "--direction", "ingress"},
		cli.Streams{Out: &out, Err: &out}); code != cli.ExitDone {
		t.Fatal(&out)
	}
	want := "  shaper why " + capture + " 1 --direction ingress --policy '" +
		strings.ReplaceAll(a, "'", `'\''`) + "'\n"
	if !strings.Contains(out.String(), want) {
		t.Errorf("%s\nlacks %s", &out, want)
	}
}

// TestDiffCommand checks exit codes and messages.
func TestDiffCommand(t *testing.T) {
	dir := t.TempDir()
	broken := filepath.Join(dir, "broken.pcap")
	text, err := os.ReadFile("../../testdata/pcaps/office.pcap")
	if err == nil {
		err = os.WriteFile(broken, text[:len(text)-10], 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	const one, two = "token-bucket rate=1mbit burst=20ms", "token-bucket rate=2mbit burst=20ms"
	for _, tt := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{one, one}, cli.ExitDone, "the policies are the same\n"},
		{[]string{one, two}, cli.ExitDone, "class all: rate: 1mbit -> 2mbit\nclass all: burst: 2500 B (20 ms) -> 5000 B (20 ms)\n"},
		{[]string{one, one, "../../testdata/pcaps/office.pcap"}, cli.ExitDone, "all have the same fate\n"},
		{[]string{one}, cli.ExitUsage, "want two policies"},
		{[]string{one, "missing.yaml"}, cli.ExitUsage, `policy "missing.yaml": no such file`},
		{[]string{one, "token-bucket rate=1"}, cli.ExitUsage, "--meter:1:"},
		{[]string{one, two, "missing.pcap"}, cli.ExitFailed, `capture "missing.pcap"`},
		{[]string{one, two, broken}, cli.ExitFailed, "packets before that were compared"},
	} {
		var out bytes.Buffer
		if code := run(append([]string{"diff"}, tt.args...),
			cli.Streams{In: strings.NewReader(""), Out: &out, Err: &out}); code != tt.code ||
			!strings.Contains(out.String(), tt.want) {
			t.Errorf("%q: exit %d: %s\nwant %d with %q", tt.args, code, &out, tt.code, tt.want)
		}
	}
}
