package main

import (
	"bytes"
	"encoding/binary"
	"encoding/csv"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/cli"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/oracle"
)

// rate20 is the policy of --rate 20mbit. The model has no meters that several classes name, so
// each class has its own meter that is never short, and chains the shared one.
const rate20 = `
classes:
  - name: control-dscp
    match: {dscp: [48, 56]}
    meter: {type: token-bucket, rate: 1tbit, burst: 100MB}
    then: control
    red: {queue: all}
  - name: control-proto
    match: {proto: [2, 58, 88, 89, 103, 112]}
    meter: {type: token-bucket, rate: 1tbit, burst: 100MB}
    then: control
    red: {queue: all}
  - name: control-dport
    match: {dport: [67, 68, 179, 546, 547, 646, 3784, 4784]}
    meter: {type: token-bucket, rate: 1tbit, burst: 100MB}
    then: control
    red: {queue: all}
  - name: control-sport
    match: {sport: 179}
    meter: {type: token-bucket, rate: 1tbit, burst: 100MB}
    then: control
    red: {queue: all}
  - name: all
    green: {queue: all}
meters:
  control: {type: token-bucket, rate: 1mbit, burst: 65536, color: aware}
queues:
  all: {rate: 20mbit, limit: 100ms, fair: flow, codel: {target: 5ms, interval: 100ms}, ecn: true}
`

// rateCapture offers 40 Mbit/s of UDP for two seconds, and control traffic: a
// BGP segment every 10 ms and, in the second second, 10 Mbit/s marked CS6.
func rateCapture(t *testing.T) string {
	t.Helper()
	file := binary.LittleEndian.AppendUint32(nil, 0xa1b23c4d) // timestamps in ns
	file = append(file, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0, 1, 0, 0, 0)
	add := func(at time.Duration, proto, tos byte, dport uint16, length int) {
		frame := make([]byte, 14+length)
		ip := frame[14:]
		frame[12] = 0x08
		ip[0], ip[1], ip[8], ip[9], ip[12], ip[16] = 0x45, tos, 64, proto, 192, 198
		binary.BigEndian.PutUint16(ip[2:], uint16(length))
		binary.BigEndian.PutUint16(ip[20:], 40000)
		binary.BigEndian.PutUint16(ip[22:], dport)
		if proto == 6 {
			ip[32] = 0x50 // header of 20 bytes
		} else {
			binary.BigEndian.PutUint16(ip[24:], uint16(length-20))
		}
		file = binary.LittleEndian.AppendUint32(file, uint32(1e9+at/time.Second))
		file = binary.LittleEndian.AppendUint32(file, uint32(at%time.Second))
		file = binary.LittleEndian.AppendUint32(file, uint32(len(frame)))
		file = append(binary.LittleEndian.AppendUint32(file, uint32(len(frame))), frame...)
	}
	r := rand.New(rand.NewPCG(10, 16))
	for at := time.Duration(0); at < 2*time.Second; at += 100 * time.Microsecond {
		add(at, 17, byte(r.IntN(2)*2), 5000, 500) // half of the packets are ECN-capable
		if at%(10*time.Millisecond) == 0 {
			add(at, 6, 0, 179, 60)
		}
		if at >= time.Second && at%(800*time.Microsecond) == 0 {
			add(at, 17, 48<<2, 5000, 1000)
		}
	}
	path := filepath.Join(t.TempDir(), "rate.pcap")
	if err := os.WriteFile(path, file, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestRateReplay compares replay --rate with the reference model, row by row. It checks that
// the rate of queued packets is at most the given one, and that control traffic within its
// share is not queued.
func TestRateReplay(t *testing.T) {
	capture := rateCapture(t)
	want, err := oracle.Decide([]byte(rate20), capture)
	if err != nil {
		t.Fatal(err)
	}
	var out, stderr bytes.Buffer
	if code := run([]string{"replay", capture, "--rate", "20mbit", "--decisions", "-"},
		cli.Streams{Out: &out, Err: &stderr}); code != cli.ExitDone {
		t.Fatalf("exit %d: %s", code, &stderr)
	}
	rows, err := csv.NewReader(&out).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	compareRows(t, capture, rows[1:], want)

	number := func(s string) int64 {
		n, err := strconv.ParseInt(s, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	var first, last, queued, control, dropped int64
	for _, row := range rows[1:] {
		class, action, at, length := row[3], row[6], number(row[1]), number(row[2])
		switch {
		case row[9] == "":
			dropped++
		case class == "all" || action == "queue":
			if depart := number(row[9]); first == 0 {
				first = depart
			} else {
				last = depart
				queued += length
			}
		case number(row[9]) != at:
			t.Fatalf("%v: passes late", row)
		default:
			control += length
		}
		if class == "control-dport" && at < 1_001_000_000_000_000_000 && action != "pass" {
			t.Fatalf("%v: control traffic within its share is queued", row)
		}
	}
	if rate := float64(queued) * 8 / (float64(last-first) / 1e9); rate < 19.9e6 || rate > 20.1e6 {
		t.Errorf("%.0f bit/s leave the queue, want 20 Mbit/s", rate)
	}
	// 100 segments of BGP in the first second; in the second one, as many bytes as the meter allows.
	if most := int64(100*60 + 65536 + 1e6/8); control > most || control < most-1500 {
		t.Errorf("%d bytes pass before the queue, want %d, the share of control traffic", control, most)
	}
	if dropped < 4000 {
		t.Errorf("%d packets dropped, want about half", dropped)
	}
}
