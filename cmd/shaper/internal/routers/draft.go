package routers

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/pattern"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// Draft is a policy under import.
type Draft struct {
	Name string // in the configuration
	Line int    // where it begins
	Part bool   // other policies of the configuration contain it

	Classes, Meters, Queues, Links []*Entry // of the policy file, in order
	Plans                          []*Entry
	Customers                      string    // text of the file of customers, or ""
	CustomersFile                  string    // its name in the policy
	Length                         string    // rule in the syntax of policies; "": l3
	Remarks                        []string  // comments at the top of the file
	Notes                          []Problem // differences that remain, also comments at the top
	Problems                       []Problem
	used                           map[string]bool // keys of classes
	Counters                       []Counter       // of show policy-map interface
}

// Cannot adds a statement that a policy cannot express, or that is not understood.
func (d *Draft) Cannot(line Line, format string, args ...any) {
	d.Problems = append(d.Problems,
		Problem{Line: line.Number, Text: line.Text(), Reason: fmt.Sprintf(format, args...)})
}

// Omit adds a class that a policy cannot express, with its statements in the lines up to last.
func (d *Draft) Omit(line Line, last int, reason error) {
	d.Problems = append(d.Problems,
		Problem{"", line.Number, last, line.Text(), fmt.Sprintf("%v: the class is omitted", reason)})
}

// Note adds a statement whose effect on packets differs in the policy, or a part of it that is left
// out. It does not fail the import.
func (d *Draft) Note(line Line, format string, args ...any) {
	d.Notes = append(d.Notes,
		Problem{Line: line.Number, Text: line.Text(), Reason: fmt.Sprintf(format, args...)})
}

// Remark adds a comment at the top of the file.
func (d *Draft) Remark(format string, args ...any) { add(&d.Remarks, fmt.Sprintf(format, args...)) }

// Entry is a line of a policy file, or a mapping of several lines.
type Entry struct {
	Key     string
	Value   string // in the syntax of policies and YAML; "" with Entries
	Entries []*Entry

	Line    int    // of the statement in the configuration; 0: none
	Comment string // the statement, and how the value was converted
}

// NewEntry returns a part of a policy, such as a class. Classes have the name as a key "name",
// other parts are keys.
func NewEntry(name string, line int, format string, args ...any) *Entry {
	return &Entry{Key: Quote(name), Line: line, Comment: fmt.Sprintf(format, args...)}
}

// Name returns the name of a part.
func (e *Entry) Name() string {
	if name, err := strconv.Unquote(e.Key); err == nil {
		return name
	}
	return e.Key
}

// Set adds a key with a value to a mapping. If the key exists, Set replaces it.
func (e *Entry) Set(key, value string, line int, format string, args ...any) {
	n := e.Map(key)
	n.Value, n.Line, n.Comment = value, line, fmt.Sprintf(format, args...)
}

// Get returns the entry of a key, or nil.
func (e *Entry) Get(key string) *Entry {
	for _, n := range e.Entries {
		if n.Key == key {
			return n
		}
	}
	return nil
}

// Map returns the entry of a key. It adds one if there is none.
func (e *Entry) Map(key string) *Entry {
	if n := e.Get(key); n != nil {
		return n
	}
	n := &Entry{Key: key}
	e.Entries = append(e.Entries, n)
	return n
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

// List writes values as a YAML list, or a single one as itself.
func List(values ...string) string {
	if len(values) == 1 {
		return values[0]
	}
	return "[" + strings.Join(values, ", ") + "]"
}

// BitRate writes a rate of n bit/s.
func BitRate(n int64) string { return meter.BitRate(n).String() }
