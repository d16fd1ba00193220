package routers

import (
	"fmt"
	"strings"
	"unicode"
)

// commentColumn is the column of comments behind shorter lines.
const commentColumn = 44

// Rendered is the text of an imported policy.
type Rendered struct {
	Text        string
	Conversions []Conversion // in the order of Text
	lines       []int        // lines of the configuration, by line of Text
}

// Conversion is a line of an imported policy, with the statement it was made from.
type Conversion struct {
	Line   int    `json:"line"`        // in the configuration
	Policy int    `json:"policy_line"` // in the policy, from 1
	Text   string `json:"text"`        // the statement, and how its value was converted
}

// SourceLine returns the line of the configuration from which a line of the policy was made, or
// the last one before it; 0 if there is none. Lines begin with 1.
func (r *Rendered) SourceLine(line int) int {
	for i := min(line, len(r.lines)) - 1; i >= 0; i-- {
		if r.lines[i] > 0 {
			return r.lines[i]
		}
	}
	return 0
}

// Render writes a draft as a policy file. title is its first comment.
func (d *Draft) Render(title string) *Rendered {
	w := &renderer{}
	w.line(0, "# "+printable(title), 0, "")
	for _, remark := range d.Remarks {
		w.line(0, "# "+printable(remark), 0, "")
	}
	for _, note := range byLine(d.Notes) {
		place := fmt.Sprintf("Line %d", note.Line)
		if note.File != "" {
			place = fmt.Sprintf("%s:%d", note.File, note.Line)
		}
		w.line(0, "# "+printable(place+": "+note.Reason), 0, "")
	}
	if d.Length != "" {
		w.line(0, "length: "+d.Length, 0, "")
	}
	w.line(0, "classes:", 0, "")
	for _, class := range d.Classes {
		w.line(1, "- name: "+class.Key, class.Line, class.Comment)
		w.entries(2, class.Entries)
	}
	for _, q := range d.Queues {
		if q.Get("rate") != nil && q.Get("link") == nil && q.Get("fair") == nil {
			q.Set("fair", "false", 0, "") // the queue of a router is a FIFO, unless it says otherwise
		}
	}
	for _, part := range []struct {
		name    string
		entries []*Entry
	}{{"meters", d.Meters}, {"queues", d.Queues}, {"links", d.Links}, {"plans", d.Plans}} {
		if len(part.entries) > 0 {
			w.line(0, part.name+":", 0, "")
			w.entries(1, part.entries)
		}
	}
	if d.Customers != "" {
		w.line(0, "customers: {file: "+Quote(d.CustomersFile)+"}", 0, "")
	}
	return &Rendered{w.text.String(), w.conversions, w.lines}
}

type renderer struct {
	text        strings.Builder
	conversions []Conversion
	lines       []int
}

func (w *renderer) entries(depth int, list []*Entry) {
	for _, e := range list {
		text := e.Key + ":"
		if e.Value != "" {
			text += " " + e.Value
		}
		w.line(depth, text, e.Line, e.Comment)
		w.entries(depth+1, e.Entries)
	}
}

func (w *renderer) line(depth int, text string, source int, comment string) {
	text = strings.Repeat("  ", depth) + text
	if source > 0 {
		w.conversions = append(w.conversions, Conversion{source, len(w.lines) + 1, comment})
		comment = strings.TrimSuffix(fmt.Sprintf("line %d: %s", source, comment), ": ")
	}
	if comment != "" {
		text = fmt.Sprintf("%-*s # %s", commentColumn, text, printable(comment))
	}
	w.text.WriteString(text + "\n")
	w.lines = append(w.lines, source)
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
