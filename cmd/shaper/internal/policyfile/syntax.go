package policyfile

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strconv"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/pattern"
)

// position is a place in a text. Lines and columns count from 1, columns in characters. Without
// a column it is a line of the file of customers.
type position struct{ line, column int }

// inRows reports whether the place is in the file of customers.
func (p position) inRows() bool { return p.line > 0 && p.column == 0 }

// compare orders places. Those in the file of customers are last.
func (p position) compare(q position) int {
	if p.inRows() != q.inRows() {
		return cmp.Compare(q.column, p.column)
	}
	return cmp.Or(cmp.Compare(p.line, q.line), cmp.Compare(p.column, q.column))
}

// parse parses one YAML document. It returns the errors of the library, and an error if the
// library panics.
func parse(decoder *yaml.Decoder, n *yaml.Node) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("the YAML parser failed: %v", v)
		}
	}()
	return decoder.Decode(n)
}

// syntaxProblem is the library's error about a text.
type syntaxProblem struct {
	what    string // kind of the text, such as policy
	lines   []string
	problem string   // description by the library
	context string   // construct read by the library at the time, in its words
	begins  position // beginning of the context
	at      position // place of the problem
	open    position // beginning of the innermost open collection; zero if unknown
}

// syntaxError converts an error of the library into one with the exact place and the likely
// cause.
func syntaxError(name string, text []byte, what string, decoder *yaml.Decoder, err error) error {
	f := &syntaxProblem{what: what, lines: strings.Split(string(text), "\n")}
	f.read(decoder, err)
	at, reason := f.explain()
	if found, why := unreadable(text); why != "" {
		at, reason = found, why
	}
	return &Error{fmt.Sprintf("%s:%d:%d", name, at.line, at.column), reason, at}
}

var (
	libraryError  = pattern.Lazy(`^(?:yaml: )?(?:line ([0-9]+): )?(.*)$`)
	unknownAnchor = pattern.Lazy(`^unknown anchor '(.*)' referenced$`)
)

// read reads the problem and its places from the decoder. The library's error contains only a line,
// perhaps the line of the context. That line is used if another version of the library stores the
// places elsewhere.
func (f *syntaxProblem) read(decoder *yaml.Decoder, err error) {
	m := libraryError().FindStringSubmatch(strings.ReplaceAll(err.Error(), "\n", " "))
	line, _ := strconv.Atoi(m[1])
	f.problem, f.at = m[2], position{max(line, 1), 1}
	f.begins = f.at
	parser := field(reflect.ValueOf(decoder), "parser")
	scanner := field(parser, "parser")
	if unknownAnchor().MatchString(f.problem) {
		if at, ok := positionOf(field(parser, "event", "start_mark")); ok {
			f.at = at
		}
		return
	}
	at, ok := positionOf(field(scanner, "problem_mark"))
	begins, also := positionOf(field(scanner, "context_mark"))
	if !ok || !also {
		return
	}
	f.at, f.begins, f.context = at, begins, field(scanner, "context").String()
	if marks := field(scanner, "marks"); marks.Kind() == reflect.Slice && marks.Len() > 0 {
		f.open, _ = positionOf(marks.Index(marks.Len() - 1))
	}
}

// field returns a field of nested structs, or an invalid value if it does not exist.
func field(v reflect.Value, names ...string) reflect.Value {
	for _, name := range names {
		if v.Kind() == reflect.Pointer {
			v = v.Elem()
		}
		if v.Kind() != reflect.Struct {
			return reflect.Value{}
		}
		v = v.FieldByName(name)
	}
	return v
}

// positionOf converts a mark of the library. Marks count from 0.
func positionOf(mark reflect.Value) (position, bool) {
	line, column := field(mark, "line"), field(mark, "column")
	if !line.IsValid() || !line.CanInt() || !column.IsValid() || !column.CanInt() {
		return position{}, false
	}
	return position{int(line.Int()) + 1, int(column.Int()) + 1}, true
}

// unreadable finds the first character forbidden in YAML. why is empty if there is none.
func unreadable(text []byte) (at position, why string) {
	if bytes.HasPrefix(text, []byte("\xff\xfe")) || bytes.HasPrefix(text, []byte("\xfe\xff")) {
		return position{1, 1}, "the text is UTF-16 with an error: save it as UTF-8"
	}
	at = position{1, 1}
	for len(text) > 0 {
		r, size := utf8.DecodeRune(text)
		switch {
		case r == utf8.RuneError && size == 1:
			return at, fmt.Sprintf("byte 0x%02x is not UTF-8: save the text as UTF-8", text[0])
		case r == '\n':
			at = position{at.line + 1, 0}
		case r < ' ' && r != '\t' && r != '\r', r >= 0x7f && r < 0xa0 && r != 0x85, r == 0xfffe, r == 0xffff:
			return at, fmt.Sprintf("character %U is not allowed", r)
		}
		text = text[size:]
		at.column++
	}
	return at, ""
}

// line returns a line without its end. Lines beyond the text are empty.
func (f *syntaxProblem) line(n int) string {
	if n < 1 || n > len(f.lines) {
		return ""
	}
	return strings.TrimSuffix(f.lines[n-1], "\r")
}

// around returns the parts of a line before a place and from it on.
func (f *syntaxProblem) around(at position) (before, rest string) {
	runes := []rune(f.line(at.line))
	i := max(0, min(at.column-1, len(runes)))
	return string(runes[:i]), string(runes[i:])
}

// sample returns the word at a place, quoted and shortened.
func (f *syntaxProblem) sample(at position) string {
	_, rest := f.around(at)
	word, _, _ := strings.Cut(rest, " ")
	if runes := []rune(word); len(runes) > 20 {
		word = string(runes[:20]) + "…"
	}
	return strconv.Quote(word)
}

// character returns the character at a place, quoted.
func (f *syntaxProblem) character(at position) string {
	_, rest := f.around(at)
	r, size := utf8.DecodeRuneInString(rest)
	if size == 0 {
		return "the end of the line"
	}
	return strconv.Quote(string(r))
}

// ends reports whether only white space follows a place.
func (f *syntaxProblem) ends(at position) bool {
	_, rest := f.around(at)
	for n := at.line; strings.TrimSpace(rest) == ""; {
		if n++; n > len(f.lines) {
			return true
		}
		rest = f.line(n)
	}
	return false
}

// read parses a file of some kind, such as policy.
func read(name string, text []byte, what string) (*loader, *yaml.Node, error) {
	first := position{1, 1}
	if reason := tooLarge(text); reason != "" {
		return nil, nil, &Error{name + ":1:1", "the " + what + reason, first}
	}
	var doc, second yaml.Node
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	if err := parse(decoder, &doc); err != nil {
		if errors.Is(err, io.EOF) {
			return nil, nil, &Error{name + ":1:1", "the " + what + " is empty", first}
		}
		return nil, nil, syntaxError(name, text, what, decoder, err)
	}
	l := newLoader(func(at position) string { return fmt.Sprintf("%s:%d:%d", name, at.line, at.column) })
	l.what = what
	switch err := parse(decoder, &second); {
	case err == nil:
		l.fail(second.Content[0], "a second document begins: a %s is one document", what)
	case err != io.EOF:
		return nil, nil, syntaxError(name, text, what, decoder, err)
	}
	return l, doc.Content[0], nil
}
