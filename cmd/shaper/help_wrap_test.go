package main

import (
	"bytes"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/cli"
)

// TestHelpWidth checks the help of all commands: no line of a pipe is above 80 columns, and no word is lost.
func TestHelpWidth(t *testing.T) {
	t.Parallel()
	var paths [][]string
	walkCommands(newRoot(cli.Streams{}), func(cmd *cobra.Command) {
		if !cmd.IsAdditionalHelpTopicCommand() { // a topic quotes files and outputs unchanged
			paths = append(paths, strings.Fields(cmd.CommandPath())[1:])
		}
	})
	if len(paths) < 30 {
		t.Fatalf("only %d commands", len(paths))
	}
	for _, path := range paths {
		var out, errs bytes.Buffer
		if code := run(append(path, "--help"), cli.Streams{Out: &out, Err: &errs}); code != cli.ExitDone {
			t.Fatalf("%q: exit %d: %s", path, code, &errs)
		}
		for line := range strings.Lines(out.String()) {
			if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > 80 {
				t.Errorf("%q: %d columns: %s", path, n, line)
			}
		}
	}
}

// TestWrapText checks how lines of help are wrapped.
func TestWrapText(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, text, want string
		width            int
	}{
		{"short", "a b\n\n  c   d\n", "a b\n\n  c   d\n", 20},
		{
			"a flag", "Flags:\n  -a, --all   all of the interfaces, each\n      --b     b\n",
			"Flags:\n  -a, --all   all of the\n              interfaces, each\n      --b     b\n", 30,
		},
		{
			"a flag with columns in its text", "      --all   all  of the interfaces\n",
			"      --all   all of the\n              interfaces\n", 30 - 6,
		},
		{
			"an exit code", "Exit status:\n  1  failure of anything at all\n",
			"Exit status:\n  1  failure of\n     anything at\n     all\n", 17,
		},
		{"a paragraph", "one two three\nfour five\nsix\n\nseven\n", "one two\nthree four\nfive six\n\nseven\n", 10},
		{"columns in a paragraph", "a b c\n  x    y\n", "a b c\n  x    y\n", 8},
		{
			"a command", "Examples:\n  shaper run eth0 --meter \"a b\" --red drop\n\nFlags:\n",
			"Examples:\n  shaper run eth0 \\\n    --meter \"a b\" \\\n    --red drop\n\nFlags:\n", 24,
		},
		{"a long word", "abcdefghijkl mn\n", "abcdefghijkl\nmn\n", 10},
		{"usage", "Usage:\n  shaper set A [B] [flags]\n", "Usage:\n  shaper set A\n      [B]\n      [flags]\n", 14},
	} {
		if got := wrapText(tt.text, tt.width); got != tt.want {
			t.Errorf("%s: got\n%s\nwant\n%s", tt.name, got, tt.want)
		}
	}
}
