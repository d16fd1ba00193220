package main

import (
	"bytes"
	"encoding/csv"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/cli"
)

// reversed returns a capture of writeTraffic with the addresses of all packets swapped: they come from the
// customers.
func reversed(t *testing.T, capture string) string {
	t.Helper()
	data, err := os.ReadFile(capture)
	if err != nil {
		t.Fatal(err)
	}
	const header, record, captured, source = 24, 16, 28, 12
	for at := header + record + source; at+8 <= len(data); at += record + captured {
		var from [4]byte
		copy(from[:], data[at:])
		copy(data[at:], data[at+4:at+8])
		copy(data[at+4:], from[:])
	}
	path := filepath.Join(t.TempDir(), "reversed.pcap")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// sentBefore replays a capture and returns the bytes of each customer whose sending starts before a time,
// ns since the beginning.
func sentBefore(
	t *testing.T, capture, policy, direction string, time int64, flags ...string,
) map[string]int64 {
	t.Helper()
	var out, stderr bytes.Buffer
	if code := run(append([]string{
		"replay", capture, "--policy", policy, "--direction", direction, "--decisions", "-",
	}, flags...), cli.Streams{Out: &out, Err: &stderr}); code != cli.ExitDone {
		t.Fatalf("exit %d: %s", code, &stderr)
	}
	rows, err := csv.NewReader(&out).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	const length, action, departure = 2, 6, 9
	sent := map[string]int64{}
	for _, row := range rows[1:] {
		if row[action] != "queue" {
			continue
		}
		n, err := strconv.ParseInt(row[length], 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		at, err := strconv.ParseInt(row[departure], 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		if at-1_767_225_600e9 < time {
			sent[row[decisionKey]] += n
		}
	}
	return sent
}

// TestLibreQoSEndToEnd imports docs/libreqos by the command, checks the result, and overloads both circuits
// in both directions. By their rows in ShapedDevices.csv, circuit 4711 has at most 105 Mbit/s down and 18
// up, and at least 1 and 1; 4712 at most 105 and 50, and at least 10 and 5. Their node AP-1 has 200 and 100.
// Down, AP-1 gives each its minimum, and half of the other 189 Mbit/s, as their weights are equal: 95.5 and
// 104.5. Up, the maximums of both fit into AP-1.
func TestLibreQoSEndToEnd(t *testing.T) {
	t.Parallel()
	policy := filepath.Join(t.TempDir(), "isp.yaml")
	command := func(args ...string) string {
		t.Helper()
		var out, stderr bytes.Buffer
		if code := run(args, cli.Streams{Out: &out, Err: &stderr}); code != cli.ExitDone {
			t.Fatalf("%s: exit %d: %s", args[0], code, &stderr)
		}
		return out.String()
	}
	command("import", "--from", "libreqos", "../../docs/libreqos/network.json", "-o", policy)
	checked := command("check", "--strict", policy)
	for _, want := range []string{"\nlink North\n", "\nlink North, up\n", "rate         105mbit", "rate up      50mbit"} {
		if !strings.Contains(checked, want) {
			t.Errorf("check does not print %q:\n%s", want, checked)
		}
	}
	down := writeTraffic(t, sender{2, 300}, sender{3, 300})
	const (
		length = 1200
		end    = 900_000_000 // ns, while both are backlogged
		levels = 3           // AP-1 is on the second, circuits on the third
	)
	bytes := func(mbit float64) int64 { return int64(mbit * 1e6 / 8 * end / 1e9) }
	for _, test := range []struct {
		direction, capture string
		rates              map[string]float64 // Mbit/s
	}{
		{"egress", down, map[string]float64{"4711": 95.5, "4712": 104.5}},
		{"ingress", reversed(t, down), map[string]float64{"4711": 18, "4712": 50}},
	} {
		sent := sentBefore(t, test.capture, policy, test.direction, end)
		total, all := int64(0), 0.0
		for customer, rate := range test.rates {
			total, all = total+sent[customer], all+rate
			// A node lags a link of its own rate by at most a packet for each level, from its first packet
			// on, and AP-1 can only give one what the other lags.
			least := bytes(rate) - levels*length - int64(rate*1e6/8*1e-4)
			most := bytes(rate) + 2*levels*length
			if got := sent[customer]; got < least || got > most {
				t.Errorf("%s: %s sent %d bytes, want %d to %d", test.direction, customer, got, least, most)
			}
		}
		if most := bytes(all) + 2*length; test.direction == "egress" && total > most {
			t.Errorf("%s: AP-1 sent %d bytes, more than %d", test.direction, total, most)
		}
	}
	changes := filepath.Join(t.TempDir(), "changes")
	const lines = "at=0s customer 4712 down=40mbit up=20mbit\nat=0s link AP-1 up=30mbit\n"
	if err := os.WriteFile(changes, []byte(lines), 0o600); err != nil {
		t.Fatal(err)
	}
	// Up, AP-1 has 30 now: after 1 and 5 Mbit/s, 4711 gets 12 of the other 24, and 4712 the same.
	for _, test := range []struct {
		direction, capture string
		rates              map[string]float64
	}{
		{"egress", down, map[string]float64{"4711": 105, "4712": 40}},
		{"ingress", reversed(t, down), map[string]float64{"4711": 13, "4712": 17}},
	} {
		sent := sentBefore(t, test.capture, policy, test.direction, end, "--changes", changes)
		for customer, rate := range test.rates {
			if got, want := sent[customer], bytes(rate); got < want-40_000 || got > want+40_000 {
				t.Errorf("after a change, %s: %s sent %d bytes, want %d", test.direction, customer, got, want)
			}
		}
	}
	if sent := sentBefore(t, down, policy, "ingress", end); len(sent) != 0 {
		t.Errorf("as packets from the customers, those to them were queued: %v", sent)
	}
}
