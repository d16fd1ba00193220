package routers

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/pattern"
)

// junosPrompt is user@host# or user@host>.
var junosPrompt = pattern.Lazy(`^\s*(?:\{\w+(?::\w+)?\}\s*)?[\w.-]+@[\w./:-]+[#>](?P<level>) ?`)

// junosBanner is a line in which the command line prints its level, the state of its routing engine, or both.
var junosBanner = pattern.Lazy(`^(?:\{\w+(?::\w+)?\})? ?(?:\[edit(?: (.*))?\])?$`)

// junosReader reads statements with braces and set commands. It skips prompts and other lines that the
// command line prints. Each returned line is a statement with the names of its hierarchy, as in
// show configuration | display set.
type junosReader struct {
	paths []Line
	base  []string   // level of the command line
	edits [][]string // levels before each edit
	shown []string   // level of the statements with braces

	inComment bool
	levels    []junosLevel
	path      []string // of all open levels
	start     int      // of the words of the statement in path
	lists     map[int][]string
	inList    bool
	inactive  int
	line      int // of the statement
}

type junosLevel struct{ words, line int }

// junosPaths reads a configuration.
func junosPaths(text string) ([]Line, error) {
	lines, err := ReadLines(text, nil)
	if err != nil {
		return nil, err
	}
	r := &junosReader{}
	for _, l := range lines {
		if len(r.levels) == 0 && len(r.path) == 0 && !r.inComment {
			if isCommand, err := r.command(l); err != nil {
				return nil, err
			} else if isCommand {
				continue
			}
		}
		if err := r.braces(l.Number, l.Text()); err != nil {
			return nil, err
		}
	}
	return r.paths, r.end()
}

// command reads a line of the command line. It returns false for a statement with braces.
func (r *junosReader) command(l Line) (is bool, err error) {
	text, depth := prompt(junosPrompt).cut(l.Text())
	l.Words = strings.Fields(text)
	if m := junosBanner().FindStringSubmatch(l.Text()); m != nil {
		if strings.Contains(l.Text(), "[edit") {
			r.base = strings.Fields(m[1])
			r.shown = r.base
		}
		return true, nil
	}
	if len(l.Words) == 0 {
		return true, nil
	}
	words := l.Words[1:]
	switch l.Words[0] {
	case "set", "deactivate", "delete":
		return true, r.set(l)
	case "edit":
		r.edits = append(r.edits, r.base)
		r.base = slices.Concat(r.base, unquoted(words))
	case "top":
		return r.at(nil, l, words)
	case "up":
		n, err := strconv.Atoi(l.Word(1))
		if err == nil {
			words = words[1:]
		}
		base := r.base
		for range max(n, 1) {
			base = above(base)
		}
		return r.at(base, l, words)
	case "exit", "quit":
		if n := len(r.edits); n > 0 {
			r.base, r.edits = r.edits[n-1], r.edits[:n-1]
		}
	case "show":
		if strings.Contains(l.Text(), "| display set") && !strings.Contains(l.Text(), "relative") {
			r.base = nil // the statements that follow are whole
		}
		words = slices.DeleteFunc(words[:pipe(words)], func(w string) bool { return w == "configuration" })
		r.shown = slices.Concat(r.base, words)
	case "insert", "rename", "copy", "replace", "activate", "rollback":
		return false, fmt.Errorf("line %d: %s changes the configuration before it: paste what show prints afterwards",
			l.Number, l.Words[0])
	case "run":
		if r.shown = nil; l.Word(1) == "show" {
			words = words[1:]
			r.shown = slices.DeleteFunc(words[:pipe(words)], func(w string) bool { return w == "configuration" })
		}
	case "commit", "configure":
	default:
		return depth >= 0, nil
	}
	return true, nil
}

// at goes to a level, or only reads a command there.
func (r *junosReader) at(base []string, l Line, words []string) (bool, error) {
	was := r.base
	if r.base = base; len(words) == 0 {
		return true, nil
	}
	_, err := r.command(Line{Number: l.Number, Words: words})
	if words[0] != "edit" {
		r.base = was
	} else {
		r.edits[len(r.edits)-1] = was
	}
	return true, err
}

