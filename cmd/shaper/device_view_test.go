package main

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/csv"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/cli"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/oracle"
)

// offered is a packet as a device meters it, before its capture distorts it.
type offered struct {
	at       int64 // on the device's clock, ns
	payload  int   // of UDP, bytes
	segments int   // of a UDP super-packet
}

const (
	offeredSegment = 1200 // payload of the segments of super-packets, bytes
	offeredHeaders = 28   // IPv4 and UDP, bytes
)

func (o *offered) bytes() int { return o.payload + o.segments*offeredHeaders }

// offer returns random traffic around 20 Mbit/s. Super-packets are longer than a link carries.
func offer(r *rand.Rand, super bool) (out []offered) {
	at := int64(0)
	for range 2000 {
		o := offered{at: at, payload: 20 + r.IntN(1180), segments: 1}
		if super && r.IntN(5) == 0 {
			o.payload = 1500 + r.IntN(20_000)
			o.segments = (o.payload + offeredSegment - 1) / offeredSegment
		}
		out = append(out, o)
		at += r.Int64N(int64(o.bytes()) * 800)
	}
	return out
}

// device meters traffic by a token bucket of 20 Mbit/s and 30,000 bytes, or of 1,000 packets/s and 50
// packets, and returns the length and the color of each packet.
func device(traffic []offered, packets bool) (rows []string) {
	const unit = 1_000_000 // of a token, so that each ns adds a whole number: 2500 of bytes, 1 of packets
	burst, perNS := int64(30_000*unit), int64(2500)
	if packets {
		burst, perNS = 50*unit, 1
	}
	level, last := burst, int64(0)
	for _, o := range traffic {
		level, last = min(level+(o.at-last)*perNS, burst), o.at
		cost := int64(o.bytes()) * unit
		if packets {
			cost = int64(o.segments) * unit
		}
		color := "red"
		if level >= cost {
			level -= cost
			color = "green"
		}
		rows = append(rows, fmt.Sprint(o.bytes(), " ", color))
	}
	return rows
}

// distortion describes how a capture differs from the traffic on the wire.
type distortion struct {
	fcs   bool  // frames end with an FCS
	every int   // packets between steps of the clock; 0: none
	step  int64 // of the clock, ns
}

// capture writes traffic to a capture.
func (d *distortion) capture(traffic []offered) []byte {
	out := pcapHeader(0xa1b23c4d)
	clock := int64(1_700_000_000e9)
	for i, o := range traffic {
		if d.every > 0 && i > 0 && i%d.every == 0 {
			clock += d.step
		}
		ip := []byte{
			0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 17, 0, 0, 192, 0, 2, 1, 198, 51, 100, 1, 0x9c, 0x40, 1, 0xbb, 0,
			0, 0, 0,
		}
		binary.BigEndian.PutUint16(ip[2:], uint16(offeredHeaders+o.payload))
		binary.BigEndian.PutUint16(ip[24:], uint16(8+o.payload))
		frame := slices.Concat([]byte{2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0}, ip, make([]byte, o.payload))
		frame = append(frame, make([]byte, max(60-len(frame), 0))...)
		if d.fcs {
			frame = binary.LittleEndian.AppendUint32(frame, crc32.ChecksumIEEE(frame))
		}
		out = appendRecord(out, clock+o.at, frame)
	}
	return out
}

func pcapHeader(magic uint32) []byte {
	out := binary.LittleEndian.AppendUint32(nil, magic)
	out = append(out, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0)
	out = binary.LittleEndian.AppendUint32(out, 1<<18)
	return binary.LittleEndian.AppendUint32(out, 1)
}

// appendRecord appends a packet to a capture with timestamps in ns.
func appendRecord(out []byte, at int64, frame []byte) []byte {
	for _, v := range []int64{at / 1e9, at % 1e9, int64(len(frame)), int64(len(frame))} {
		out = binary.LittleEndian.AppendUint32(out, uint32(v))
	}
	return append(out, frame...)
}

// withoutPauses removes the time between two packets with a step of the clock: it cannot be known.
func (d *distortion) withoutPauses(traffic []offered) []offered {
	out, lost := slices.Clone(traffic), int64(0)
	for i := range out {
		if d.every > 0 && i > 0 && i%d.every == 0 {
			lost += traffic[i].at - traffic[i-1].at
		}
		out[i].at -= lost
	}
	return out
}

// replayRows replays a capture and returns the columns of its rows, and the standard error.
func replayRows(t *testing.T, capture []byte, columns []int, flags ...string) (rows []string, stderr string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "in.pcap")
	if err := os.WriteFile(path, capture, 0o600); err != nil {
		t.Fatal(err)
	}
	var out, errors bytes.Buffer
	if code := run(append([]string{"replay", path, "--decisions", "-"}, flags...),
		cli.Streams{Out: &out, Err: &errors}); code != cli.ExitDone {
		t.Fatalf("exit %d: %s", code, &errors)
	}
	all, err := csv.NewReader(&out).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	return columnsOf(all[1:], columns), errors.String()
}

