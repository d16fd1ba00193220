package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/cli"
)

// TestFileNamesAreEscaped uses files whose names would control a terminal. Output and messages
// must not have such characters.
func TestFileNamesAreEscaped(t *testing.T) {
	const evil = "\x1b]0;owned\a\n\u202e\u009b2J\xff"
	dir := t.TempDir()
	file := func(name string, text []byte) string {
		path := filepath.Join(dir, evil+name)
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	raw, err := os.ReadFile("../../testdata/pcaps/voice-bulk.pcapng") // causes a warning
	if err != nil {
		t.Fatal(err)
	}
	var (
		whole  = file("whole.pcap", raw)
		cut    = file("cut.pcap", raw[:len(raw)-1])
		none   = file("none.pcap", []byte("no capture"))
		policy = file("policy.yaml",
			[]byte("classes:\n  - name: all\n    meter: {type: token-bucket, rate: 10mbit, burst: 1000}\n"))
		wrong = file("wrong.yaml",
			[]byte("classes:\n  - name: all\n    meter: {type: token-bucket, rate: 10, burst: 1000}\n"))
		missing = filepath.Join(dir, evil+"missing")
		report  = filepath.Join(dir, evil+"report.html")
		side    = filepath.Join(dir, evil+"side.html")
		picture = filepath.Join(dir, evil+"picture.svg")
	)
	for _, test := range []struct {
		code  int
		named bool // stderr has a name
		args  []string
	}{
		{cli.ExitDone, true, []string{"replay", whole, "-p", policy, "--report", report}},
		{cli.ExitDone, true, []string{"replay", whole, "-p", policy, "--json"}},
		{cli.ExitFailed, true, []string{"replay", cut, "-p", policy}},
		{cli.ExitFailed, true, []string{"replay", none, "-p", policy}},
		{cli.ExitFailed, true, []string{"replay", missing, "-p", policy}},
		{cli.ExitUsage, true, []string{"replay", whole, "-p", wrong}},
		{cli.ExitUsage, true, []string{"replay", whole, "-p", missing}},
		{cli.ExitUsage, false, []string{"replay", dir, "-p", policy, "-o", filepath.Join(missing, "out.pcap")}},
		{cli.ExitFailed, true, []string{"replay", whole, "-p", policy, "-o", filepath.Join(missing, "out.pcap")}},
		{cli.ExitUsage, true, []string{"replay", whole, "-p", policy, "-o", whole}},
		{cli.ExitUsage, true, []string{"replay", whole, "-p", policy, "-o", policy}},
		{cli.ExitUsage, true, []string{"replay", whole, "-p", policy, "-o", report, "--report", report}},
		{cli.ExitDone, false, []string{"why", whole, "3", "-p", policy}},
		{cli.ExitFailed, true, []string{"why", whole, "9999", "-p", policy}},
		{cli.ExitFailed, true, []string{"why", cut, "9999", "-p", policy}},
		{cli.ExitDone, false, []string{"check", policy}},
		{cli.ExitUsage, true, []string{"check", wrong}},
		{cli.ExitUsage, true, []string{"check", missing}},
		{cli.ExitDone, true, []string{"compare", whole, "--rate", "10mbit", "--report", side, "--picture", picture}},
		{cli.ExitFailed, true, []string{"compare", cut, "--rate", "10mbit"}},
		{cli.ExitUsage, true, []string{evil}},
		{cli.ExitUsage, false, []string{"replay", "--" + evil}},
	} {
		var out, stderr bytes.Buffer
		if code := run(test.args, cli.Streams{Out: &out, Err: &stderr}); code != test.code {
			t.Errorf("%q: exit %d, want %d: %s", test.args, code, test.code, &stderr)
		}
		for name, text := range map[string]string{"stdout": out.String(), "stderr": stderr.String()} {
			if at := unprintable(text); at >= 0 {
				t.Errorf("%q: %s has %q", test.args, name, text[max(0, at-20):min(len(text), at+20)])
			}
		}
		if strings.Contains(stderr.String(), `\x1b]0;owned\a\n`) != test.named {
			t.Errorf("%q: a name is %t in %s", test.args, !test.named, &stderr)
		}
	}
	for _, path := range []string{report, side, picture} {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(text, []byte("\x1b")) || bytes.Contains(text, []byte("\u202e")) ||
			!utf8.Valid(text) {
			t.Errorf("%q has control characters", path)
		}
	}
}

// unprintable returns the index of the first unprintable character, or -1.
func unprintable(text string) int {
	for i, r := range text {
		if r != '\n' && !unicode.IsPrint(r) || r == utf8.RuneError {
			return i
		}
	}
	return -1
}