// above returns the level above one, which has one word or, with a name, two.
func above(base []string) []string {
	n := len(base)
	if n > 1 && slices.Contains([]string{
		"family", "filter", "term", "policer", "three-color-policer", "unit", "prefix-list", "logical-systems", "groups",
	}, base[n-2]) {
		n--
	}
	return base[:max(n-1, 0)]
}

// unquoted joins the words between quotes.
func unquoted(words []string) (out []string) {
	for quoted := false; len(words) > 0; words = words[1:] {
		w := words[0]
		if plain := strings.ReplaceAll(w, `"`, ""); quoted {
			out[len(out)-1] += " " + plain
		} else {
			out = append(out, plain)
		}
		quoted = quoted != (strings.Count(w, `"`)%2 == 1)
	}
	return out
}

// pipe returns the index of the pipe behind a command.
func pipe(words []string) int {
	if i := slices.Index(words, "|"); i >= 0 {
		return i
	}
	return len(words)
}

// set reads a set command. deactivate and delete remove a hierarchy.
func (r *junosReader) set(l Line) error {
	words := slices.Clone(r.base)
	lists := map[int][]string{}
	inList := false
	for _, w := range unquoted(l.Words[1:]) {
		switch {
		case w == "[":
			inList = true
			words = append(words, "")
		case w == "]":
			inList = false
		case inList:
			lists[len(words)-1] = append(lists[len(words)-1], w)
		default:
			words = append(words, w)
		}
	}
	added := r.expand(l.Number, words, lists)
	if l.Words[0] == "set" {
		r.paths = append(r.paths, added...)
		return nil
	}
	for _, gone := range added {
		if n := len(gone.Words); n > 1 && slices.Contains(junosLeaves, gone.Words[n-2]) {
			gone.Words = gone.Words[:n-1] // and the values that it replaced
		}
		before := len(r.paths)
		r.paths = slices.DeleteFunc(r.paths, func(p Line) bool { return p.Has(gone.Words...) })
		part := func(p Line) bool { return isPart(p.Words, gone.Words) }
		if before == len(r.paths) && slices.ContainsFunc(r.paths, part) {
			return fmt.Errorf("line %d: %s removes a part of a statement before it: paste what show prints afterwards",
				l.Number, l.Words[0])
		}
	}
	return nil
}

// junosLeaves are statements of which the last one replaces the others.
var junosLeaves = []string{
	"bandwidth-limit", "bandwidth-percent", "burst-size-limit", "committed-information-rate", "committed-burst-size",
	"excess-burst-size", "peak-information-rate", "peak-burst-size",
}

// isPart reports whether a statement with several leaves contains another one: its beginning, and behind some
// other words its end.
func isPart(words, part []string) bool {
	n := 0
	for n < len(part) && n < len(words) && words[n] == part[n] {
		n++
	}
	for ; n > 0; n-- {
		if !slices.Contains([]string{"then", "from", "if-exceeding", "single-rate", "two-rate"}, part[n-1]) {
			continue
		}
		for i := n; i+len(part)-n <= len(words) && n < len(part); i++ {
			if slices.Equal(words[i:i+len(part)-n], part[n:]) {
				return true
			}
		}
	}
	return false
}

// expand returns a path for each value of its lists.
func (r *junosReader) expand(line int, words []string, lists map[int][]string) (out []Line) {
	paths := [][]string{nil}
	for i, w := range words {
		values, isList := lists[i]
		if !isList {
			values = []string{w}
		}
		var next [][]string
		for _, p := range paths {
			for _, v := range values {
				next = append(next, append(p[:len(p):len(p)], v))
			}
		}
		if paths = next; len(paths) > maxAlternatives {
			break
		}
	}
	for _, p := range paths {
		if len(p) > 0 {
			out = append(out, Line{Number: line, Words: p})
		}
	}
	return out
}

