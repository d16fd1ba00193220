package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
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
		{[]string{policy}, exitFailed, "shaper: 1 warning, which --strict does not accept\n"},
		{[]string{policy, "--json"}, exitFailed, "shaper: 1 warning, which --strict does not accept\n"},
		{[]string{"--green", "pass"}, exitDone, ""},
		{[]string{"../../docs/customer.csv"}, exitUsage, "shaper: policy \"../../docs/customer.csv\": no such file or directory\n"},
	} {
		var loose, strict, stderr, ignored bytes.Buffer
		code := run(append([]string{"check", "--strict"}, tt.args...), streams{nil, &strict, &stderr})
		if code != tt.strict || stderr.String() != tt.err {
			t.Errorf("%q: exit %d, %q; want %d, %q", tt.args, code, &stderr, tt.strict, tt.err)
		}
		code = run(append([]string{"check"}, tt.args...), streams{nil, &loose, &ignored})
		if wantsZero := tt.strict == exitFailed; wantsZero && code != exitDone || loose.String() != strict.String() {
			t.Errorf("%q: exit %d without --strict, output\n%s\nwith it\n%s", tt.args, code, &loose, &strict)
		}
	}
}

// TestSnapLengthNote checks that a capture of headers causes a note after the result, and no warning.
func TestSnapLengthNote(t *testing.T) {
	const capture = "../../testdata/pcaps/bursts.pcap"
	const note = "shaper: note: " + capture + ": 1,570 packets (first: 1): truncated by the snap length; metered by original length\n"
	const one = "token-bucket rate=1mbit burst=20ms"
	for _, args := range [][]string{
		{"replay", capture, "--meter", one, "--red", "pass"},
		{"compare", capture, "--meter", one},
		{"diff", one, one, capture},
	} {
		var both, out, stderr bytes.Buffer
		if code := run(args, streams{nil, &both, &both}); code != exitDone || !strings.HasSuffix(both.String(), "\n"+note) || strings.Contains(both.String(), "warning: "+capture) {
			t.Errorf("%q: exit %d:\n%s", args, code, &both)
		}
		if code := run(append(args, "--json"), streams{nil, &out, &stderr}); code != exitDone || stderr.String() != note {
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
}
