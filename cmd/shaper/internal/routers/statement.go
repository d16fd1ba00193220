package routers

import (
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/routers/form"
)

// statement is a form of statements in a place of a configuration, and what they do to a T.
type statement[T any] struct {
	form string
	do   func(to T, l Line, v form.Values) error
}

// reader reads statements of a place. Each word of a statement must have a meaning in one of its forms, so
// an error names the first word that has none.
type reader[T any] struct {
	forms      func() []*form.Form
	statements []statement[T]
}

func newReader[T any](kinds form.Readers, statements ...statement[T]) *reader[T] {
	return &reader[T]{
		statements: statements,
		forms: sync.OnceValue(func() (all []*form.Form) {
			for _, s := range statements {
				all = append(all, form.Parse(s.form, kinds))
			}
			return all
		}),
	}
}

// read reads a statement.
func (r *reader[T]) read(to T, l Line) error {
	n, err := r.prefix(to, l, func(f *form.Form) (form.Values, int, error) {
		v, err := f.Match(l.Words)
		return v, len(l.Words), err
	})
	if err == nil && n == 0 {
		err = errors.New("it is empty")
	}
	return err
}

// readEach reads the statements of a line, one behind the other.
func (r *reader[T]) readEach(to T, l Line) error {
	for len(l.Words) > 0 {
		n, err := r.prefix(to, l, func(f *form.Form) (form.Values, int, error) { return f.Prefix(l.Words) })
		if err != nil {
			return err
		}
		l.Words = l.Words[n:]
	}
	return nil
}

// prefix reads the words that the longest match of a form takes, and returns their number.
func (r *reader[T]) prefix(
	to T, l Line, match func(*form.Form) (form.Values, int, error),
) (length int, err error) {
	if len(l.Words) > form.MaxWords {
		return 0, fmt.Errorf("it has more than %d words", form.MaxWords)
	}
	best := -1
	var values form.Values
	far := &form.Mismatch{At: -1, Word: l.Word(0)}
	for i, f := range r.forms() {
		v, n, err := match(f)
		var m *form.Mismatch
		switch {
		case err == nil && n > length:
			best, length, values = i, n, v
		case errors.As(err, &m) && m.At > far.At && !anyWords(f.Text):
			far = m
		}
	}
	if best < 0 {
		return 0, far
	}
	return length, r.statements[best].do(to, Line{l.Number, l.Indent, l.Words[:length]}, values)
}

// anyWords reports whether a form takes any words, so its mismatches tell nothing.
func anyWords(form string) bool { return strings.Contains(form, "<word>...") }

// refused is a form of statements that a policy cannot express.
func refused[T any](text, reason string) statement[T] {
	return statement[T]{text, func(T, Line, form.Values) error { return errors.New(reason) }}
}

// without is a form of statements without an effect on packets.
func without[T any](text string) statement[T] {
	return statement[T]{text, func(T, Line, form.Values) error { return nil }}
}