// braces reads a line of statements with braces.
func (r *junosReader) braces(line int, text string) error {
	for text = strings.TrimSpace(text); text != ""; text = strings.TrimLeft(text, " ") {
		if r.inComment {
			_, rest, ended := strings.Cut(text, "*/")
			r.inComment, text = !ended, rest
			continue
		}
		switch c := text[0]; {
		case c == '#':
			return nil
		case strings.HasPrefix(text, "/*"):
			r.inComment, text = true, text[2:]
		case strings.IndexByte("{};[]", c) >= 0:
			text = text[1:]
			if err := r.sign(line, c); err != nil {
				return err
			}
		case c == '"':
			word, rest, closed := strings.Cut(text[1:], `"`)
			if !closed {
				return fmt.Errorf("line %d: the quotes are not closed", line)
			}
			text = rest
			if err := r.word(line, word); err != nil {
				return err
			}
		default:
			end := strings.IndexAny(text, " {};[]\"")
			if end < 0 {
				end = len(text)
			}
			if err := r.word(line, text[:end]); err != nil {
				return err
			}
			text = text[end:]
		}
	}
	return nil
}

// maxDepth is the maximum number of words of a path.
const maxDepth = 64

func (r *junosReader) word(line int, w string) error {
	if len(r.path) == 0 && !slices.Contains([]string{"firewall", "interfaces", "class-of-service", "policy-options"}, w) {
		r.path = slices.Clone(r.shown)
		r.start = len(r.path)
	}
	switch {
	case len(r.path) == r.start && (w == "protect:" || w == "replace:"): // they are about changes
	case len(r.path) == r.start:
		r.line = line
		fallthrough
	case !r.inList:
		r.path = append(r.path, w)
	default:
		r.lists[len(r.path)-1] = append(r.lists[len(r.path)-1], w)
	}
	if len(r.path) > maxDepth {
		return fmt.Errorf("line %d: more than %d words in one statement", line, maxDepth)
	}
	return nil
}

// open reports whether the words of a statement wait for its end.
func (r *junosReader) open() bool { return len(r.path) > r.start }

func (r *junosReader) sign(line int, sign byte) error {
	switch sign {
	case '[':
		if r.inList = r.open(); r.inList {
			r.path = append(r.path, "")
			if r.lists == nil {
				r.lists = map[int][]string{}
			}
		}
	case ']':
		r.inList = false
	case ';':
		if r.open() && r.inactive == 0 && r.path[r.start] != "inactive:" {
			r.paths = append(r.paths, r.expand(r.line, slices.Clone(r.path), r.lists)...)
		}
		r.path, r.lists, r.inList = r.path[:r.start], nil, false
	case '{':
		if !r.open() {
			return fmt.Errorf("line %d: { without a name", line)
		}
		if r.path[r.start] == "inactive:" || r.inactive > 0 {
			r.inactive++
		}
		r.levels = append(r.levels, junosLevel{r.start, line})
		if r.inactive == 0 && beginsPart(r.path) { // to give the part the line of its name
			r.paths = append(r.paths, Line{Number: r.line, Words: slices.Clone(r.path)})
		}
		r.start, r.lists, r.inList = len(r.path), nil, false
	case '}':
		switch {
		case len(r.levels) == 0:
			return fmt.Errorf("line %d: } without {", line)
		case r.open():
			return fmt.Errorf("line %d: a statement before } does not end with a semicolon", line)
		}
		last := len(r.levels) - 1
		if r.inactive > 0 {
			r.inactive--
		}
		r.start = r.levels[last].words
		r.path, r.levels = r.path[:r.start], r.levels[:last]
	}
	if len(r.levels) == 0 && !r.open() {
		r.path, r.start = nil, 0
	}
	return nil
}

// end checks that nothing is open.
func (r *junosReader) end() error {
	switch {
	case r.inComment:
		return fmt.Errorf("the comment does not end")
	case len(r.levels) > 0:
		return fmt.Errorf("line %d: { is not closed: the file is not complete", r.levels[len(r.levels)-1].line)
	case r.open():
		return fmt.Errorf("line %d: %q does not end with a semicolon or a brace", r.line, strings.Join(r.path, " "))
	}
	return nil
}

// beginsPart reports whether a hierarchy is a term or a policer.
func beginsPart(path []string) bool {
	n := len(path)
	return n > 1 && slices.Contains([]string{"term", "policer", "three-color-policer"}, path[n-2])
}
