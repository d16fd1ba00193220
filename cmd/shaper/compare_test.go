package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/cli"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/compare"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/summary"
)

// compareJSON runs shaper compare --json.
func compareJSON(t *testing.T, args ...string) compare.Result {
	t.Helper()
	var out, stderr bytes.Buffer
	if code := run(append([]string{"compare", "--json"}, args...),
		cli.Streams{Out: &out, Err: &stderr}); code != cli.ExitDone {
		t.Fatalf("exit %d: %s", code, &stderr)
	}
	var got compare.Result
	if err := json.Unmarshal(out.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	return got
}

// TestCompareAsReplay checks that each meter of a comparison has the same counts as in its own
// replay.
func TestCompareAsReplay(t *testing.T) {
	specs := []string{
		"token-bucket rate=1mbit burst=20ms",
		"srtcm cir=1mbit cbs=5kB ebs=5kB",
		"trtcm cir=1mbit cbs=5kB pir=2mbit pbs=10kB",
	}
	for _, capture := range []string{"office.pcap", "back.pcap", "cooked.pcapng"} {
		capture = "../../testdata/pcaps/" + capture
		args := []string{capture}
		for _, s := range specs {
			args = append(args, "--meter", s)
		}
		got := compareJSON(t, args...)
		for i, s := range specs {
			var out, stderr bytes.Buffer
			if code := run([]string{"replay", capture, "--json", "--meter", s},
				cli.Streams{Out: &out, Err: &stderr}); code != cli.ExitDone {
				t.Fatalf("exit %d: %s", code, &stderr)
			}
			var alone summary.Totals
			if err := json.Unmarshal(out.Bytes(), &alone); err != nil {
				t.Fatal(err)
			}
			m, want := got.Meters[i], alone.Classes[0]
			if m.Green != want.Green || m.Yellow != want.Yellow || m.Dropped != want.Dropped ||
				got.Count != alone.Count {
				t.Errorf("%s: %s: %+v of %+v, replay has %+v of %+v", capture, s, m, got.Count, want,
					alone.Count)
			}
		}
	}
}

// TestFamily compares every kind of meter with its closed form: no span of border.pcap may
// have more bytes than that allows.
func TestFamily(t *testing.T) {
	got := compareJSON(t, "../../testdata/pcaps/border.pcap", "--rate", "800kbit")
	most := map[string]float64{
		"token-bucket":        1.1,
		"gcra":                1.1,
		"srtcm":               1.2,
		"fixed-window":        2,
		"sliding-window":      2,
		"sliding-counter":     2,
		"sliding-log":         1,
		"tswtcm":              4, // an average does not bound spans
		"token-bucket+warmup": 1.1,
	}
	if len(got.Meters) != len(most) {
		t.Errorf("%d meters, want %d", len(got.Meters), len(most))
	}
	for _, m := range got.Meters {
		if m.Worst.Ratio <= 0 || m.Worst.Ratio > most[m.Name] {
			t.Errorf("%s let through %.3f times the rate, want %v at most", m.Name, m.Worst.Ratio,
				most[m.Name])
		}
		if m.Passed.Packets+m.Dropped.Packets != got.Packets || m.State <= 0 {
			t.Errorf("%+v of %d packets", m, got.Packets)
		}
	}
}

// TestComparePicture compares the picture in the docs with the output of its command.
func TestComparePicture(t *testing.T) {
	drawn := filepath.Join(t.TempDir(), "compare.svg")
	compareJSON(t, "../../testdata/pcaps/border.pcap", "--rate", "800kbit", "--picture", drawn)
	got, err := os.ReadFile(drawn)
	if err != nil {
		t.Fatal(err)
	}
	if want, err := os.ReadFile("../../docs/compare.svg"); err != nil || !bytes.Equal(got, want) {
		t.Errorf("docs/compare.svg differs (%v): make pictures", err)
	}
}
