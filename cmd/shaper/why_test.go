package main

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/cli"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/explain"
	"github.com/a-seed-32e5a53f/shaper/dataplane/nettest"
)

// whyJSON runs why --json.
func whyJSON(t *testing.T, capture string, n int, policy ...string) *explain.Explanation {
	t.Helper()
	var stdout, stderr bytes.Buffer
	args := append([]string{"why", capture, strconv.Itoa(n), "--json"}, policy...)
	if code := run(args, cli.Streams{Out: &stdout, Err: &stderr}); code != cli.ExitDone {
		t.Fatalf("%v: exit %d: %s", args, code, &stderr)
	}
	var out explain.Explanation
	d := json.NewDecoder(&stdout)
	d.DisallowUnknownFields()
	if err := d.Decode(&out); err != nil {
		t.Fatal(err)
	}
	return &out
}

// decisionsOf returns the rows of a replay.
func decisionsOf(t *testing.T, capture string, policy ...string) (rows []explain.Row) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "rows.jsonl")
	var stdout, stderr bytes.Buffer
	args := append([]string{"replay", capture, "--decisions", path}, policy...)
	if code := run(args, cli.Streams{Out: &stdout, Err: &stderr}); code != cli.ExitDone {
		t.Fatalf("%v: exit %d: %s", args, code, &stderr)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		var row explain.Row
		if err := json.Unmarshal(lines.Bytes(), &row); err != nil {
			t.Fatal(err)
		}
		rows = append(rows, row)
	}
	return rows
}

