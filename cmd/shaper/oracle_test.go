package main

import (
	"bytes"
	"encoding/binary"
	"encoding/csv"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/gopacket/pcapgo"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/cli"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/oracle"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

// sharedPcaps is a folder of real captures beside the checkout, which may not exist.
const sharedPcaps = "../../../shared/pcaps"

// testCaptures returns the captures that tests replay: those of this repository, and the real ones
// if they exist.
func testCaptures(t *testing.T) []string {
	t.Helper()
	var out []string
	for _, dir := range []string{"../../testdata/pcaps", sharedPcaps} {
		for _, pattern := range []string{"*.pcap", "*.pcapng", "*.gz"} {
			found, err := filepath.Glob(filepath.Join(dir, pattern))
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, found...)
		}
	}
	if len(out) == 0 {
		t.Fatal("no captures found")
	}
	if _, err := os.Stat(sharedPcaps); err != nil {
		t.Logf("real captures are not tested: %v", err)
	}
	return out
}

// TestAgainstOracle replays every capture through every policy and compares each row of
// --decisions with the reference model, which shares no code with the program.
func TestAgainstOracle(t *testing.T) {
	policies, err := filepath.Glob("internal/oracle/testdata/*.yaml")
	if err != nil || len(policies) == 0 {
		t.Fatal("no policies found", err)
	}
	for _, policy := range policies {
		t.Run(strings.TrimSuffix(filepath.Base(policy), ".yaml"), func(t *testing.T) {
			t.Parallel()
			text, err := os.ReadFile(policy)
			if err != nil {
				t.Fatal(err)
			}
			for _, capture := range testCaptures(t) {
				againstModel(t, string(text), policy, capture, dataplane.Egress)
			}
		})
	}
}

// againstModel replays a capture through the policy in the file at path and compares each row
// with the model. It returns the number of rows.
func againstModel(t *testing.T, policy, path, capture string, direction dataplane.Direction) int {
	t.Helper()
	want, wantErr := oracle.Site{
		Dir: filepath.Dir(path), Ingress: direction == dataplane.Ingress,
	}.Decide([]byte(policy), capture)
	var out, stderr bytes.Buffer
	code := run(
		[]string{"replay", capture, "--policy", path, "--direction", direction.String(), "--decisions", "-"},
		cli.Streams{Out: &out, Err: &stderr})
	if (code != cli.ExitDone) != (wantErr != nil) {
		t.Errorf("%s: exit %d (%s), model: %v", capture, code, &stderr, wantErr)
		return 0
	}
	if wantErr != nil {
		return 0
	}
	got, err := csv.NewReader(&out).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	compareRows(t, capture, got[1:], want)
	return len(want)
}

// outputAgainstModel compares the resulting capture with the model, if the model supports the
// policy. The capture must be pcap.
func outputAgainstModel(t *testing.T, policy, path, capture string, direction dataplane.Direction) {
	t.Helper()
	want, err := oracle.Site{
		Dir: filepath.Dir(path), Ingress: direction == dataplane.Ingress,
	}.Output([]byte(policy), capture)
	if err != nil {
		return
	}
	out := filepath.Join(t.TempDir(), "out.pcap")
	var stdout, stderr bytes.Buffer
	if code := run(
		[]string{"replay", capture, "--policy", path, "--direction", direction.String(), "-o", out},
		cli.Streams{Out: &stdout, Err: &stderr}); code != cli.ExitDone {
		t.Fatalf("exit %d: %s", code, &stderr)
	}
	file, err := os.Open(out)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	reader, err := pcapgo.NewReader(file)
	if err != nil {
		t.Fatal(err)
	}
	for i, w := range want {
		data, info, err := reader.ReadPacketData()
		if err != nil || info.Timestamp.UnixNano() != w.Time.Int64() || !bytes.Equal(data, w.Data) {
			t.Errorf("%s: place %d of %d: at %v % x (%v), model: packet %d at %v % x", capture, i+1,
				len(want), info.Timestamp.UnixNano(), data, err, w.Packet, w.Time, w.Data)
			return
		}
	}
	if _, _, err := reader.ReadPacketData(); err != io.EOF {
		t.Errorf("%s: more than %d packets leave: %v", capture, len(want), err)
	}
}

