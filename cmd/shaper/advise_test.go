package main

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/advise"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/cli"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/report"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/summary"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

// jsonOf runs a command and decodes its JSON.
func jsonOf[T any](t *testing.T, args ...string) (got T) {
	t.Helper()
	var out, stderr bytes.Buffer
	if code := run(args, cli.Streams{Out: &out, Err: &stderr}); code != cli.ExitDone {
		t.Fatalf("%v: exit %d: %s", args, code, &stderr)
	}
	if err := json.Unmarshal(out.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	return got
}

// TestAdviseForgedLength checks the burst for packets whose record claims more than 2^31 bytes.
func TestAdviseForgedLength(t *testing.T) {
	order := binary.LittleEndian
	raw := order.AppendUint32(nil, 0xa1b2c3d4)
	for _, v := range []uint32{2 | 4<<16, 0, 0, 1 << 18, 1} { // Ethernet
		raw = order.AppendUint32(raw, v)
	}
	frame := append(make([]byte, 12), 8, 0, 0x45, 0, 0, 40, 0, 0, 0, 0, 64, 17, 0, 0, 192, 0, 2, 1, 192, 0, 2,
		2)
	lengths := []uint32{1<<31 - 1, 1 << 31, 1<<32 - 1}
	want := int64(0)
	for _, n := range lengths {
		for _, v := range []uint32{1, 0, uint32(len(frame)), n} { // all at one time
			raw = order.AppendUint32(raw, v)
		}
		raw = append(raw, frame...)
		want += int64(n) - 14
	}
	path := filepath.Join(t.TempDir(), "forged.pcap")
	if err := os.WriteFile(path, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	if a := jsonOf[advise.Advice](t, "advise", path, "--json", "--rate", "1mbit"); a.LossFree != want {
		t.Errorf("loss-free burst %d, want %d", a.LossFree, want)
	}
}

// TestAdviseReplayed replays captures with the advised bursts: the wanted loss holds, and with one
// byte less it does not.
func TestAdviseReplayed(t *testing.T) {
	captures, err := filepath.Glob("../../testdata/pcaps/*.pcap*")
	if err != nil || len(captures) == 0 {
		t.Fatal("no captures", err)
	}
	for _, capture := range captures {
		for _, rate := range []string{"1mbit", "12345678bit"} {
			all := jsonOf[summary.Totals](t, "replay", capture, "--json", "--green", "pass")
			if len(all.Classes) == 0 || all.Classes[0].Packets == 0 {
				continue
			}
			lost := func(burst int64) int64 {
				got := jsonOf[summary.Totals](t, "replay", capture, "--json", "--meter",
					fmt.Sprintf("token-bucket rate=%s burst=%d", rate, burst))
				return got.Classes[0].Dropped.Packets
			}
			for _, percent := range []int64{0, 1, 10} {
				a := jsonOf[advise.Advice](t, "advise", capture, "--json", "--rate", rate, "--loss",
					fmt.Sprintf("%d%%", percent), "--excess", "20%")
				most := all.Classes[0].Packets * percent / 100
				var burst int64
				if _, err := fmt.Sscanf(a.Meters[0].Meter, "token-bucket rate="+rate+" burst=%d",
					&burst); err != nil {
					t.Fatal(a.Meters[0].Meter, err)
				}
				if percent == 0 && burst != a.LossFree {
					t.Errorf("%s: loss-free burst %d, the one for a loss of 0 %% is %d", capture, a.LossFree,
						burst)
				}
				if n := lost(burst); n > most {
					t.Errorf("%s at %s: the burst %d drops %d packets, want at most %d", capture, rate, burst,
						n, most)
				}
				if burst > 1 {
					if n := lost(burst - 1); n <= most {
						t.Errorf("%s at %s: the burst %d drops %d packets, so %d is not the smallest",
							capture, rate, burst-1, n, burst)
					}
				}
				for _, at := range []int{0, len(a.Frontier) / 2} {
					if p := a.Frontier[at]; lost(p.Burst) != p.Dropped.Packets {
						t.Errorf("%s at %s: the frontier has %d drops at %d, replay has %d", capture, rate,
							p.Dropped.Packets, p.Burst, lost(p.Burst))
					}
				}
			}
		}
	}
}

// TestAdvisePolicy checks the advised policies: they compile, without warnings.
func TestAdvisePolicy(t *testing.T) {
	for _, args := range [][]string{
		{"../../testdata/pcaps/bursts.pcap", "--rate", "10mbit"},
		{"--rate", "50mbit", "--rtt", "40ms"},
		{"--rate", "50mbit", "--rtt", "40ms", "--target-rate", "48mbit"},
		{"--rate", "50mbit", "--rtt", "200ms", "--target-rate", "47500kbit"},
		{"--rate", "50mbit", "--rtt", "300ms", "--target-rate", "49900kbit"},
		{"--rate", "50gbit", "--rtt", "1ms"},
	} {
		a := jsonOf[advise.Advice](t, append([]string{"advise", "--json"}, args...)...)
		if a.Policy == "" {
			if len(a.Warnings) == 0 {
				t.Errorf("%v: neither a policy nor a warning", args)
			}
			continue
		}
		file := filepath.Join(t.TempDir(), "policy.yaml")
		if err := os.WriteFile(file, []byte(a.Policy), 0o600); err != nil {
			t.Fatal(err)
		}
		var out, stderr bytes.Buffer
		if code := run([]string{"check", file, "--rtt", "1ms"},
			cli.Streams{Out: &out, Err: &stderr}); code != cli.ExitDone ||
			bytes.Contains(out.Bytes(), []byte("warning:")) {
			t.Errorf("%v: exit %d: %s%s\n%s", args, code, &stderr, &out, a.Policy)
		}
	}
}

// TestAdvisePolicyLength checks that an advised policy counts lengths as the advice did.
func TestAdvisePolicyLength(t *testing.T) {
	a := jsonOf[advise.Advice](t, "advise", "--json", "../../testdata/pcaps/bursts.pcap", "--rate", "10mbit",
		"--length", "base=l2,overhead=4,mpu=64")
	file, err := policyfile.Load("p", []byte(a.Policy))
	if err != nil {
		t.Fatal(err)
	}
	want := dataplane.LengthRule{Base: dataplane.L2, Overhead: 4, MPU: 64}
	if got := file.Policy.Length; got != want {
		t.Errorf("got %+v, want %+v, in\n%s", got, want, a.Policy)
	}
}

// TestAdviseOfClasses compares the counts of classes with those of a replay.
func TestAdviseOfClasses(t *testing.T) {
	const capture, policy = "../../testdata/pcaps/voice-bulk.pcapng", "../../docs/customer.yaml"
	a := jsonOf[advise.Advice](t, "advise", capture, "--json", "--policy", policy)
	want := jsonOf[summary.Totals](t, "replay", capture, "--json", "--policy", policy)
	if len(a.Classes) != 3 {
		t.Fatalf("got %d classes, want 3", len(a.Classes))
	}
	for i, c := range a.Classes {
		w := want.Classes[i]
		if c.Name != w.Name || c.Yellow != w.Yellow || c.Red != w.Red || c.Offered != w.Count {
			t.Errorf("got %s: %v offered, %v yellow, %v red; a replay has %s: %v, %v, %v", c.Name, c.Offered,
				c.Yellow, c.Red, w.Name, w.Count, w.Yellow, w.Red)
		}
	}
}

func TestFrontierPicture(t *testing.T) {
	var out bytes.Buffer
	if err := report.WriteFrontier(&out, report.Frontier{
		Input: "a<b", Rate: "1mbit", Bursts: []int64{1500, 3000, 6000}, Loss: []float64{0.5, 0.1, 0},
	}); err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(out.Bytes(), []byte("a&lt;b")) || bytes.Contains(out.Bytes(), []byte("NaN")) {
		t.Errorf("got %s", &out)
	}
	for _, bad := range []report.Frontier{
		{Bursts: []int64{1}},
		{Bursts: []int64{2, 1}, Loss: []float64{0, 0}},
		{Bursts: []int64{0}, Loss: []float64{0}},
	} {
		if report.WriteFrontier(&out, bad) == nil {
			t.Errorf("%+v: want an error", bad)
		}
	}
}

// TestAdviseKeys replays a meter per source with the advised burst, and with one byte less.
func TestAdviseKeys(t *testing.T) {
	const capture = "../../testdata/pcaps/office.pcap"
	write := func(burst int64) string {
		file := filepath.Join(t.TempDir(), "hosts.yaml")
		text := fmt.Sprintf(
			"classes: [{name: hosts, meter: {type: token-bucket, rate: 200kbit, burst: %d, per: src}}]\n",
			burst)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	a := jsonOf[advise.Advice](t, "advise", capture, "--json", "--policy", write(3000))
	burst := a.Classes[0].LossFree
	if a.Classes[0].Keys < 2 || burst < 1501 {
		t.Fatalf("got %d keys and a burst of %d, want several keys and more than a packet", a.Classes[0].Keys,
			burst)
	}
	for b, want := range map[int64]bool{burst: false, burst - 1: true} {
		got := jsonOf[summary.Totals](t, "replay", capture, "--json", "--policy",
			write(b)).Classes[0].Dropped.Packets
		if got > 0 != want {
			t.Errorf("a burst of %d drops %d packets; the advised one is %d", b, got, burst)
		}
	}
}

// TestAdviseUsage checks the errors of contradictory flags.
func TestAdviseUsage(t *testing.T) {
	const capture = "../../testdata/pcaps/office.pcap"
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{}, "without a capture"},
		{[]string{"--rate", "1mbit"}, "without a capture"},
		{[]string{"--rate", "1mbit", "--rtt", "10ms", "--picture", "a.svg"}, "need a capture"},
		{[]string{capture, "--rate", "10kB/1min"}, "whole number"},
		{[]string{capture, "--rate", "0bit"}, "above zero"},
		{[]string{capture, "--rate", "10mbps"}, "ambiguous"},
		{[]string{capture, "--peak", "10mbit"}, "need --rate"},
		{[]string{capture, "--rate", "10mbit", "--peak", "1mbit"}, "below --rate"},
		{[]string{capture, "--rate", "10mbit", "--target-rate", "20mbit"}, "above --rate"},
		{[]string{capture, "--rate", "10mbit", "--loss", "10%"}, "below --loss"},
		{[]string{capture, "--rate", "10mbit", "--loss", "101%"}, "--loss"},
		{[]string{capture, "--rate", "10mbit", "--flows", "-1"}, "--flows"},
		{[]string{capture, "--rate", "10mbit", "--picture", "a.png"}, ".svg"},
		{[]string{capture, "--rate", "10mbit", "--policy", "../../docs/customer.yaml"}, "--policy"},
	} {
		var out, stderr bytes.Buffer
		if code := run(append([]string{"advise"}, c.args...),
			cli.Streams{Out: &out, Err: &stderr}); code != cli.ExitUsage ||
			!strings.Contains(stderr.String(), c.want) || out.Len() > 0 {
			t.Errorf("%v: exit %d, got %s%s, want exit %d and %q", c.args, code, &out, &stderr, cli.ExitUsage,
				c.want)
		}
	}
}
