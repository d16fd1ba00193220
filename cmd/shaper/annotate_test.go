package main

import (
	"bytes"
	"encoding/binary"
	"encoding/csv"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/cli"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/pipeline"
	"github.com/a-seed-32e5a53f/shaper/dataplane/replay"
)

// annotated is a packet of an annotated capture.
type annotated struct {
	link    uint16
	time    int64 // ns
	wire    int
	data    []byte
	comment string
}

// readAnnotated reads little-endian pcapng by the specification (draft-ietf-opsawg-pcapng).
func readAnnotated(t *testing.T, raw []byte) (packets []annotated) {
	t.Helper()
	le := binary.LittleEndian
	var links []uint16
	for len(raw) > 0 {
		size := int(le.Uint32(raw[4:]))
		block := raw[:size]
		if size%4 != 0 || int(le.Uint32(block[size-4:])) != size {
			t.Fatalf("block of %d bytes ends with %d", size, le.Uint32(block[size-4:]))
		}
		raw = raw[size:]
		switch body := block[8 : size-4]; le.Uint32(block) {
		case 1:
			links = append(links, le.Uint16(body))
		case 6:
			n := int(le.Uint32(body[12:]))
			p := annotated{
				links[le.Uint32(body)], int64(le.Uint32(body[4:]))<<32 | int64(le.Uint32(body[8:])),
				int(le.Uint32(body[16:])), body[20 : 20+n], "",
			}
			options := body[20+(n+3)&^3:]
			if code, length := le.Uint16(options), int(le.Uint16(options[2:])); code == 1 {
				p.comment = string(options[4 : 4+length])
				if rest := options[4+(length+3)&^3:]; !bytes.Equal(rest, make([]byte, 4)) {
					t.Fatalf("the options end with % x", rest)
				}
			}
			packets = append(packets, p)
		}
	}
	return packets
}

// arrivals are the packets of a capture before they are metered.
func arrivals(t *testing.T, path string) (packets []annotated) {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	pass, err := pipeline.New(&dataplane.Policy{Classes: []dataplane.Class{{Name: "all"}}})
	if err != nil {
		t.Fatal(err)
	}
	_, err = replay.Run(t.Context(), file, replay.Go{Pipeline: pass},
		replay.Config{Each: func(p *dataplane.Packet, _ *dataplane.Verdict) error {
			packets = append(packets, annotated{uint16(p.Link), p.Time, p.WireLen, bytes.Clone(p.Data), ""})
			return nil
		}})
	if err != nil {
		t.Fatal(err)
	}
	return packets
}

// TestAnnotate compares annotated captures with the packets that arrived and the rows of
// --decisions, for marks, drops, queues, links and all link types.
func TestAnnotate(t *testing.T) {
	for _, test := range []struct{ capture, policy string }{
		{"voice-bulk.pcapng", "docs/customer.yaml"},
		{"voice-bulk.pcapng", "docs/link.yaml"},
		{"office.pcap", "docs/uplink.yaml"},
		{"cooked.pcapng", "docs/customer.yaml"},
		{"edges.pcap", "docs/customer.yaml"},
	} {
		t.Run(test.capture+" "+test.policy, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			in := filepath.Join("../../testdata/pcaps", test.capture)
			notes, rows := filepath.Join(dir, "notes.pcapng"), filepath.Join(dir, "rows.csv")
			var out, stderr bytes.Buffer
			if code := run([]string{
				"replay", in, "-p", "../../" + test.policy, "--annotate", notes, "--decisions", rows,
			}, cli.Streams{Out: &out, Err: &stderr}); code != cli.ExitDone {
				t.Fatalf("exit %d: %s", code, &stderr)
			}
			raw, err := os.ReadFile(notes)
			if err != nil {
				t.Fatal(err)
			}
			file, err := os.Open(rows)
			if err != nil {
				t.Fatal(err)
			}
			defer file.Close()
			decided, err := csv.NewReader(file).ReadAll()
			if err != nil {
				t.Fatal(err)
			}
			got, want := readAnnotated(t, raw), arrivals(t, in)
			if len(got) != len(want) || len(decided) != len(want)+1 {
				t.Fatalf("%d packets and %d rows, want %d and a header", len(got), len(decided), len(want))
			}
			for i, p := range got {
				comment := expectedComment(decided[i+1])
				if p.link != want[i].link || p.time != want[i].time || p.wire != want[i].wire ||
					!bytes.Equal(p.data, want[i].data) || !strings.HasPrefix(p.comment, comment) {
					t.Fatalf("packet %d: got %+v, want %+v with %q", i+1, p, want[i], comment)
				}
				marked := decided[i+1][7] != decided[i+1][8] && decided[i+1][6] != "drop"
				if strings.Contains(p.comment, "DSCP") != marked ||
					strings.Contains(p.comment,
						"departs after") != strings.Contains(decided[i+1][6], "queue") {
					t.Errorf("packet %d: %q, row %q", i+1, p.comment, decided[i+1])
				}
			}
			readByTshark(t, notes, got)
		})
	}
}

