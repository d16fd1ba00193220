package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/cli"
)

// TestSuggestions checks the questions behind misspelled flags and commands.
func TestSuggestions(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		"replay x --metre":          "unknown flag: --metre: did you mean --meter?",
		"status --jsn":              "unknown flag: --jsn: did you mean --json?",
		"run eth0 --bothh":          "unknown flag: --bothh: did you mean --both?",
		"run eth0 --Direction=both": "unknown flag: --Direction: did you mean --direction?",
		"budget list --stor x":      "unknown flag: --stor: did you mean --store?",
		"run eth0 --zzz":            "unknown flag: --zzz: see shaper run --help",
		"run eth0 -z":               "unknown shorthand flag: 'z' in -z: see shaper run --help",
		"repaly":                    `unknown command "repaly": did you mean replay?`,
	} {
		var out, errs bytes.Buffer
		code := run(strings.Fields(line), cli.Streams{In: strings.NewReader(""), Out: &out, Err: &errs})
		if code == cli.ExitDone || !strings.Contains(errs.String(), want) {
			t.Errorf("%q: exit %d, %q, want %q", line, code, &errs, want)
		}
	}
}
