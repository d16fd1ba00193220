package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/cli"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/nettest"
	"github.com/a-seed-32e5a53f/shaper/dataplane/replay"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// ipCapture is a capture of UDP packets over IPv4 with a snap length that cuts the payload.
type ipCapture struct{ file []byte }

func newIPCapture() *ipCapture {
	file := binary.LittleEndian.AppendUint32(nil, 0xa1b23c4d) // timestamps in ns
	return &ipCapture{append(file, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0, 101, 0, 0, 0)}
}

func (c *ipCapture) add(at time.Duration, source uint32, length int) {
	var ip [28]byte
	ip[0], ip[8], ip[9] = 0x45, 64, 17
	binary.BigEndian.PutUint16(ip[2:], uint16(length))
	binary.BigEndian.PutUint32(ip[12:], source)
	for _, v := range []uint32{
		uint32(1e9 + at/time.Second), uint32(at % time.Second), uint32(len(ip)), uint32(length),
	} {
		c.file = binary.LittleEndian.AppendUint32(c.file, v)
	}
	c.file = append(c.file, ip[:]...)
}

// Senders in sprayed, by the upper byte of the address.
const (
	large   = iota + 10 // packets of 500 bytes
	pausing             // packets of 500 bytes, during one second of three
	small               // packets as small as those of the spray
	spray               // random addresses
	senders = spray + 1
)

// sprayed is a spray of packets of 55 bytes, each at a random time from one of a million random
// addresses, and 20 honest hosts of each sort, which send 75 kbit/s meanwhile.
func sprayed(perSecond int, length time.Duration) []byte {
	type packet struct {
		at      time.Duration
		address uint32
		size    int
	}
	var packets []packet
	r := rand.New(rand.NewPCG(6, 1))
	about := func(gap time.Duration) time.Duration { return gap/2 + time.Duration(r.Int64N(int64(gap))) }
	mean := time.Second / time.Duration(perSecond)
	for at := time.Duration(0); at < length; at += time.Duration(r.ExpFloat64() * float64(mean)) {
		packets = append(packets, packet{at, spray<<24 | r.Uint32N(1e6), 55})
	}
	for sort, size := range [...]int{large: 500, pausing: 500, small: 55} {
		if size == 0 {
			continue
		}
		gap := time.Duration(size) * 8 * time.Second / 75_000
		for i := range uint32(20) {
			shift := time.Duration(i) * 3 * time.Second / 20
			for at := about(gap); at < length; at += about(gap) {
				if sort != pausing || (at+shift)%(3*time.Second) < time.Second {
					packets = append(packets, packet{at, uint32(sort)<<24 | i, size})
				}
			}
		}
	}
	slices.SortStableFunc(packets, func(a, b packet) int { return cmp.Compare(a.at, b.at) })
	c := newIPCapture()
	for _, p := range packets {
		c.add(p.at, p.address, p.size)
	}
	return c.file
}