// expectedComment returns the beginning of the comment for a row of --decisions.
func expectedComment(row []string) string {
	if row[3] == "-" {
		return fmt.Sprintf("shaper: packet %s: unclassified, %s (%s), %s bytes", row[0], row[6], row[10],
			row[2])
	}
	input := ""
	if row[4] != "green" {
		input = ", input color " + row[4]
	}
	return fmt.Sprintf("shaper: packet %s: class %s, %s%s, %s (%s), %s bytes", row[0], row[3], row[5], input,
		row[6], row[10], row[2])
}

// readByTshark checks that Wireshark reads the file, if it is installed.
func readByTshark(t *testing.T, path string, want []annotated) {
	t.Helper()
	if _, err := exec.LookPath("tshark"); err != nil {
		t.Log("not read by Wireshark: apt-get install tshark")
		return
	}
	cmd := exec.Command("tshark", "-r", path, "-T", "fields", "-E", "separator=|", "-e", "frame.number", "-e",
		"frame.len", "-e", "frame.comment")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("tshark: %v: %s", err, &stderr)
	}
	lines := strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
	if len(lines) != len(want) {
		t.Fatalf("tshark reads %d packets, want %d", len(lines), len(want))
	}
	for i, line := range lines {
		if wanted := fmt.Sprintf("%d|%d|%s", i+1, want[i].wire, want[i].comment); line != wanted {
			t.Fatalf("tshark reads %q, want %q", line, wanted)
		}
	}
	if out, err := exec.Command("capinfos", "-c", "-M", path).CombinedOutput(); err != nil ||
		!strings.Contains(string(out), fmt.Sprintf("%d\n", len(want))) {
		t.Errorf("capinfos: %v: %s", err, out)
	}
}

// TestAnnotateSelected annotates the packets of a filter, which keep their numbers, and a
// capture without packets.
func TestAnnotateSelected(t *testing.T) {
	notes := filepath.Join(t.TempDir(), "notes.pcapng")
	var out, stderr bytes.Buffer
	args := []string{
		"replay", "../../testdata/pcaps/office.pcap", "--rate", "1mbit", "--annotate", notes, "--filter",
	}
	if code := run(append(args, "icmp6 and icmp6[0] = 135"),
		cli.Streams{Out: &out, Err: &stderr}); code != cli.ExitDone {
		t.Fatalf("exit %d: %s", code, &stderr)
	}
	raw, err := os.ReadFile(notes)
	if err != nil {
		t.Fatal(err)
	}
	all := arrivals(t, "../../testdata/pcaps/office.pcap")
	var want []string
	for i, p := range all {
		if d := p.data; len(d) > 54 && d[12] == 0x86 && d[20] == 58 && d[54] == 135 {
			want = append(want, fmt.Sprintf("shaper: packet %d: ", i+1))
		}
	}
	got := readAnnotated(t, raw)
	if len(want) == 0 ||
		!slices.EqualFunc(got, want,
			func(p annotated, prefix string) bool { return strings.HasPrefix(p.comment, prefix) }) {
		t.Errorf("got %d packets, want %d", len(got), len(want))
	}
	if code := run(append(args, "len = 1"), cli.Streams{Out: &out, Err: &stderr}); code != cli.ExitDone {
		t.Fatalf("exit %d: %s", code, &stderr)
	}
	if raw, err = os.ReadFile(notes); err != nil || len(readAnnotated(t, raw)) != 0 || len(raw) < 28+20 {
		t.Errorf("%d bytes, %v, want a capture without packets", len(raw), err)
	}
}
