package routers

import (
	"fmt"
	"slices"
	"strings"
)

// junosToken is a word, or one of { } ; [ ].
type junosToken struct {
	text   string
	line   int
	quoted bool
}

// junosTokens splits a text. It removes comments.
func junosTokens(text string) (tokens []junosToken, err error) {
	line := 1
	for i := 0; i < len(text); {
		switch c := text[i]; {
		case c == '\n':
			line++
			i++
		case c == ' ', c == '\t', c == '\r':
			i++
		case c == '#':
			for i < len(text) && text[i] != '\n' {
				i++
			}
		case strings.HasPrefix(text[i:], "/*"):
			end := strings.Index(text[i:], "*/")
			if end < 0 {
				return nil, fmt.Errorf("line %d: the comment does not end", line)
			}
			line += strings.Count(text[i:i+end], "\n")
			i += end + 2
		case strings.ContainsRune("{};[]", rune(c)):
			tokens = append(tokens, junosToken{text: string(c), line: line})
			i++
		case c == '"':
			end := strings.IndexAny(text[i+1:], "\"\n")
			if end < 0 || text[i+1+end] == '\n' {
				return nil, fmt.Errorf("line %d: the quotes are not closed", line)
			}
			tokens = append(tokens, junosToken{text[i+1 : i+1+end], line, true})
			i += end + 2
		default:
			end := strings.IndexAny(text[i:], " \t\r\n{};[]\"")
			if end < 0 {
				end = len(text) - i
			}
			if end == 0 {
				end = 1
			}
			tokens = append(tokens, junosToken{text: text[i : i+end], line: line})
			i += end
		}
	}
	return tokens, nil
}

// junosPaths reads a configuration with braces, or set commands. Each returned line is a statement
// with the names of its hierarchy, as in show configuration | display set.
func junosPaths(text string) ([]Line, error) {
	lines, err := ReadLines(text)
	if err != nil {
		return nil, err
	}
	for _, l := range lines {
		if l.Has("set") || l.Has("delete") || l.Has("deactivate") {
			return junosSet(lines), nil
		}
		if strings.ContainsAny(l.Text(), "{;") {
			break
		}
	}
	tokens, err := junosTokens(strings.TrimPrefix(text, "\ufeff"))
	if err != nil {
		return nil, err
	}
	return junosTree(tokens)
}

// junosSet reads set commands. deactivate and delete remove a hierarchy.
func junosSet(lines []Line) (paths []Line) {
	for _, l := range lines {
		if l.Has("deactivate") || l.Has("delete") {
			paths = slices.DeleteFunc(paths, func(p Line) bool {
				return len(p.Words) >= len(l.Words)-1 && slices.Equal(p.Words[:len(l.Words)-1], l.Words[1:])
			})
		}
		if !l.Has("set") || len(l.Words) < 2 {
			continue
		}
		list := -1 // the place of a list in brackets
		var words, values []string
		for _, w := range l.Words[1:] {
			switch w = strings.Trim(w, `"`); {
			case w == "[":
				list = len(words)
			case w == "]":
			case list >= 0:
				values = append(values, w)
			default:
				words = append(words, w)
			}
		}
		paths = appendPaths(paths, l.Number, words, values)
	}
	return paths
}

// appendPaths adds a path for each value of a list, or one without a list.
func appendPaths(paths []Line, line int, words, values []string) []Line {
	if len(values) == 0 {
		return append(paths, Line{Number: line, Words: words})
	}
	for _, v := range values {
		paths = append(paths, Line{Number: line, Words: append(words[:len(words):len(words)], v)})
	}
	return paths
}

// junosTree reads statements with braces.
func junosTree(tokens []junosToken) (paths []Line, err error) {
	type level struct {
		words, line int
	}
	var levels []level
	var path []string // of all open levels
	start := 0        // of the words of the statement in path
	var values []string
	inList, inactive := false, 0
	lineOf := 0
	leaf := func() {
		if len(path) > start && inactive == 0 && path[start] != "inactive:" {
			paths = appendPaths(paths, lineOf, slices.Clone(path), values)
		}
		path, values = path[:start], nil
	}
	for _, t := range tokens {
		switch {
		case t.quoted || !strings.Contains("{};[]", t.text):
			if len(path) == start {
				lineOf = t.line
			}
			if inList {
				values = append(values, t.text)
			} else if path = append(path, t.text); len(path) > maxDepth {
				return nil, fmt.Errorf("line %d: more than %d words in one statement", t.line, maxDepth)
			}
		case t.text == "[":
			inList = true
		case t.text == "]":
			inList = false
		case t.text == ";":
			leaf()
			inList = false
		case t.text == "{":
			if len(path) == start {
				return nil, fmt.Errorf("line %d: { without a name", t.line)
			}
			if path[start] == "inactive:" || inactive > 0 {
				inactive++
			}
			levels = append(levels, level{start, t.line})
			if inactive == 0 && beginsPart(path) { // to give the part the line of its name
				paths = append(paths, Line{Number: lineOf, Words: slices.Clone(path)})
			}
			start, values, inList = len(path), nil, false
		case t.text == "}":
			if len(levels) == 0 {
				return nil, fmt.Errorf("line %d: } without {", t.line)
			}
			if len(path) > start {
				return nil, fmt.Errorf("line %d: a statement before } does not end with a semicolon", t.line)
			}
			last := levels[len(levels)-1]
			levels = levels[:len(levels)-1]
			if inactive > 0 {
				inactive--
			}
			path, start = path[:last.words], last.words
		}
	}
	switch {
	case len(levels) > 0:
		return nil, fmt.Errorf("line %d: { is not closed: the file is not complete",
			levels[len(levels)-1].line)
	case len(path) > 0:
		return nil, fmt.Errorf("line %d: %q does not end with a semicolon or a brace", lineOf,
			strings.Join(path, " "))
	}
	return paths, nil
}

// beginsPart reports whether a hierarchy is a term or a policer.
func beginsPart(path []string) bool {
	n := len(path)
	return n > 1 && slices.Contains([]string{"term", "policer", "three-color-policer"}, path[n-2]) &&
		slices.Contains([]string{"firewall", "family", "filter", "policer", "three-color-policer"}, path[0])
}

// maxDepth is the maximum number of words of a path.
const maxDepth = 64