// TestSpray checks the figures of docs/METERS.md: the loss of honest hosts while a sender sprays
// source addresses, for several policies, in both planes.
func TestSpray(t *testing.T) {
	t.Parallel()
	capture := sprayed(125_000, 5*time.Second)
	// The meter behind then: is offered 59.5 Mbit/s and passes 50, and large packets find too
	// few tokens. With new: empty, a host loses the packets that arrive before its bucket has
	// filled, once or after each pause. A packet of the spray passes only if its key is still
	// in the table; the probability is keys / 1,000,000.
	type share struct{ least, most float64 } // loss in %
	for i, test := range []struct {
		options, then string
		want          [senders]share
	}{
		{"", "", [senders]share{large: {0, 0}, pausing: {0, 0}, small: {0, 0}, spray: {0, 0.1}}},
		{"evict: idle", "", [senders]share{large: {0, 0}, pausing: {0, 0}, small: {0, 0}, spray: {0, 0.1}}},
		{"", "50mbit", [senders]share{large: {50, 100}, pausing: {50, 100}, small: {8, 20}, spray: {8, 20}}},
		{"evict: idle", "50mbit", [senders]share{large: {50, 100}, pausing: {50, 100}, small: {8, 20}, spray: {8, 20}}},
		{"new: empty", "", [senders]share{large: {0, 2}, pausing: {0, 10}, small: {0, 0.3}, spray: {93, 95}}},
		{"new: empty", "50mbit", [senders]share{large: {0, 2}, pausing: {0, 10}, small: {0, 0.3}, spray: {93, 95}}},
		{"new: empty, keys: 262144", "50mbit", [senders]share{large: {0, 2}, pausing: {0, 5}, small: {0, 0.3}, spray: {74, 85}}},
	} {
		if !nettest.Deep() && i%3 != 0 {
			continue
		}
		text := "classes:\n  - name: host\n    meter: {type: token-bucket, rate: 100kbit, burst: 3kB, per: src, " +
			test.options + "}\n"
		if test.then != "" {
			text += "    then: all\nmeters:\n  all: {type: token-bucket, rate: " + test.then +
				", burst: 256KiB, color: aware}\n"
		}
		f := replayFlags{}
		f.File = filepath.Join(t.TempDir(), "policy.yaml")
		if err := os.WriteFile(f.File, []byte(strings.ReplaceAll(text, ", }", "}")), 0o600); err != nil {
			t.Fatal(err)
		}
		for _, f.engine = range []string{"go", "bpf"} {
			if f.engine == "bpf" && (os.Geteuid() != 0 || test.options == "evict: idle") {
				continue
			}
			policy, err := f.Load()
			if err != nil {
				t.Fatal(err)
			}
			e, err := f.newEngine(policy, policy)
			if err != nil {
				t.Fatal(err)
			}
			var lost, sent [senders]int
			_, err = replay.Run(context.Background(), bytes.NewReader(capture), e,
				replay.Config{Each: func(p *dataplane.Packet, v *dataplane.Verdict) error {
					from := p.Data[12]
					if sent[from]++; v.Color == meter.Red {
						lost[from]++
					}
					return nil
				}})
			e.Close()
			if err != nil {
				t.Fatal(err)
			}
			var percent [senders]float64
			for from, want := range test.want[large:] {
				from += large
				percent[from] = 100 * float64(lost[from]) / float64(sent[from])
				if percent[from] < want.least || percent[from] > want.most {
					t.Errorf("%s {%s} then %s: %.2f %% lost from %d.0.0.0, want %v to %v", f.engine,
						test.options, test.then, percent[from], from, want.least, want.most)
				}
			}
			t.Logf("%-3s {%s} then %s: %.1f %% lost of large packets, %.1f %% of hosts that pause, %.1f %% of small packets, %.1f %% of the spray",
				f.engine, test.options, test.then, percent[large], percent[pausing], percent[small],
				percent[spray])
		}
	}
}

// TestKeysOver checks that replay --engine bpf warns if a meter saw more keys than its bound,
// because the kernel then evicts other keys. Up to the bound, the rows are those of --engine go.
func TestKeysOver(t *testing.T) {
	needRoot(t)
	t.Parallel()
	const policy = `classes: [{name: a, meter: {type: token-bucket, rate: 10kbit, burst: 300, per: src, keys: 16, new: empty, then: m}}]
meters: {m: {type: token-bucket, rate: 20kbit, burst: 300, per: dst, keys: 1, new: empty, color: aware}}
`
	dir := t.TempDir()
	file := filepath.Join(dir, "policy.yaml")
	if err := os.WriteFile(file, []byte(policy), 0o600); err != nil {
		t.Fatal(err)
	}
	for sources, want := range map[int]string{
		1: "", 16: "", 17: "shaper: warning: meter a saw more than its 16 keys: ",
		5000: "shaper: warning: meter a saw more than its 16 keys: ",
	} {
		c := newIPCapture()
		for i := range 20_000 {
			c.add(time.Duration(i)*time.Millisecond, 10<<24|uint32(i%sources), 100)
		}
		capture := filepath.Join(dir, "sources.pcap")
		if err := os.WriteFile(capture, c.file, 0o600); err != nil {
			t.Fatal(err)
		}
		if want == "" {
			sameByBoth(t, policy, capture)
		}
		for _, engine := range []string{"bpf", "go"} {
			var out, stderr bytes.Buffer
			if code := run([]string{"replay", capture, "-p", file, "--engine", engine},
				cli.Streams{Out: &out, Err: &stderr}); code != cli.ExitDone {
				t.Fatalf("exit %d: %s", code, &stderr)
			}
			if engine == "go" {
				want = ""
			}
			if got := stderr.String(); want == "" && strings.Contains(got, "met more") ||
				!strings.Contains(got, want) {
				t.Errorf("%s, %d sources: %q, want %q", engine, sources, got, want)
			}
		}
	}
}
