package routers

import (
	"errors"
	"strings"
	"unicode/utf8"
)

// Line is a line of a configuration, not blank.
type Line struct {
	Number int
	Indent int      // blanks before the first word; a tab fills up to a multiple of 8
	Words  []string // at least one
}

// Text returns the words of the line.
func (l Line) Text() string { return strings.Join(l.Words, " ") }

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

// ReadLines splits a text into lines. It returns an error if it is not text.
func ReadLines(text string) ([]Line, error) {
	text = strings.TrimPrefix(text, "\ufeff")
	if !utf8.ValidString(text) || strings.ContainsRune(text, 0) {
		return nil, errors.New("it is not text")
	}
	var lines []Line
	number := 0
	for line := range strings.Lines(text) {
		number++
		if words := strings.Fields(line); len(words) > 0 {
			lines = append(lines, Line{number, indent(line), words})
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
