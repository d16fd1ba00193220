package policyfile

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sort"
	"strings"
	"time"
	"unicode"

	"go.yaml.in/yaml/v3"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

// loader reads the nodes of a file and collects errors.
type loader struct {
	what   string                // kind of the file, such as policy
	label  func(position) string // a place as text
	errs   []*Error              // first maxErrors errors, in the order of their places
	more   int                   // number of further errors
	last   position              // place of the last error
	parts  map[any]part          // places of the parts of the policy
	meters map[string]*dataplane.Meter
	queues map[string]*dataplane.Queue
	links  map[string]*dataplane.Link
	file   *File
	up     *dataplane.Policy // for packets from the customers; nil: the same

	envelopes map[string]*dataplane.Envelope

	queueHint, envelopeHint string            // advice if a name is not defined
	suggested               map[string]string // by didYouMean

	fileName string   // of the policy
	readFile ReadFile // for the file of customers
	plans    []*plan
	rows     *rows // of the file of customers; nil if it was not read

	namesOnly bool // customers get no addresses and VLANs

	rules map[string]QuotaRules // of plans with rules
	ruled []ruled               // plans selected by rules
	zones map[string]*time.Location
}

func newLoader(label func(position) string) *loader {
	l := &loader{
		what:   "policy",
		label:  label,
		parts:  map[any]part{},
		meters: map[string]*dataplane.Meter{},
		queues: map[string]*dataplane.Queue{},
		links:  map[string]*dataplane.Link{},

		envelopes: map[string]*dataplane.Envelope{},

		rules: map[string]QuotaRules{},
		zones: map[string]*time.Location{},

		queueHint:    "define it under queues:",
		envelopeHint: "define it under envelopes:",
	}
	l.file = &File{Policy: &dataplane.Policy{}, loader: l}
	return l
}

// fail adds an error at a node.
func (l *loader) fail(n *yaml.Node, format string, args ...any) {
	l.failAt(placeOf(n), format, args...)
}

func (l *loader) failAt(at position, format string, args ...any) {
	i := sort.Search(len(l.errs), func(i int) bool { return at.compare(l.errs[i].at) < 0 })
	if at.compare(l.last) > 0 {
		l.last = at
	}
	if i < maxErrors {
		l.errs = slices.Insert(l.errs, i, l.errorAt(at, fmt.Sprintf(format, args...)))
	}
	if i == maxErrors || len(l.errs) > maxErrors {
		l.more++
		l.errs = l.errs[:maxErrors]
	}
}

// joined returns all errors as one, in the order of their places; nil if there is none.
func (l *loader) joined() error {
	var out []error
	for _, e := range l.errs {
		out = append(out, e)
	}
	switch {
	case l.more == 1:
		out = append(out, l.errorAt(l.last, "and 1 more error here"))
	case l.more > 1:
		out = append(out, l.errorAt(l.last, fmt.Sprintf("and %d more errors up to here", l.more)))
	}
	if l.rows != nil {
		out = append(out, l.rows.faults.errors(l.rows.place)...)
	}
	return errors.Join(out...)
}

// errorAt returns an error at a place.
func (l *loader) errorAt(at position, reason string) *Error {
	return &Error{l.placeText(at), reason, at}
}

// placeText returns a place as text.
func (l *loader) placeText(at position) string {
	if l.rows != nil && at.inRows() {
		return l.rows.place(at.line)
	}
	return l.label(at)
}

func placeOf(n *yaml.Node) position { return position{n.Line, n.Column} }

// part holds the places of a part of a policy. The nodes would take eight times the memory.
type part struct {
	at   position
	keys []keyPlace
}

// keyPlace is the place of the value of a key.
type keyPlace struct {
	key string
	at  position
}

// keepPlaces keeps the places of a part, whose node is n.
func (l *loader) keepPlaces(object any, n *yaml.Node) {
	p := part{placeOf(n), make([]keyPlace, 0, len(n.Content)/2)}
	for i := 0; n.Kind == yaml.MappingNode && i+1 < len(n.Content); i += 2 {
		p.keys = append(p.keys, keyPlace{n.Content[i].Value, placeOf(n.Content[i+1])})
	}
	l.parts[object] = p
}

// keepInner adds the places of a mapping inside a part to those of the part.
func (l *loader) keepInner(object any, n *yaml.Node) {
	p := l.parts[object]
	l.keepPlaces(object, n)
	l.parts[object] = part{p.at, append(p.keys, l.parts[object].keys...)}
}

// place returns the place of a key of a part, or of the part if it does not have the key.
func (l *loader) place(object any, key string) position {
	object = l.original(object)
	p, ok := l.parts[object]
	if !ok {
		if l.inRows(object) {
			return l.rowPlace(object)
		}
		p = l.parts[l.file.Policy]
	}
	for _, k := range p.keys {
		if k.key == key {
			return k.at
		}
	}
	return p.at
}