// TestFarStamps compares rows with the model and with the eBPF program for timestamps that are
// centuries apart, also outside the supported range.
func TestFarStamps(t *testing.T) {
	t.Parallel()
	r, path := seededRand(t), filepath.Join(t.TempDir(), "policy.yaml")
	capture := filepath.Join(t.TempDir(), "far.pcapng")
	rows := 0
	for i := range *randomPolicyCount {
		policy := randomPolicy(r, "wan")
		if err := os.WriteFile(path, []byte(policy), 0o600); err != nil {
			t.Fatal(err)
		}
		order := binary.BigEndian
		raw := []byte{
			0x0a, 0x0d, 0x0d, 0x0a, 0, 0, 0, 28, 0x1a, 0x2b, 0x3c, 0x4d, 0, 1, 0, 0, 0xff, 0xff, 0xff, 0xff,
			0xff, 0xff, 0xff, 0xff, 0, 0, 0, 28,
		}
		seconds := []int64{
			-1e18, -1, 0, 1, 1e9, 9_214_646_398, 9_214_646_399, 9_214_646_400, math.MinInt64, math.MaxInt64,
		}
		for i := range seconds { // one interface each, in ns
			raw = append(raw, 0, 0, 0, 1, 0, 0, 0, 44, 0, 1, 0, 0, 0, 0, 0, 0, 0, 14, 0, 8)
			raw = order.AppendUint64(raw, uint64(seconds[i]))
			raw = append(raw, 0, 9, 0, 1, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 44)
		}
		n := uint32(0)
		for range 300 {
			if r.IntN(40) == 0 {
				n = min(n+r.Uint32N(2), uint32(len(seconds)-1))
			}
			which := n
			if r.IntN(20) == 0 {
				which = r.Uint32N(uint32(len(seconds)))
			}
			packet := append(make([]byte, 12), 8, 0, 0x45, byte(r.Uint32()), 2, 0, 0, 0, 0, 0, 64, 17, 0, 0,
				192, 0, 2, byte(r.IntN(3)), 203, 0, 113, 1, 0, 1, 0, 53)
			raw = append(raw, 0, 0, 0, 6, 0, 0, 0, 72)
			for _, v := range []uint32{which, 0, r.Uint32N(3_000_000), uint32(len(packet)), 526} {
				raw = order.AppendUint32(raw, v)
			}
			raw = append(append(raw, packet...), 0, 0, 0, 0, 0, 72)
		}
		if err := os.WriteFile(capture, raw, 0o600); err != nil {
			t.Fatal(err)
		}
		rows += againstModel(t, policy, path, capture, dataplane.Egress)
		if os.Geteuid() == 0 && i%10 == 0 && !t.Failed() {
			policy = randomPolicy(r)
			sameByBoth(t, policy, capture)
		}
		if t.Failed() {
			t.Fatal(policy)
		}
	}
	if rows < 60**randomPolicyCount {
		t.Errorf("only %d rows were compared", rows)
	}
}

// TestUntimedFirst compares rows with the model for captures that begin with packets without a timestamp.
func TestUntimedFirst(t *testing.T) {
	r, path := seededRand(t), filepath.Join(t.TempDir(), "policy.yaml")
	capture := filepath.Join(t.TempDir(), "untimed.pcapng")
	order := binary.BigEndian
	rows := 0
	for range 20 {
		policy := randomPolicy(r, "wan")
		if err := os.WriteFile(path, []byte(policy), 0o600); err != nil {
			t.Fatal(err)
		}
		raw := []byte{
			0x0a, 0x0d, 0x0d, 0x0a, 0, 0, 0, 28, 0x1a, 0x2b, 0x3c, 0x4d, 0, 1, 0, 0, 0xff, 0xff, 0xff, 0xff,
			0xff, 0xff, 0xff, 0xff, 0, 0, 0, 28,
		}
		raw = append(raw, 0, 0, 0, 1, 0, 0, 0, 20, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 20)
		at := uint64(1_700_000_000e6) // µs
		for i := range 100 {
			packet := append(make([]byte, 12), 8, 0, 0x45, byte(r.Uint32()), 2, 0, 0, 0, 0, 0, 64, 17, 0, 0,
				192, 0, 2, byte(r.IntN(3)), 203, 0, 113, 1, 0, 1, 0, 53)
			packet = append(packet, make([]byte, 500)...)
			n := uint32(len(packet))
			padded := append(packet, make([]byte, -len(packet)&3)...)
			if i < 10 || r.IntN(4) == 0 { // a simple packet block
				size := uint32(16 + len(padded))
				for _, v := range []uint32{3, size, n} {
					raw = order.AppendUint32(raw, v)
				}
				raw = order.AppendUint32(append(raw, padded...), size)
				continue
			}
			at += r.Uint64N(300_000)
			size := uint32(32 + len(padded))
			for _, v := range []uint32{6, size, 0, uint32(at >> 32), uint32(at), n, n} {
				raw = order.AppendUint32(raw, v)
			}
			raw = order.AppendUint32(append(raw, padded...), size)
		}
		if err := os.WriteFile(capture, raw, 0o600); err != nil {
			t.Fatal(err)
		}
		rows += againstModel(t, policy, path, capture, dataplane.Egress)
		if t.Failed() {
			t.Fatal(policy)
		}
	}
	if rows < 600 {
		t.Errorf("only %d rows were compared", rows)
	}
}

func compareRows(t *testing.T, capture string, got, want [][]string) {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("%s: %d rows, model %d", capture, len(got), len(want))
		return
	}
	wrong := 0
	for i := range got {
		if !slices.Equal(got[i], want[i]) {
			if wrong++; wrong <= 3 {
				t.Errorf("%s:\n  got   %v\n  model %v", capture, got[i], want[i])
			}
		}
	}
	if wrong > 3 {
		t.Errorf("%s: %d rows differ", capture, wrong)
	}
}
