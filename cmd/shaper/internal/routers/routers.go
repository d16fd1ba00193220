package routers

import (
	"cmp"
	"fmt"
	"slices"
	"sort"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// Options are the options of Import.
type Options struct {
	Link     meter.Rate // rate of the interface, for percentages; zero: unknown
	Platform string     // of the language, see Platforms; "": as the configuration shows
}

// Source is a configuration.
type Source struct {
	Name string // file name, or interface, for people
	Text string
	Options

	Companion *Source // second file of a Paired importer
}

// Dialect is a language of configurations.
type Dialect interface {
	// Import reads a configuration. An error means that the text is not in this language at all.
	Import(Source) (*Import, error)
	// Export writes a compiled policy. name is the name of the policy in the configuration, or of
	// the interface for tc.
	Export(p *dataplane.Policy, name string) *Export
}

// LiveDialect is a dialect that can read the configuration of an interface of this host.
type LiveDialect interface {
	Dialect
	// Live returns the configuration of an interface, as a text for Import.
	Live(device string) (Source, error)
}

// Importer is a language for import only.
type Importer interface {
	Import(Source) (*Import, error)
}

// Paired is an importer of two files.
type Paired interface {
	Importer
	// Companion returns the name of the second file, in the directory of the first one.
	Companion() string
}

// All lists the dialects by name. Rooms below add theirs.
var All = map[string]Dialect{}

// Importers lists the languages for import only, by name.
var Importers = map[string]Importer{}

// Pair returns the name of an importer's second file, or "".
func Pair(i Importer) string {
	if p, ok := i.(Paired); ok {
		return p.Companion()
	}
	return ""
}

// From returns the importer of a name, or nil.
func From(name string) Importer {
	if d, ok := All[name]; ok {
		return d
	}
	return Importers[name]
}

// order is the order of names in help and errors.
var order = []string{"tc", "cisco", "junos", "huawei", "h3c", "cisco-show", "libreqos"}

// ExportNames returns the names of all dialects.
func ExportNames() []string {
	return slices.DeleteFunc(slices.Clone(order), func(name string) bool { return All[name] == nil })
}

// ImportNames returns the names of all languages for import.
func ImportNames() []string {
	return slices.DeleteFunc(slices.Clone(order), func(name string) bool { return From(name) == nil })
}

// Problem is an untranslated statement.
type Problem struct {
	File   string `json:"file,omitempty"`      // "" for the first file of the source
	Line   int    `json:"line,omitempty"`      // in the configuration; 0: none
	Last   int    `json:"last_line,omitempty"` // last line omitted with the statement; 0: none
	Text   string `json:"text,omitempty"`      // the statement
	Reason string `json:"reason,omitempty"`

	outside bool // it is in no part that a policy may use
}

func (p Problem) String() string {
	switch {
	case p.Text == "":
		return p.Reason
	case p.Reason == "":
		return p.Text
	}
	return p.Text + ": " + p.Reason
}

// Import is the result of reading a configuration.
type Import struct {
	Drafts   []*Draft
	Problems []Problem // statements outside of drafts that a policy cannot express
	Skipped  []Problem // statements unrelated to traffic

	byName map[string]*Draft
}

// Cannot adds a statement in a part that several policies may use.
func (i *Import) Cannot(line Line, format string, args ...any) {
	i.Problems = append(i.Problems, line.Problem(format, args...))
}

// Outside adds a statement that is in no part that a policy may use, but limits or classifies packets.
func (i *Import) Outside(line Line, reason string) {
	p := line.Problem("%s", reason)
	p.outside = true
	i.Problems = append(i.Problems, p)
}

// Skip adds a statement unrelated to traffic.
func (i *Import) Skip(line Line) {
	i.Skipped = append(i.Skipped, Problem{Line: line.Number, Text: line.Text()})
}

// Draft returns the draft of a policy with this name, which it adds if there is none.
func (i *Import) Draft(name string, line int) *Draft {
	d := i.byName[name]
	if d == nil {
		if i.byName == nil {
			i.byName = map[string]*Draft{}
		}
		d = &Draft{Name: name, Line: line}
		i.byName[name] = d
		i.Drafts = append(i.Drafts, d)
	}
	return d
}

// Export is the result of writing a configuration.
type Export struct {
	Text     string
	Notes    []string // values which the box may round or clamp
	Problems []string // parts that the dialect cannot express
}

// Cannot adds a part that the dialect cannot express.
func (e *Export) Cannot(format string, args ...any) {
	add(&e.Problems, fmt.Sprintf(format, args...))
}

// Note adds a remark about the box.
func (e *Export) Note(format string, args ...any) { add(&e.Notes, fmt.Sprintf(format, args...)) }

func add(list *[]string, text string) {
	if !slices.Contains(*list, text) {
		*list = append(*list, text)
	}
}

// Pick returns the draft with a name, and its problems: also those of parts that several policies may use.
// Without a name there must be exactly one draft, apart from mere parts of others, and all problems count.
func (i *Import) Pick(name string) (*Draft, []Problem, error) {
	var names []string
	for _, d := range i.Drafts {
		if d.Name == name {
			parts := slices.DeleteFunc(slices.Clone(i.Problems), func(p Problem) bool { return p.outside })
			return d, byLine(slices.Concat(parts, d.Problems)), nil
		}
		names = append(names, d.Name)
	}
	const shown = 10
	list := fmt.Sprintf("%q", names[:min(len(names), shown)])
	list = list[1 : len(list)-1]
	if len(names) > shown {
		list += fmt.Sprintf(" and %d more", len(names)-shown)
	}
	whole := slices.DeleteFunc(slices.Clone(i.Drafts), func(d *Draft) bool { return d.Part })
	switch {
	case len(names) == 0 && len(i.Problems) > 0:
		return &Draft{}, i.Problems, nil
	case len(names) == 0:
		return nil, nil, errNone
	case name != "":
		return nil, nil, fmt.Errorf("it has no policy named %q: its policies are %s", name, list)
	case len(whole) == 1:
		return whole[0], byLine(slices.Concat(i.Problems, whole[0].Problems)), nil
	}
	return nil, nil, fmt.Errorf("it has %d policies: select one with --name: %s", len(names), list)
}

// byLine sorts problems by line.
func byLine(list []Problem) []Problem {
	sort.SliceStable(list, func(i, j int) bool {
		a, b := &list[i], &list[j]
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line)) < 0
	})
	return list
}
