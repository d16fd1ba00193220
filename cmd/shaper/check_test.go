package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/cli"
)

// TestCheckStrict checks that warnings fail only with --strict, notes never, and that the output is
// the same.
func TestCheckStrict(t *testing.T) {
	const policy = "../../docs/customer.yaml" // with a warning and a note
	for _, tt := range []struct {
		args   []string
		strict int
		err    string
	}{
		{[]string{policy}, cli.ExitFailed, "shaper: 1 warning, which --strict does not accept\n"},
		{[]string{policy, "--json"}, cli.ExitFailed, "shaper: 1 warning, which --strict does not accept\n"},
		{[]string{"--green", "pass"}, cli.ExitDone, ""},
		{[]string{"../../docs/customer.csv"}, cli.ExitUsage, "shaper: policy \"../../docs/customer.csv\": no such file or directory\n"},
	} {
		var loose, strict, stderr, ignored bytes.Buffer
		code := run(append([]string{"check", "--strict"}, tt.args...),
			cli.Streams{Out: &strict, Err: &stderr})
		if code != tt.strict || stderr.String() != tt.err {
			t.Errorf("%q: exit %d, %q; want %d, %q", tt.args, code, &stderr, tt.strict, tt.err)
		}
		code = run(append([]string{"check"}, tt.args...), cli.Streams{Out: &loose, Err: &ignored})
		if wantsZero := tt.strict == cli.ExitFailed; wantsZero && code != cli.ExitDone ||
			loose.String() != strict.String() {
			t.Errorf("%q: exit %d without --strict, output\n%s\nwith it\n%s", tt.args, code, &loose, &strict)
		}
	}
}

// TestSnapLength checks that a capture of complete headers causes no warning, only a note in JSON, and
// that incomplete headers cause a warning.
func TestSnapLength(t *testing.T) {
	const capture, cut = "../../testdata/pcaps/bursts.pcap", "../../testdata/pcaps/edges.pcap"
	const one = "token-bucket rate=1mbit burst=20ms"
	for _, args := range [][]string{
		{"replay", capture, "--rate", "10mbit"},
		{"compare", capture, "--meter", one},
		{"diff", one, one, capture},
	} {
		var text, out, stderr bytes.Buffer
		if code := run(args, cli.Streams{Out: &text, Err: &stderr}); code != cli.ExitDone ||
			stderr.Len() > 0 {
			t.Errorf("%q: exit %d: %s", args, code, &stderr)
		}
		if code := run(append(args, "--json"), cli.Streams{Out: &out, Err: &stderr}); code != cli.ExitDone ||
			stderr.Len() > 0 {
			t.Errorf("%q --json: exit %d: %s", args, code, &stderr)
		}
		type notices struct{ Warnings, Notes []string }
		var got struct {
			notices
			Capture *notices
		}
		err := json.Unmarshal(out.Bytes(), &got)
		if got.Capture != nil { // of diff
			got.notices = *got.Capture
		}
		if err != nil || got.Warnings == nil || len(got.Warnings) != 0 || len(got.Notes) != 1 {
			t.Errorf("%q: warnings %q, notes %q (%v)", args, got.Warnings, got.Notes, err)
		}
	}
	var stdout, stderr bytes.Buffer
	// By the README of the captures: 39, 66, and 75 to 97, but 86 and 91, which are cut behind the ports.
	const want = "23 packets (first: 39): headers truncated by the snap length"
	code := run([]string{"replay", cut, "--meter", one}, cli.Streams{Out: &stdout, Err: &stderr})
	if code != cli.ExitDone || !strings.Contains(stderr.String(), want) {
		t.Errorf("exit %d: %s, want %q", code, &stderr, want)
	}
}