func columnsOf(rows [][]string, columns []int) (out []string) {
	for _, row := range rows {
		var cells []string
		for _, c := range columns {
			cells = append(cells, row[c])
		}
		out = append(out, strings.Join(cells, " "))
	}
	return out
}

const lengthColumn, colorColumn = 2, 5

// TestDeviceView compares the replay of distorted captures with a device that met the packets themselves:
// with stepped clocks, FCS and UDP super-packets, all packets are metered alike, or a warning names the
// cause, the number and the flag.
func TestDeviceView(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	const hour = 3600 * int64(1e9)
	for _, test := range []struct {
		name    string
		super   bool
		distort distortion
		flags   []string
		warning string // the cause if packets may be metered differently; %d is the number of super-packets
	}{
		{"plain", false, distortion{}, nil, ""},
		{"set back", false, distortion{every: 500, step: -hour}, nil, ""},
		{"set ahead", false, distortion{every: 700, step: 25 * hour}, nil, ""},
		{"FCS", false, distortion{fcs: true}, []string{"--fcs", "4"}, ""},
		{"FCS without a flag", false, distortion{fcs: true}, nil, "257 packets (first: 1): the frame ends with its own CRC-32"},
		{"UDP GSO", true, distortion{}, []string{"--udp-segment", strconv.Itoa(offeredSegment)}, ""},
		{"UDP GSO without a flag", true, distortion{}, nil, "%d packets (first: ...): UDP longer than 1,500 bytes"},
		{"all", true, distortion{true, 300, -hour}, []string{"--fcs", "4", "--udp-segment", strconv.Itoa(offeredSegment)}, ""},
	} {
		for _, packets := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, packets=%v", test.name, packets), func(t *testing.T) {
				traffic := offer(rand.New(rand.NewPCG(seed, 0)), test.super)
				want := device(test.distort.withoutPauses(traffic), packets)
				policy := filepath.Join(t.TempDir(), "policy.yaml")
				text := "meter: {type: token-bucket, rate: 20mbit, burst: 30000}"
				if packets {
					text = "meter: {type: token-bucket, rate: 1000p/s, burst: 50, count: packets}"
				}
				if err := os.WriteFile(policy, []byte("classes:\n  - name: all\n    "+text+"\n"),
					0o600); err != nil {
					t.Fatal(err)
				}
				got, stderr := replayRows(t, test.distort.capture(traffic), []int{lengthColumn, colorColumn},
					append(test.flags, "--policy", policy)...)
				differ, supers := 0, 0
				for i := range want {
					if got[i] != want[i] {
						differ++
					}
					if traffic[i].segments > 1 {
						supers++
					}
				}
				if len(got) != len(want) || differ > 0 && test.warning == "" {
					t.Errorf("%d of %d packets are metered differently: %s", differ, len(want), stderr)
				}
				begin, end, _ := strings.Cut(strings.Replace(test.warning, "%d", strconv.Itoa(supers), 1),
					"...")
				if !strings.Contains(stderr, begin) || !strings.Contains(stderr, end) {
					t.Errorf("no warning %q: %s", test.warning, stderr)
				}
				if test.warning != "" && differ == 0 {
					t.Error("no packet is metered differently: the test lost its purpose")
				}
				if steps := strings.Contains(stderr, "timestamp steps"); steps != (test.distort.every > 0) {
					t.Errorf("want a warning of steps: %v: %s", test.distort.every > 0, stderr)
				}
			})
		}
	}
}

// TestDeviceViewOfReal distorts real captures: an FCS is added to each frame, and the clock is set back
// by an hour in the middle. With --fcs, each row is as the reference model decides about the original.
func TestDeviceViewOfReal(t *testing.T) {
	t.Parallel()
	captures := testCaptures(t)
	least := 5
	if _, err := os.Stat(sharedPcaps); err != nil {
		t.Logf("only captures of this repository are distorted: %v", err)
		least = 1
	}
	const policy = "classes:\n  - name: all\n    meter: {type: trtcm, cir: 1mbit, cbs: 3000, pir: 2mbit, pbs: 6000}\n    yellow: {dscp: af12}\n"
	path := filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(path, []byte(policy), 0o600); err != nil {
		t.Fatal(err)
	}
	distorted := 0
	for _, capture := range captures {
		original, changed := distortReal(t, capture)
		if original == nil {
			continue
		}
		distorted++
		in := filepath.Join(t.TempDir(), "original.pcap")
		if err := os.WriteFile(in, original, 0o600); err != nil {
			t.Fatal(err)
		}
		model, err := oracle.Decide([]byte(policy), in)
		if err != nil {
			t.Fatal(err)
		}
		columns := []int{0, 2, 3, 4, 5, 6, 7, 8, 10, 11} // all but the times
		want := columnsOf(model, columns)
		got, _ := replayRows(t, changed, columns, "--policy", path, "--fcs", "4")
		for i := range want {
			if i >= len(got) || got[i] != want[i] {
				t.Errorf("%s: row %d of %d: got %q, want %q", capture, i+1, len(got), got[min(i, len(got)-1)],
					want[i])
				break
			}
		}
		_, stderr := replayRows(t, changed, columns, "--policy", path)
		if !strings.Contains(stderr, "its own CRC-32") || len(want) > 1 &&
			!strings.Contains(stderr, "timestamp steps back") {
			t.Errorf("%s: no warning of the FCS and the step: %s", capture, stderr)
		}
	}
	if distorted < least {
		t.Errorf("only %d of %d captures could be distorted, want %d", distorted, len(captures), least)
	}
}