// TestWhyAgainstDecisions compares the output of why with the rows of a replay, packet by
// packet, and checks that its explanations agree with the rows.
func TestWhyAgainstDecisions(t *testing.T) {
	t.Parallel()
	links := filepath.Join(t.TempDir(), "links.yaml")
	if err := os.WriteFile(links, []byte(linkPolicy), 0o600); err != nil {
		t.Fatal(err)
	}
	policies, err := filepath.Glob("internal/oracle/testdata/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	policies = append(policies, "../../docs/customer.yaml", "../../docs/link.yaml", links)
	reasons := map[string]int{}
	t.Cleanup(func() {
		for _, want := range []string{
			"rfc2697-red", "rfc2698-red", "rfc4115-yellow", "token-bucket-red", "no-meter", "not-ip", "malformed", "queue-full", "wred", "codel",
		} {
			if reasons[want] == 0 {
				t.Errorf("no packet had the reason %s", want)
			}
		}
	})
	for _, policy := range policies {
		for name, step := range map[string]int{
			"edges.pcap": 5, "cooked.pcapng": 7, "back.pcap": 4, "bursts.pcap": 71, "voice-bulk.pcapng": 73,
			"tags.pcap": 23,
		} {
			if name == "cooked.pcapng" && strings.Contains(policy, "ethernet") {
				continue // replay rejects the capture
			}
			if !nettest.Deep() {
				step *= 4
			}
			rows := whyAgainstDecisions(t, policy, filepath.Join("../../testdata/pcaps", name), step)
			for _, row := range rows {
				reasons[row.Reason]++
			}
		}
	}
}

// TestWhyRandom is TestWhyAgainstDecisions for random policies.
func TestWhyRandom(t *testing.T) {
	r, path := seededRand(t), filepath.Join(t.TempDir(), "policy.yaml")
	for range max(*randomPolicyCount/20, 1) {
		policy := randomPolicy(r, "wan", "lan")
		if err := os.WriteFile(path, []byte(policy), 0o600); err != nil {
			t.Fatal(err)
		}
		whyAgainstDecisions(t, path, randomCapture(t, r), 10+r.IntN(40))
		if t.Failed() {
			t.Fatal(policy)
		}
	}
}

// whyAgainstDecisions checks every step-th packet, and returns the rows of these packets.
func whyAgainstDecisions(t *testing.T, policy, capture string, step int) (asked []explain.Row) {
	t.Helper()
	rows := decisionsOf(t, capture, "--policy", policy)
	for n := 1; n <= len(rows); n += step {
		asked = append(asked, rows[n-1])
		got := whyJSON(t, capture, n, "--policy", policy)
		if !reflect.DeepEqual(got.Row, rows[n-1]) {
			t.Errorf("%s, %s, packet %d:\n%+v, decided\n%+v", policy, capture, n, got.Row, rows[n-1])
		}
		for _, fault := range contradictions(got) {
			t.Errorf("%s, %s, packet %d: %s: %+v", policy, capture, n, fault, got)
		}
	}
	return asked
}

// contradictions returns the parts of an explanation that contradict the packet's row.
func contradictions(t *explain.Explanation) (out []string) {
	expect := func(ok bool, what string) {
		if !ok {
			out = append(out, what)
		}
	}
	if n := len(t.Meters); n > 0 {
		last := t.Meters[n-1]
		expect(t.Meters[0].In == t.Pre, "the first meter's color before")
		expect(last.Color == t.Color, "the last meter's color")
		overridden := t.Reason == "queue-full" || t.Reason == "wred" || t.Reason == "codel"
		expect(overridden || last.Clause == t.Reason, "the last meter's clause")
	} else {
		expect(t.Color == "" || t.NoMeter != "" && t.Color == t.Pre, "a color without a meter")
	}
	expect((t.Class == "-") == (t.Place == ""), "the class's place")
	expect(t.Why != "" && t.Headers != "", "an empty text")
	expect(!strings.Contains(t.Why, "end of time"), "a full queue whose limit was not found")
	expect(t.Reason != "wred" || t.Queue.Early != "", "WRED without a chance")
	expect(t.Reason != "wred" || !strings.Contains(t.Queue.Early, "spared"),
		"WRED that spared a dropped packet")
	expect(t.Action == "drop" || !strings.Contains(earlyOf(t.Queue), "certain"),
		"certain WRED that dropped nothing")
	if t.DepartureNS != nil && t.Queue != nil {
		expect(*t.DepartureNS == t.ClockNS+*t.Queue.WaitNS, "the wait")
		expect(*t.Queue.WaitNS > 0 || t.Queue.Packets == 0, "no wait behind others")
	}
	for _, m := range t.Missed {
		expect(m.Key != "" && m.Wants != "" && m.Has != "", "a class before without what it missed")
	}
	var page bytes.Buffer
	expect(t.Write(&page, false) == nil, "a failed write")
	for line := range strings.Lines(page.String()) {
		line = strings.TrimSuffix(line, "\n")
		words := strings.Fields(line)
		long := utf8.RuneCountInString(line) > explain.Width && len(words) > 2 // a single word may be longer
		expect(!long, fmt.Sprintf("a line of %d: %q", utf8.RuneCountInString(line), line))
		expect(line == strings.TrimRight(line, " "), "spaces at the end of a line")
	}
	return out
}

func earlyOf(q *explain.QueuedJSON) string {
	if q == nil {
		return ""
	}
	return q.Early
}

// TestWhyOtherClock checks that the time of the clock is the timestamp of the packet that set it,
// although the explained packet is of another clock.
func TestWhyOtherClock(t *testing.T) {
	order := binary.LittleEndian
	raw := order.AppendUint32(nil, 0xa1b2c3d4)
	for _, v := range []uint32{2 | 4<<16, 0, 0, 1 << 18, 1} { // Ethernet
		raw = order.AppendUint32(raw, v)
	}
	for _, ms := range []uint32{100_000, 90_000, 100_500, 90_300} {
		for _, v := range []uint32{ms / 1000, ms % 1000 * 1000, 60, 60} {
			raw = order.AppendUint32(raw, v)
		}
		raw = append(raw, make([]byte, 60)...)
	}
	path := filepath.Join(t.TempDir(), "clocks.pcap")
	if err := os.WriteFile(path, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	var stdout, stderr bytes.Buffer
	if code := run([]string{"why", path, "4", "--rate", "1mbit"},
		cli.Streams{Out: &stdout, Err: &stderr}); code != cli.ExitDone {
		t.Fatalf("exit %d: %s", code, &stderr)
	}
	got := strings.Join(strings.Fields(stdout.String()), " ")
	want := "packet 4 arrived 1970-01-01T00:01:30.300000000Z, 300ms after packet 1 the clock of the capture has been set back by 10s: its time is shifted by that " +
		"its timestamp is 200ms behind the clock, which packet 3 set to 1970-01-01T00:01:40.500000000Z: meters"
	if !strings.HasPrefix(got, want) {
		t.Errorf("got %s\nwant %s ...", got, want)
	}
}

// TestWhyVerbose checks that the layers of every kind of packet are printed, and only if wanted.
func TestWhyVerbose(t *testing.T) {
	for _, capture := range testCaptures(t) {
		var out, stderr bytes.Buffer
		code := run([]string{"why", capture, "1", "--green", "pass", "--verbose"},
			cli.Streams{Out: &out, Err: &stderr})
		if code == cli.ExitDone && !strings.Contains(out.String(), "\nlayers    ") {
			t.Errorf("%s: no layers in\n%s", capture, &out)
		}
	}
	const capture = "../../testdata/pcaps/voice-bulk.pcapng"
	if got := whyJSON(t, capture, 38, "--green", "pass", "--verbose").Layers; len(got) != 4 ||
		got[1].Type != "IPv4" || got[1].Bytes != 20 || !strings.Contains(got[1].Fields, "SrcIP=192.0.2.15 ") {
		t.Errorf("layers %+v", got)
	}
	if got := whyJSON(t, capture, 38, "--green", "pass").Layers; got != nil {
		t.Errorf("without --verbose: %+v", got)
	}
}
