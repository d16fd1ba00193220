// Package policywriter writes policies as policy files, with comments.
package policywriter

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/pattern"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter/unsaid"
)

// Comment stands behind a line of a policy file.
type Comment struct {
	Line int // of the configuration that the line was made from; 0: none
	Text string
}

// Comments are the comments of a policy: by part, which is a pointer to a class, meter, queue, link or
// plan, and by key. The key "" is the first line of the part.
type Comments map[any]map[string]Comment

// Set sets the comment of a key of a part.
func (c Comments) Set(part any, key string, line int, format string, args ...any) {
	if c[part] == nil {
		c[part] = map[string]Comment{}
	}
	c[part][key] = Comment{line, fmt.Sprintf(format, args...)}
}

// Text is a written policy.
type Text struct {
	Text        string
	Conversions []Conversion // in the order of Text
	lines       []int        // lines of the configuration, by line of Text
}

// Conversion is a line of a policy, with the statement it was made from.
type Conversion struct {
	Line   int    `json:"line"`        // in the configuration
	Policy int    `json:"policy_line"` // in the policy, from 1
	Text   string `json:"text"`        // the statement, and how its value was converted
}

// SourceLine returns the line of the configuration from which a line of the policy was made, or
// the last one before it; 0 if there is none. Lines begin with 1.
func (t *Text) SourceLine(line int) int {
	for i := min(line, len(t.lines)) - 1; i >= 0; i-- {
		if t.lines[i] > 0 {
			return t.lines[i]
		}
	}
	return 0
}

// Options are the options of Write.
type Options struct {
	Comments  Comments
	Head      []string // comments at the top
	Customers string   // name of the file of customers, or ""
}

// Write writes a policy. It returns an error for a part that it cannot write.
func Write(p *dataplane.Policy, o Options) (*Text, error) {
	w := &writer{comments: o.Comments}
	for _, line := range o.Head {
		w.line(0, "# "+printable(line), Comment{})
	}
	w.policy(p)
	if o.Customers != "" {
		w.line(0, "customers: {file: "+Quote(o.Customers)+"}", Comment{})
	}
	if w.err != nil {
		return nil, w.err
	}
	return &Text{w.text.String(), w.conversions, w.lines}, nil
}

// commentColumn is the column of comments behind shorter lines.
const commentColumn = 44

type writer struct {
	comments    Comments
	queues      []*dataplane.Queue // of the policy
	links       []*dataplane.Link
	text        strings.Builder
	conversions []Conversion
	lines       []int
	err         error // the first one
}

func (w *writer) fail(format string, args ...any) {
	if w.err == nil {
		w.err = fmt.Errorf(format, args...)
	}
}

// only refuses fields of a part that are set and not listed.
func (w *writer) only(what string, part any, known ...string) {
	for _, name := range unsaid.Fields(part, known...) {
		w.fail("%s: %s cannot be written to a policy file", what, name)
	}
}

// value writes a key of a part with its value, unless that is empty.
func (w *writer) value(depth int, part any, key, value string) {
	if value != "" {
		w.line(depth, key+": "+value, w.comments[part][key])
	}
}

// key writes the first line of a mapping, with the comment of a key of a part.
func (w *writer) key(depth int, part any, key, text string) {
	w.line(depth, text+":", w.comments[part][key])
}

func (w *writer) line(depth int, text string, c Comment) {
	text = strings.Repeat("  ", depth) + text
	comment := c.Text
	if c.Line > 0 {
		w.conversions = append(w.conversions, Conversion{c.Line, len(w.lines) + 1, c.Text})
		comment = strings.TrimSuffix(fmt.Sprintf("line %d: %s", c.Line, c.Text), ": ")
	}
	if comment != "" {
		text = fmt.Sprintf("%-*s # %s", commentColumn, text, printable(comment))
	}
	w.text.WriteString(text + "\n")
	w.lines = append(w.lines, c.Line)
}

// printable replaces characters forbidden in a comment of YAML, or ending it.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
}

// plainText matches texts which YAML reads as themselves without quotes.
var plainText = pattern.Lazy(`^[A-Za-z_][\w./+-]*$`)

// Quote writes a text as a YAML value that reads back as the same text. The escapes of Go are also
// those of YAML (YAML 1.2 §5.7).
func Quote(text string) string {
	word := strings.ToLower(text)
	if plainText().MatchString(text) &&
		!slices.Contains([]string{"true", "false", "yes", "no", "on", "off", "y", "n", "null"}, word) {
		return text
	}
	return strconv.Quote(text)
}

// list writes values as a YAML list, or a single one as itself.
func list(values []string) string {
	if len(values) == 1 {
		return values[0]
	}
	return "[" + strings.Join(values, ", ") + "]"
}

// prefixes writes prefixes, those of full length as addresses. IPv6 is quoted: it may end in a colon.
func prefixes(all []netip.Prefix) (out []string) {
	for _, p := range all {
		text := p.String()
		if p.IsSingleIP() {
			text = p.Addr().String()
		}
		if p.Addr().Is6() {
			text = strconv.Quote(text)
		}
		out = append(out, text)
	}
	return out
}
