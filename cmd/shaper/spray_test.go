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

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/replay"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// ipCapture is a capture of UDP packets over IPv4, of which only the headers were
// captured.
type ipCapture struct{ file []byte }

func newIPCapture() *ipCapture {
	file := binary.LittleEndian.AppendUint32(nil, 0xa1b23c4d) // nanoseconds
	return &ipCapture{append(file, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0, 101, 0, 0, 0)}
}

func (c *ipCapture) add(at time.Duration, source uint32, length int) {
	var ip [28]byte
	ip[0], ip[8], ip[9] = 0x45, 64, 17
	binary.BigEndian.PutUint16(ip[2:], uint16(length))
	binary.BigEndian.PutUint32(ip[12:], source)
	for _, v := range []uint32{uint32(1e9 + at/time.Second), uint32(at % time.Second), uint32(len(ip)), uint32(length)} {
		c.file = binary.LittleEndian.AppendUint32(c.file, v)
	}
	c.file = append(c.file, ip[:]...)
}

// Who sends in sprayed, by the upper byte of the address.
const (
	large   = iota + 10 // 500 bytes each
	pausing             // the same, for a second of three
	small               // as long as those of the spray
	spray               // some of 2^24 addresses
	senders = spray + 1
)

// sprayed is a spray of packets of 55 bytes, each at a random time from a random one of a million
// addresses, and 20 honest hosts of each sort that send 75 kbit/s while they do.
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

// TestSpray holds the figures of docs/METERS.md: how many packets of honest hosts are lost while
// somebody sprays source addresses, by what a policy does about it, in both planes.
func TestSpray(t *testing.T) {
	t.Parallel()
	capture := sprayed(125_000, 5*time.Second)
	// Behind then: 59.5 Mbit/s want 50, and who has large packets finds the bucket too
	// low. With new: empty a host loses what comes before its bucket fills, once
	// or after each pause, and of the spray passes who comes again while he is known:
	// keys of a million.
	type share struct{ least, most float64 } // % lost
	for _, test := range []struct {
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
		text := "classes:\n  - name: host\n    meter: {type: token-bucket, rate: 100kbit, burst: 3kB, per: src, " + test.options + "}\n"
		if test.then != "" {
			text += "    then: all\nmeters:\n  all: {type: token-bucket, rate: " + test.then + ", burst: 256KiB, color: aware}\n"
		}
		f := replayFlags{}
		f.file = filepath.Join(t.TempDir(), "policy.yaml")
		if err := os.WriteFile(f.file, []byte(strings.ReplaceAll(text, ", }", "}")), 0o600); err != nil {
			t.Fatal(err)
		}
		for _, f.engine = range []string{"go", "bpf"} {
			if f.engine == "bpf" && (os.Geteuid() != 0 || test.options == "evict: idle") {
				continue
			}
			policy, err := f.load()
			if err != nil {
				t.Fatal(err)
			}
			e, err := f.newEngine(policy)
			if err != nil {
				t.Fatal(err)
			}
			var lost, sent [senders]int
			_, err = replay.Run(context.Background(), bytes.NewReader(capture), e, replay.Config{Each: func(p *dataplane.Packet, v *dataplane.Verdict) error {
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
					t.Errorf("%s {%s} then %s: %.2f %% lost from %d.0.0.0, want %v to %v", f.engine, test.options, test.then, percent[from], from, want.least, want.most)
				}
			}
			t.Logf("%-3s {%s} then %s: %.1f %% lost of large packets, %.1f %% of hosts that pause, %.1f %% of small packets, %.1f %% of the spray",
				f.engine, test.options, test.then, percent[large], percent[pausing], percent[small], percent[spray])
		}
	}
}

// TestKeysOver holds that replay says where more keys came than a meter is to know, by the kernel's
// program, which forgets in its own way then; and that with no more the rows are those of Go.
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
		1: "", 16: "", 17: "shaper: warning: meter a met more than its 16 keys: ", 5000: "shaper: warning: meter a met more than its 16 keys: ",
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
			if code := run([]string{"replay", capture, "-p", file, "--engine", engine}, streams{nil, &out, &stderr}); code != exitDone {
				t.Fatalf("exit %d: %s", code, &stderr)
			}
			if engine == "go" {
				want = ""
			}
			if got := stderr.String(); want == "" && strings.Contains(got, "met more") || !strings.Contains(got, want) {
				t.Errorf("%s, %d sources: %q, want %q", engine, sources, got, want)
			}
		}
	}
}
