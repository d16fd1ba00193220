// Package form reads statements of configurations by their forms. A form must take every word of a
// statement, so a word without a meaning is an error and never passed over.
//
// Forms are written as in command references:
//
//	word          the word, in any case
//	word~         the word, or its beginning
//	word:name     the word, kept under the name
//	<kind:name>   words that the reader of the kind reads, kept under the name; <kind> is <kind:kind>
//	[x y]         x y, or nothing
//	(x | y)       x, or y
//	{x | y}       x and y in any order, each at most once, or none
//	x...          x, once or more
package form

import (
	"fmt"
	"slices"
)

// Reader reads a value from the first words of words, of which there is at least one. It returns how many it
// read, at least one. An error tells why they are no such value.
type Reader func(words []string) (v any, n int, err error)

// Readers are the readers of a language, by kind.
type Readers map[string]Reader

// Form is a form of statements.
type Form struct {
	Text string
	node node
}

// Values are the values of a statement, in its order.
type Values []Value

// Value is a value of a statement.
type Value struct {
	Name  string
	Value any
	Words []string
	At    int // index of the first word in the statement
}

// Parse parses a form. It panics if the form is wrong or names an unknown kind.
func Parse(text string, kinds Readers) *Form {
	p := &parser{words: tokens(text), text: text, kinds: kinds}
	n := p.alternatives("")
	return &Form{text, n}
}

// Mismatch tells why a statement does not have a form.
type Mismatch struct {
	At   int    // number of words that were understood
	Word string // the next one, or "" at the end
	Err  error  // of a reader, or nil
}

func (m *Mismatch) Error() string {
	switch {
	case m.Word == "" && m.Err == nil:
		return "it is not complete"
	case m.Err == nil:
		return fmt.Sprintf("%q is not understood", m.Word)
	}
	return m.Err.Error()
}

func (m *Mismatch) Unwrap() error { return m.Err }

// Match returns the values of a statement of at most MaxWords words. The error is a *Mismatch.
func (f *Form) Match(words []string) (Values, error) {
	m := newMatcher(words)
	if f.node.match(m, 0, func(at int) bool {
		if at < len(words) {
			m.fail(at, nil)
		}
		return at == len(words)
	}) {
		return m.values, nil
	}
	return nil, m.far
}

// Starts reports whether a statement that begins with a word may have the form.
func (f *Form) Starts(word string) bool { return f.node.starts == nil || f.node.starts(word) }

// Prefix matches the beginning of a statement, and returns the number of its words. far tells which word
// after it did not match.
func (f *Form) Prefix(words []string) (v Values, n int, far *Mismatch, err error) {
	m := newMatcher(words)
	if !f.node.match(m, 0, func(at int) bool { n = at; return true }) {
		return nil, 0, m.far, m.far
	}
	return m.values, n, m.far, nil
}

// MaxWords is the maximum length of a statement, which bounds the recursion of Match.
const MaxWords = 1000

// matcher is a statement that is matched. Nodes try their ways one after the other, and call next with the
// index of the word behind them.
type matcher struct {
	words  []string
	values Values
	far    *Mismatch
}

func newMatcher(words []string) *matcher {
	m := &matcher{words: words, far: &Mismatch{}}
	if len(words) > 0 {
		m.far.Word = words[0]
	}
	return m
}

// node is a part of a form.
type node struct {
	starts func(word string) bool // whether it may begin with a word; nil: with any, or it may be empty
	match  func(m *matcher, at int, next func(at int) bool) bool
}

// fail records a mismatch if none was farther.
func (m *matcher) fail(at int, err error) {
	if at > m.far.At || at == m.far.At && m.far.Err == nil {
		m.far = &Mismatch{At: at, Err: err}
		if at < len(m.words) {
			m.far.Word = m.words[at]
		}
	}
}

// word matches a word.
func word(is func(string) bool) node {
	return node{starts: is, match: func(m *matcher, at int, next func(int) bool) bool {
		if at < len(m.words) && is(m.words[at]) {
			return next(at + 1)
		}
		m.fail(at, nil)
		return false
	}}
}

// value matches the words that a reader takes. is tells which word may be the first; nil: any.
func value(name string, is func(string) bool, read Reader) node {
	return node{starts: is, match: func(m *matcher, at int, next func(int) bool) bool {
		if at == len(m.words) || is != nil && !is(m.words[at]) {
			m.fail(at, nil)
			return false
		}
		v, n, err := read(m.words[at:])
		if err != nil {
			m.fail(at, err)
			return false
		}
		before := len(m.values)
		m.values = append(m.values, Value{name, v, m.words[at : at+n], at})
		if next(at + n) {
			return true
		}
		m.values = m.values[:before]
		return false
	}}
}

func sequence(list []node) node {
	if len(list) == 1 {
		return list[0]
	}
	return node{starts: list[0].starts, match: func(m *matcher, at int, next func(int) bool) bool {
		var from func(i, at int) bool
		from = func(i, at int) bool {
			if i == len(list) {
				return next(at)
			}
			return list[i].match(m, at, func(at int) bool { return from(i+1, at) })
		}
		return from(0, at)
	}}
}

func either(list []node) node {
	if len(list) == 1 {
		return list[0]
	}
	any := slices.ContainsFunc(list, func(n node) bool { return n.starts == nil })
	n := node{match: func(m *matcher, at int, next func(int) bool) bool {
		for _, n := range list {
			if n.match(m, at, next) {
				return true
			}
		}
		return false
	}}
	if !any {
		n.starts = func(word string) bool {
			return slices.ContainsFunc(list, func(n node) bool { return n.starts(word) })
		}
	}
	return n
}

func optional(n node) node {
	return node{match: func(m *matcher, at int, next func(int) bool) bool {
		return n.match(m, at, next) || next(at)
	}}
}

func repeated(n node) node {
	again := node{starts: n.starts}
	again.match = func(m *matcher, at int, next func(int) bool) bool {
		return n.match(m, at, func(after int) bool {
			return after > at && again.match(m, after, next) || next(after)
		})
	}
	return again
}

// unordered matches any of the nodes in any order, each at most once.
func unordered(list []node) node {
	return node{match: func(m *matcher, at int, next func(int) bool) bool {
		used := make([]bool, len(list))
		var more func(at int) bool
		more = func(at int) bool {
			for i, n := range list {
				if used[i] {
					continue
				}
				used[i] = true
				if n.match(m, at, func(after int) bool { return after > at && more(after) }) {
					return true
				}
				used[i] = false
			}
			return next(at)
		}
		return more(at)
	}}
}

// Get returns the first value of a name, or nil.
func (v Values) Get(name string) any {
	for _, x := range v {
		if x.Name == name {
			return x.Value
		}
	}
	return nil
}

// Has reports whether there is a value of a name.
func (v Values) Has(name string) bool { return v.Get(name) != nil }