// original returns the part of the file for a part of the policy of either direction.
func (l *loader) original(object any) any {
	if l.up == nil {
		return object
	}
	return l.up.Original(object)
}

// lookup returns the value of a key of a mapping, or nil.
func lookup(n *yaml.Node, key string) *yaml.Node {
	for i := 0; n.Kind == yaml.MappingNode && i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == key {
			return n.Content[i+1]
		}
	}
	return nil
}

// keys are the keys allowed in a mapping. A policy may contain thousands of mappings, so they are a
// slice, which the compiler can keep on the stack.
type keys []entry

// entry is a key with the reader of its value.
type entry struct {
	name string
	read func(*yaml.Node)
}

// mapping reads a mapping of known keys only. Errors describe it as what.
func (l *loader) mapping(n *yaml.Node, what string, known keys) bool {
	return l.entries(n, what, func(key, value *yaml.Node) { l.knownKey(key, value, what, known) })
}

// knownKey reads the value of a key, which must be one of the known ones. others are keys read by
// the caller.
func (l *loader) knownKey(key, value *yaml.Node, what string, known keys, others ...string) {
	for _, k := range known {
		if k.name == key.Value {
			k.read(value)
			return
		}
	}
	all := slices.Clone(others)
	for _, k := range known {
		all = append(all, strings.Clone(k.name)) // the name itself would move all keys to the heap
	}
	slices.Sort(all)
	l.fail(key, "unknown key %q in %s: want one of %s", key.Value, what, strings.Join(all, ", "))
}

// entries reads a mapping and rejects duplicate keys.
func (l *loader) entries(n *yaml.Node, what string, read func(key, value *yaml.Node)) bool {
	if n.Kind != yaml.MappingNode {
		l.fail(n, "%s must be a mapping, not %s", what, kindName(n))
		return false
	}
	seen := make(map[string]bool, len(n.Content)/2)
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := n.Content[i]
		if seen[key.Value] {
			l.fail(key, "duplicate key %q in %s", key.Value, what)
			continue
		}
		seen[key.Value] = true
		read(key, target(n.Content[i+1]))
	}
	return true
}

// sorted returns the keys of a map in alphabetical order.
func sorted[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// target returns the value for which a node stands: if it is an alias, the value of its anchor. The
// target of nil is nil.
func target(n *yaml.Node) *yaml.Node {
	if n != nil && n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}

func kindName(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	case yaml.ScalarNode:
		if n.Tag == "!!null" {
			return "nothing"
		}
		return fmt.Sprintf("%q", n.Value)
	}
	return "an alias"
}

// text reads a scalar.
func (l *loader) text(n *yaml.Node, what string) (string, bool) {
	if n.Kind != yaml.ScalarNode || n.Tag == "!!null" {
		l.fail(n, "%s must be a single value, not %s", what, kindName(n))
		return "", false
	}
	return n.Value, true
}

// name reads a name of printable characters.
func (l *loader) name(n *yaml.Node) string {
	s, _ := l.text(n, "name")
	if strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) {
		l.fail(n, "name %q has unprintable characters", s)
	}
	return s
}

// parsed reads a scalar with a parser such as ParseRate.
func parsed[T any](l *loader, n *yaml.Node, what string, parse func(string) (T, error)) (v T, ok bool) {
	s, ok := l.text(n, what)
	if !ok {
		return v, false
	}
	v, err := parse(s)
	if err != nil {
		l.fail(n, "%s: %v", what, err)
		return v, false
	}
	return v, true
}

// word reads a scalar, which must be one of the given words.
func (l *loader) word(n *yaml.Node, what string, words ...string) (string, bool) {
	s, ok := l.text(n, what)
	if ok && !slices.Contains(words, s) {
		l.fail(n, "%s: %q is not one of %s", what, s, strings.Join(words, ", "))
		return "", false
	}
	return s, ok
}

// boolean reads true or false.
func (l *loader) boolean(n *yaml.Node, what string) (v, ok bool) {
	s, ok := l.word(n, what, "true", "false")
	return s == "true", ok
}

// second reports whether a scalar is the second of two words. Any other word is an error.
func (l *loader) second(n *yaml.Node, what, first, second string) bool {
	s, _ := l.word(n, what, first, second)
	return s == second
}

// list calls read for each entry of a list, or for a single value.
func (l *loader) list(n *yaml.Node, read func(*yaml.Node)) {
	if n.Kind != yaml.SequenceNode {
		read(n)
		return
	}
	if len(n.Content) == 0 {
		l.fail(n, "an empty list matches nothing: omit the key to match all")
	}
	for _, entry := range n.Content {
		read(target(entry))
	}
}
