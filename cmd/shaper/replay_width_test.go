package main

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/cli"
)

// TestReplayWidth checks that replays of the shipped captures print at most 80 columns to a pipe, but for the
// commands to paste, and that --rate names the classes without packets on one line.
func TestReplayWidth(t *testing.T) {
	t.Parallel()
	captures, err := filepath.Glob("../../testdata/pcaps/*.pcap*")
	if err != nil || len(captures) == 0 {
		t.Fatal(err)
	}
	for _, path := range captures {
		var out, errs bytes.Buffer
		code := run([]string{"replay", path, "--rate", "1mbit"}, cli.Streams{Out: &out, Err: &errs})
		if code != cli.ExitDone {
			t.Fatalf("%s: exit %d: %s", path, code, &errs)
		}
		for line := range strings.Lines(out.String()) {
			if n := utf8.RuneCountInString(line) - 1; n > 80 && !strings.Contains(line, "shaper why") {
				t.Errorf("%s: %d columns: %s", path, n, line)
			}
		}
		if strings.HasSuffix(path, "bursts.pcap") {
			const want = "\nno packets: control-dscp, control-proto, control-dport, control-sport\n1,570 packets"
			if !strings.Contains(out.String(), want) || strings.Count(out.String(), "control-dscp") != 1 {
				t.Errorf("%s: got %s, want %q", path, &out, want)
			}
		}
	}
}
