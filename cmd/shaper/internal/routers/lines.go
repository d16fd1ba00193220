package routers

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/pattern"
)

// Line is a line of a configuration, not blank.
type Line struct {
	Number int
	Indent int      // blanks before the first word; a tab fills up to a multiple of 8
	Words  []string // at least one
	Prompt string   // before it, which tells the indentation; or ""
}

// Text returns the words of the line.
func (l Line) Text() string { return strings.Join(l.Words, " ") }

// with returns the line with other words.
func (l Line) with(words []string) Line {
	l.Words = words
	return l
}

// Problem returns the statement as a problem.
func (l Line) Problem(format string, args ...any) Problem {
	return Problem{Line: l.Number, Text: l.Text(), Reason: fmt.Sprintf(format, args...)}
}

// is reports whether the line consists of one word, in any case.
func (l Line) is(word string) bool { return len(l.Words) == 1 && l.Has(word) }

// Has reports whether the line begins with the given words, in any case.
func (l Line) Has(words ...string) bool {
	if len(l.Words) < len(words) {
		return false
	}
	for i, w := range words {
		if !strings.EqualFold(l.Words[i], w) {
			return false
		}
	}
	return true
}

// Word returns a word of the line, or "" if there is none.
func (l Line) Word(i int) string {
	if i < len(l.Words) {
		return l.Words[i]
	}
	return ""
}

// prompt is what the command line of a router prints before a statement. Its group "level" names the level of
// the statement, with a part for each after the first one: config-pmap-c.
type prompt func() *regexp.Regexp

// cut returns a line without its prompt, and the depth of its level; -1 without a prompt.
func (p prompt) cut(line string) (rest string, depth int) {
	if p == nil {
		return line, -1
	}
	m := p().FindStringSubmatch(line)
	if m == nil {
		return line, -1
	}
	return line[len(m[0]):], strings.Count(m[p().SubexpIndex("level")], "-")
}

// pager matches what a terminal prints between two pages, and what removes it again before the next line.
var pager = pattern.Lazy(`^[ \t]*(?:<?-+ ?\(?[Mm]ore(?: \d+%)?\)? ?-+>?)(?:.*[\x08\r]|\x1b\[\d+D *\x1b\[\d+D)?`)

// ReadLines splits a text into lines. It removes prompts; nil means that there are none. It returns an
// error if it is not text.
func ReadLines(text string, p prompt) ([]Line, error) {
	text = strings.TrimPrefix(text, "\ufeff")
	if !utf8.ValidString(text) || strings.ContainsRune(text, 0) {
		return nil, errors.New("it is not text")
	}
	var lines []Line
	number := 0
	for line := range strings.Lines(text) {
		number++
		whole := pager().ReplaceAllString(strings.TrimRight(line, "\r\n"), "")
		line, depth := p.cut(whole)
		prompt := strings.TrimSpace(whole[:len(whole)-len(line)])
		if depth < 0 {
			depth = indent(line)
		}
		if words := strings.Fields(line); len(words) > 0 {
			lines = append(lines, Line{number, depth, words, prompt})
		}
	}
	return lines, nil
}

func indent(line string) (n int) {
	for _, r := range line {
		switch r {
		case ' ':
			n++
		case '\t':
			n += 8 - n%8
		default:
			return n
		}
	}
	return n
}