// distortReal returns an Ethernet capture, in ns and without the pause in its middle, and the same packets
// with an FCS and with the clock set back there. It returns nil for other captures, and for
// those with cut frames or times that are not in order.
func distortReal(t *testing.T, path string) (original, changed []byte) {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if len(raw) < 24 || binary.LittleEndian.Uint32(raw) != 0xa1b2c3d4 ||
		binary.LittleEndian.Uint32(raw[20:]) != 1 {
		return nil, nil
	}
	type record struct {
		at    int64
		frame []byte
	}
	var all []record
	for raw = raw[24:]; len(raw) >= 16; {
		n := int(binary.LittleEndian.Uint32(raw[8:]))
		if len(raw) < 16+n || binary.LittleEndian.Uint32(raw[12:]) != uint32(n) {
			return nil, nil
		}
		at := int64(binary.LittleEndian.Uint32(raw))*1e9 + int64(binary.LittleEndian.Uint32(raw[4:]))*1000
		all = append(all, record{at, raw[16 : 16+n]})
		raw = raw[16+n:]
	}
	inOrder := slices.IsSortedFunc(all, func(a, b record) int { return cmp.Compare(a.at, b.at) })
	if len(all) == 0 || !inOrder || all[len(all)-1].at-all[0].at > 3600e9 {
		return nil, nil
	}
	original, changed = pcapHeader(0xa1b23c4d), pcapHeader(0xa1b23c4d)
	middle := len(all) / 2
	for i, p := range all {
		before, after := p.at, p.at
		if i >= middle && middle > 0 {
			before -= all[middle].at - all[middle-1].at
			after -= 2 * 3600e9
		}
		original = appendRecord(original, before, p.frame)
		changed = appendRecord(changed, after,
			binary.LittleEndian.AppendUint32(slices.Clone(p.frame), crc32.ChecksumIEEE(p.frame)))
	}
	return original, changed
}

// TestOneOrigin checks that the terminal, JSON, why, the report and compare count the time of a drop from
// the first packet, although the second one has an earlier timestamp, and with a stepped clock.
func TestOneOrigin(t *testing.T) {
	t.Parallel()
	for _, step := range []int64{0, -3600e9} {
		in := filepath.Join(t.TempDir(), "in.pcap")
		capture := pcapHeader(0xa1b23c4d)
		for _, p := range []struct{ at, n int64 }{
			{10_005.5e9, 1000}, {10_005.0e9, 40}, {10_005.5e9 + step, 40}, {10_006.0e9 + step, 1000},
		} {
			frame := slices.Concat(make([]byte, 12), []byte{8, 0, 0x45, 0, byte(p.n >> 8), byte(p.n)},
				make([]byte, p.n-4))
			capture = appendRecord(capture, p.at, frame)
		}
		if err := os.WriteFile(in, capture, 0o600); err != nil {
			t.Fatal(err)
		}
		report := filepath.Join(t.TempDir(), "report.html")
		for _, test := range []struct {
			args []string
			want string
		}{
			{[]string{"replay", in, "--report", report}, " 0.500000 s "},
			{[]string{"replay", in, "--json"}, `"start_ns":500000000,`},
			{[]string{"why", in, "4"}, ", 500ms after packet 1\n"},
			{[]string{"compare", in, "--json"}, `"worst":{"bytes":1080,"from_ns":0}`},
		} {
			var out, stderr bytes.Buffer
			args := append(test.args, "--meter", "token-bucket rate=8kbit burst=1080")
			if code := run(args, cli.Streams{Out: &out, Err: &stderr}); code != cli.ExitDone ||
				!strings.Contains(out.String(), test.want) {
				t.Errorf("step %d: %v: exit %d, want %q: %s%s", step, args, code, test.want, &out, &stderr)
			}
		}
		if page, err := os.ReadFile(report); err != nil ||
			!bytes.Contains(page, []byte(`data-from="500000000"`)) {
			t.Errorf("step %d: the report has no episode at 0.5 s: %v", step, err)
		}
	}
}
