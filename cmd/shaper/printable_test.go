package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"
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
		whole   = file("whole.pcap", raw)
		cut     = file("cut.pcap", raw[:len(raw)-1])
		none    = file("none.pcap", []byte("no capture"))
		policy  = file("policy.yaml", []byte("classes:\n  - name: all\n    meter: {type: token-bucket, rate: 10mbit, burst: 1000}\n"))
		wrong   = file("wrong.yaml", []byte("classes:\n  - name: all\n    meter: {type: token-bucket, rate: 10, burst: 1000}\n"))
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
		{exitDone, true, []string{"replay", whole, "-p", policy, "--report", report}},
		{exitDone, true, []string{"replay", whole, "-p", policy, "--json"}},
		{exitFailed, true, []string{"replay", cut, "-p", policy}},
		{exitFailed, true, []string{"replay", none, "-p", policy}},
		{exitFailed, true, []string{"replay", missing, "-p", policy}},
		{exitUsage, true, []string{"replay", whole, "-p", wrong}},
		{exitUsage, true, []string{"replay", whole, "-p", missing}},
		{exitUsage, false, []string{"replay", dir, "-p", policy, "-o", filepath.Join(missing, "out.pcap")}},
		{exitFailed, true, []string{"replay", whole, "-p", policy, "-o", filepath.Join(missing, "out.pcap")}},
		{exitUsage, true, []string{"replay", whole, "-p", policy, "-o", whole}},
		{exitUsage, true, []string{"replay", whole, "-p", policy, "-o", policy}},
		{exitUsage, true, []string{"replay", whole, "-p", policy, "-o", report, "--report", report}},
		{exitDone, false, []string{"why", whole, "3", "-p", policy}},
		{exitFailed, true, []string{"why", whole, "9999", "-p", policy}},
		{exitFailed, true, []string{"why", cut, "9999", "-p", policy}},
		{exitDone, false, []string{"check", policy}},
		{exitUsage, true, []string{"check", wrong}},
		{exitUsage, true, []string{"check", missing}},
		{exitDone, true, []string{"compare", whole, "--rate", "10mbit", "--report", side, "--picture", picture}},
		{exitFailed, true, []string{"compare", cut, "--rate", "10mbit"}},
		{exitUsage, true, []string{evil}},
		{exitUsage, false, []string{"replay", "--" + evil}},
	} {
		var out, stderr bytes.Buffer
		if code := run(test.args, streams{nil, &out, &stderr}); code != test.code {
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
		if bytes.Contains(text, []byte("\x1b")) || bytes.Contains(text, []byte("\u202e")) || !utf8.Valid(text) {
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
