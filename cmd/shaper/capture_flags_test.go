package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/cli"
)

// TestLivePipes sends packets to a process one by one, while its input stays open. Each packet,
// or its row, must arrive before the next one is sent.
func TestLivePipes(t *testing.T) {
	raw, err := os.ReadFile("../../testdata/pcaps/bursts.pcap")
	if err != nil {
		t.Fatal(err)
	}
	const header, record = 24, 16 + 64
	for name, flags := range map[string][]string{
		"output, pause":  {"-o", "-"},
		"output, -U":     {"-o", "-", "-U"},
		"rows, pause":    {"--decisions", "-"},
		"rows, -U":       {"--decisions", "-", "--packet-buffered"},
		"filter, -U":     {"-o", "-", "-U", "--filter", "udp"},
		"annotated, -U":  {"--annotate", "-", "-U"},
		"kernel, paused": {"-o", "-", "--engine", "bpf"},
	} {
		t.Run(name, func(t *testing.T) {
			if strings.HasPrefix(name, "kernel") {
				needRoot(t)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
			defer cancel()
			cmd := exec.CommandContext(ctx, "shaper", slices.Concat(
				[]string{"replay", "-", "--meter", "token-bucket rate=1gbit burst=1MB"}, flags)...)
			in, err := cmd.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			if _, err := in.Write(raw[:header]); err != nil {
				t.Fatal(err)
			}
			var longest time.Duration
			var got bytes.Buffer
			for i := range 5 {
				packet := raw[header+i*record:][:record]
				sent := time.Now()
				if _, err := in.Write(packet); err != nil {
					t.Fatal(err)
				}
				arrived := func() bool { return got.Len() >= header+(i+1)*record }
				switch number := strconv.Itoa(i + 1); {
				case strings.HasPrefix(name, "rows"):
					arrived = func() bool { return strings.Contains(got.String(), "\n"+number+",") }
				case strings.HasPrefix(name, "annotated"):
					arrived = func() bool {
						return strings.Contains(got.String(), "shaper: packet "+number+":")
					}
				}
				for chunk := make([]byte, 1<<16); !arrived(); {
					n, err := out.Read(chunk)
					if err != nil {
						t.Fatalf("packet %d: %v after %q", i+1, err, got.Bytes())
					}
					got.Write(chunk[:n])
				}
				if i > 0 { // the first one waits for the start of the process
					longest = max(longest, time.Since(sent))
				}
			}
			t.Logf("the longest delay is %v", longest)
			in.Close()
			if _, err := io.Copy(io.Discard, out); err != nil {
				t.Error(err)
			}
			if err := cmd.Wait(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestEnginesCut compares the engines on super-packets: IPv4 and IPv6, with a VLAN tag, and
// with policies whose length rules count the link headers of segments.
func TestEnginesCut(t *testing.T) {
	needRoot(t)
	le := binary.LittleEndian
	raw := append(le.AppendUint32(nil, 0xa1b2c3d4), 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 1, 0, 0,
		0)
	frame := func(tag, syn bool, v6 bool, payload int) {
		link := []byte{2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1}
		if tag {
			link = append(link, 0x81, 0, 0, 5)
		}
		tcp := []byte{0x9c, 0x40, 1, 0xbb, 0, 0, 0, 0, 0, 0, 0, 0, 0x50, 0x10, 0, 0, 0, 0, 0, 0}
		if syn {
			tcp[12], tcp[13] = 0x60, 2
			tcp = append(tcp, 2, 4, 5, 0xb4)
		}
		n := len(tcp) + payload
		ip := []byte{
			0x45, 0xb8, byte((20 + n) >> 8), byte(20 + n), 0, 0, 0, 0, 64, 6, 0, 0, 192, 0, 2, 1, 198, 51,
			100, 1,
		}
		kind := []byte{8, 0}
		if v6 {
			ip = append([]byte{0x60, 0, 0, 0, byte(n >> 8), byte(n), 6, 64}, make([]byte, 32)...)
			kind = []byte{0x86, 0xdd}
		}
		captured := slices.Concat(link, kind, ip, tcp)
		for _, v := range []int{1, len(raw), len(captured), len(captured) + payload} {
			raw = le.AppendUint32(raw, uint32(v))
		}
		raw = append(raw, captured...)
	}
	for i := range 12 {
		tag, v6 := i&1 != 0, i&2 != 0
		frame(tag, true, v6, 0)
		frame(tag, false, v6, 1460)
		frame(tag, false, v6, 1461+i*4000)
	}
	capture := filepath.Join(t.TempDir(), "super.pcap")
	if err := os.WriteFile(capture, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, length := range []string{"l3", "l2", "l1", "{base: l2, overhead: 4, mpu: 64}"} {
		for _, meter := range []string{
			"{type: token-bucket, rate: 1gbit, burst: 90kB}",
			"{type: token-bucket, rate: 100p/1s, burst: 70, count: packets}",
		} {
			policy := "length: " + length + "\nclasses:\n  - {name: all, meter: " + meter +
				", green: {dscp: af12}}\n"
			if rows := sameByBoth(t, policy, capture); rows != 36 {
				t.Errorf("%s: %d rows are the same, want 36", policy, rows)
			}
		}
	}
}

// TestFilterAsTcpdump replays captures with --filter, and the captures that tcpdump writes with
// the same filter: all rows but the numbers must be the same, and so must the outputs. Links
// and queues hold packets between those that are excluded.
func TestFilterAsTcpdump(t *testing.T) {
	if _, err := exec.LookPath("tcpdump"); err != nil {
		t.Skip("needs tcpdump (apt-get install tcpdump)")
	}
	for _, capture := range []string{"office.pcap", "bursts.pcap", "voice-bulk.pcapng", "tags.pcap"} {
		for _, filter := range []string{
			"udp", "tcp and ip[5] & 3 != 0", "vlan and ip or icmp6 or ip[8] = 64", "greater 500",
		} {
			for _, policy := range []string{"docs/customer.yaml", "docs/link.yaml"} {
				dir := t.TempDir()
				in, chosen := filepath.Join("../../testdata/pcaps", capture),
					filepath.Join(dir, "chosen.pcap")
				if out, err := exec.Command("tcpdump", "--time-stamp-precision=nano", "-r", in, "-w", chosen,
					filter).CombinedOutput(); err != nil {
					t.Fatalf("tcpdump: %v: %s", err, out)
				}
				replay := func(name, in string, flags ...string) (rows []string, left []byte) {
					decisions, output := filepath.Join(dir, name+".csv"), filepath.Join(dir, name+".out")
					var out, stderr bytes.Buffer
					args := slices.Concat([]string{
						"replay", in, "-p", "../../" + policy, "--decisions", decisions, "-o", output,
					}, flags)
					if code := run(args, cli.Streams{Out: &out, Err: &stderr}); code != cli.ExitDone {
						t.Fatalf("exit %d: %s", code, &stderr)
					}
					text, err := os.ReadFile(decisions)
					if err != nil {
						t.Fatal(err)
					}
					if left, err = os.ReadFile(output); err != nil {
						t.Fatal(err)
					}
					for line := range strings.Lines(string(text)) {
						_, rest, _ := strings.Cut(line, ",")
						rows = append(rows, rest)
					}
					return rows, left
				}
				got, left := replay("filtered", in, "--filter", filter)
				want, wantLeft := replay("chosen", chosen)
				if !slices.Equal(got, want) {
					t.Errorf("%s, %s, %s: %d rows differ from the %d of tcpdump's capture", capture, filter,
						policy, len(got), len(want))
				}
				a, err := countPackets(left)
				if b, e := countPackets(wantLeft); err != nil || e != nil || a != b {
					t.Errorf("%s, %s, %s: %d packets left, want %d: %v %v", capture, filter, policy, a, b,
						err, e)
				}
			}
		}
	}
}
