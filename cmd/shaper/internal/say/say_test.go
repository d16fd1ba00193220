package say

import (
	"math"
	"os/exec"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
)

func TestPrintable(t *testing.T) {
	for name, want := range map[string]string{
		"":                     "",
		"/tmp/Zürich 50 %s":    "/tmp/Zürich 50 %s",
		`C:\captures\"x".pcap`: `C:\captures\"x".pcap`,
		"\x1b]0;owned\a.pcap":  `\x1b]0;owned\a.pcap`,
		"two\nlines":           `two\nlines`,
		"tab\t, \"quoted\"":    `tab\t, "quoted"`,
		"\u202efdp.pcap":       `\u202efdp.pcap`,
		"C1 \u009b2J":          `C1 \u009b2J`,
		"latin-1 \xfc":         `latin-1 \xfc`,
		"\u2028":               `\u2028`,
	} {
		got := Printable(name)
		if got != want {
			t.Errorf("%q: got %s, want %s", name, got, want)
		}
		if again := Printable(got); again != got {
			t.Errorf("%q, twice: got %s, want %s", name, again, got)
		}
	}
}

// TestDescribeMeter checks the text of each type of meter.
func TestDescribeMeter(t *testing.T) {
	for text, want := range map[string]string{
		"srtcm cir=1mbit cbs=2kB ebs=0":                                        "CIR 1mbit, CBS 2000 B (16 ms), EBS 0 B (0 ns)",
		"trtcm4115 cir=1mbit cbs=2kB eir=0bit ebs=1 coupling=true initial=50%": "CIR 1mbit, CBS 2000 B (16 ms), EIR 0bit, EBS 1 B (never refills), coupling, initial 1/2",
		"gcra rate=100p/1s burst=10 count=packets initial=empty":               "rate 1p/10ms, burst 10 p (100 ms), initial 0/1",
		"token-bucket rate=1mbit burst=2kB warmup=1min":                        "rate 1mbit, burst 2000 B (16 ms), warmup 1m0s",
		"fixed-window limit=125kB window=1s":                                   "limit 125000 B, window 1s",
		"sliding-counter limit=9 window=10ms count=packets initial=50%":        "limit 9 p, window 10ms, initial 1/2",
		"sliding-window limit=9kB window=1s slots=4":                           "limit 9000 B, window 1s, slots 4 (64 B)",
		"sliding-log limit=9kB window=1s":                                      "limit 9000 B, window 1s, entries 65536 (1 MiB)",
		"sliding-log limit=9kB window=1s entries=100":                          "limit 9000 B, window 1s, entries 100 (1.562 KiB)",
		"tswtcm cir=1mbit pir=2mbit window=1s":                                 "CIR 1mbit, PIR 2mbit, window 1s, seed 0",
		"tswtcm cir=1p/1s pir=2p/1s window=1s seed=3 count=packets":            "CIR 1p/1s, PIR 1p/500ms, window 1s, seed 3",
		"gcra rate=1mbit burst=2kB per=src/24,64":                              "rate 1mbit, burst 2000 B (16 ms), per src/24,64, at most 65,536 keys, new ones start full, evicts the least recently used",
		"gcra rate=1mbit burst=2kB per=flow keys=9 new=empty":                  "rate 1mbit, burst 2000 B (16 ms), per flow, at most 9 keys, new ones start empty, evicts the least recently used",
		"gcra rate=1mbit burst=2kB per=vlan evict=idle keys=1":                 "rate 1mbit, burst 2000 B (16 ms), per vlan, at most 1 key, new ones start full, evicts the least recently used if it is idle",
		"sliding-window limit=9kB window=1s per=dst keys=64":                   "limit 9000 B, window 1s, slots 10 (160 B), per dst, at most 64 keys, new ones start full, evicts the least recently used (10 KiB of entries)",
	} {
		f, err := policyfile.OneLiner{Meter: text}.Load()
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if got := Meter(f.Policy.Classes[0].Meter); got != want {
			t.Errorf("%s:\n got %s\nwant %s", text, got, want)
		}
	}
}

// TestShortened checks that large numbers have four digits.
func TestShortened(t *testing.T) {
	for n, want := range map[int64]string{
		0: "0", 999_999: "999,999", 1e6: "1.000 M", 9_999_499: "9.999 M", 9_999_500: "10.00 M",
		99_994_999: "99.99 M", 99_995_000: "100.0 M", 999_949_999: "999.9 M", 999_950_000: "1.000 G",
		1e15: "1.000 P", math.MaxInt64: "9.223 E",
	} {
		if got := shortened(n); got != want {
			t.Errorf("%d: got %q, want %q", n, got, want)
		}
	}
}

// TestGrouped checks the commas between thousands.
func TestGrouped(t *testing.T) {
	for n, want := range map[int64]string{
		0: "0", 999: "999", 1000: "1,000", -999: "-999", -1000: "-1,000",
		math.MaxInt64: "9,223,372,036,854,775,807", math.MinInt64: "-9,223,372,036,854,775,808",
	} {
		if got := Grouped(n); got != want {
			t.Errorf("%d: got %q, want %q", n, got, want)
		}
	}
}

// TestCount checks singular and plural.
func TestCount(t *testing.T) {
	for n, want := range map[int]string{0: "0 classes", 1: "1 class", 2: "2 classes", 1234: "1,234 classes"} {
		if got := Count(n, "class"); got != want {
			t.Errorf("%d: got %q, want %q", n, got, want)
		}
	}
	if got := Count(2, "key"); got != "2 keys" {
		t.Error(got)
	}
}

// TestQuoted gives quoted words to a shell.
func TestQuoted(t *testing.T) {
	for _, word := range []string{
		"", "plain-1_2./=:,@%+", "two words", "it's", `a"b\c`, "$HOME `id` !", "tab\tnew\nline",
		"\x1b[31m\xff'", "é", "~", "*", `"$HOME" \ $(id) *?~`, "-", "tab\t'q'\\7", "\xff\xfe", "\u202e",
	} {
		out, err := exec.Command("bash", "-c", "printf %s "+Quoted(word)).Output()
		if err != nil || string(out) != word {
			t.Errorf("%q: %s is %q (%v)", word, Quoted(word), out, err)
		}
		if q := Quoted(word); Printable(q) != q {
			t.Errorf("%q has unprintable characters", q)
		}
	}
}
