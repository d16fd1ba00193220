package main

import (
	"bytes"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"
)

// Widths of help, in columns.
const (
	leastHelpWidth = 40
	mostHelpWidth  = 100 // longer lines are hard to read
)

// wrapHelp wraps the help of all commands at the width of the terminal.
func wrapHelp(root *cobra.Command) {
	help := root.HelpFunc()
	root.SetHelpFunc(func(cmd *cobra.Command, args []string) {
		out := cmd.OutOrStdout()
		var text bytes.Buffer
		cmd.SetOut(&text)
		help(cmd, args)
		cmd.SetOut(out)
		width := min(max(say.Width(out), leastHelpWidth), mostHelpWidth)
		_, _ = io.WriteString(out, wrapText(text.String(), width))
	})
}

// wrapText wraps the lines of a help text. A paragraph with a line that is too long is filled again.
// Commands below Examples are continued after a backslash, as a shell reads them.
func wrapText(text string, width int) string {
	var out strings.Builder
	examples := false
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	for i := 0; i < len(lines); i++ {
		line := strings.TrimRight(lines[i], " ")
		if line != "" && line[0] != ' ' {
			examples = line == "Examples:"
		}
		n := paragraphLines(lines[i:])
		long := false
		for _, l := range lines[i : i+n] {
			long = long || utf8.RuneCountInString(strings.TrimRight(l, " ")) > width
		}
		switch {
		case !long:
			out.WriteString(line + "\n")
			continue
		case examples:
			wrapWords(&out, line, commandWords(line), width-2, 4, ` \`)
		case n > 1:
			line = strings.Join(lines[i:i+n], " ")
			fallthrough
		default:
			wrapWords(&out, line, strings.Fields(line), width, hangingIndent(line, width), "")
		}
		i += n - 1
	}
	return out.String()
}

// paragraphLines returns the number of lines of the paragraph at the beginning of lines, at least 1. Indented
// lines and those with columns stay alone.
func paragraphLines(lines []string) (n int) {
	for n < len(lines) && lines[n] != "" && !aligned().MatchString(lines[n]) {
		n++
	}
	return max(n, 1)
}

// hangingIndent returns the column of a line's last text in columns, where its continuation begins.
func hangingIndent(line string, width int) int {
	body := strings.TrimLeft(line, " ")
	indent := len(line) - len(body)
	if at := strings.Index(body, "   "); at >= 0 { // after a flag or the name of a command
		at += indent
		at += len(line[at:]) - len(strings.TrimLeft(line[at:], " "))
		if at < width*2/3 {
			return at
		}
	} else if at := strings.Index(body, "  "); at > 0 { // after an exit code
		return indent + at + 2
	}
	return indent + 2*min(indent, 2)
}

// commandWords splits a command at blanks outside quotes. A flag stays with its value.
func commandWords(line string) (words []string) {
	quoted := rune(0)
	start := 0
	line = strings.TrimSpace(line)
	for i, c := range line {
		switch {
		case quoted == 0 && (c == '"' || c == '\''):
			quoted = c
		case c == quoted:
			quoted = 0
		case c == ' ' && quoted == 0:
			if word := line[start:i]; !strings.HasPrefix(word, "-") || strings.HasPrefix(line[i+1:], "-") {
				words, start = append(words, word), i+1
			}
		}
	}
	return append(words, line[start:])
}

// wrapWords writes the words of a line in lines of a width, all but the last with an end. The text before the
// first word, and that up to the column of continuations, is kept.
func wrapWords(out *strings.Builder, line string, words []string, width, indent int, end string) {
	head := line[:len(line)-len(strings.TrimLeft(line, " "))]
	if end == "" && indent <= len(line) && strings.HasSuffix(line[:indent], " ") {
		head = line[:indent]
		words = strings.Fields(line[indent:])
	}
	at := utf8.RuneCountInString(head)
	out.WriteString(head)
	for i, word := range words {
		n := utf8.RuneCountInString(word)
		switch {
		case i == 0:
		case at+1+n > width:
			out.WriteString(end + "\n" + strings.Repeat(" ", indent))
			at = indent
		default:
			out.WriteString(" ")
			at++
		}
		out.WriteString(word)
		at += n
	}
	out.WriteString("\n")
}
