package main

import (
	"go/scanner"
	"go/token"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// TestLineWidth finds lines of Go code above 110 columns, with 4 for a tab. The longest string of a
// line does not count, because broken strings are hard to find. Rows of tables in tests, which begin
// with a brace or a string, may be wider, and so may generated files, directives to the
// compiler and the first line of an example's output.
func TestLineWidth(t *testing.T) {
	t.Parallel()
	const widest, tab = 110, 4
	row := regexp.MustCompile("^\t*[{\"`]")
	width := func(s string) int { return utf8.RuneCountInString(s) + (tab-1)*strings.Count(s, "\t") }
	eachSource(t, func(path string, text []byte) {
		if !strings.HasSuffix(path, ".go") || strings.HasPrefix(string(text), "// Code generated ") {
			return
		}
		test := strings.HasSuffix(path, "_test.go")
		lines := strings.Split(string(text), "\n")
		literals := make([][]int, len(lines)) // widths of the strings in each line
		files := token.NewFileSet()
		file := files.AddFile(path, -1, len(text))
		var s scanner.Scanner
		s.Init(file, text, nil, 0)
		for {
			pos, tok, literal := s.Scan()
			if tok == token.EOF {
				break
			}
			if tok == token.STRING {
				first := file.Line(pos) - 1
				for i, part := range strings.Split(literal, "\n") {
					literals[first+i] = append(literals[first+i], width(part))
				}
			}
		}
		for i, line := range lines {
			w := width(line)
			if w <= widest || strings.HasPrefix(line, "//go:") || test && row.MatchString(line) ||
				i > 0 && strings.HasSuffix(lines[i-1], "// Output:") {
				continue
			}
			if len(literals[i]) > 0 {
				w -= slices.Max(literals[i])
			}
			if w > widest {
				t.Errorf("%s:%d: %d columns without the longest string, want at most %d", path, i+1, w, widest)
			}
		}
	})
}
