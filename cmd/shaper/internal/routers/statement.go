package routers

import (
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/routers/form"
)

// Statement is a kind of statement. Do takes the values of one into a T, such as a class. Without Do, the
// statement has no effect on packets.
type Statement[T any] struct {
	Form   string // see package form
	Do     func(to T, l Line, v form.Values) error
	Reason string // why a policy cannot express it; "" if it can
}

// Reader reads the statements that a part of a configuration, such as a class, can contain. Each word must
// have a meaning in a form: the error names the first word that has none.
type Reader[T any] struct {
	Kinds      *form.Readers // of the values in forms
	Statements []Statement[T]

	once  sync.Once
	forms []*form.Form
}

// parse parses the forms.
func (r *Reader[T]) parse() {
	for _, s := range r.Statements {
		r.forms = append(r.forms, form.Parse(s.Form, *r.Kinds))
	}
}

// Read reads a line that is one statement.
func (r *Reader[T]) Read(to T, l Line) error {
	n, _, err := r.longest(to, l, func(f *form.Form) (form.Values, int, *form.Mismatch, error) {
		v, err := f.Match(l.Words)
		return v, len(l.Words), nil, err
	})
	if err == nil && n == 0 {
		err = errors.New("it is empty")
	}
	return err
}

// ReadEach reads the statements of a line, one behind the other.
func (r *Reader[T]) ReadEach(to T, l Line) error {
	var before *form.Mismatch // of the statement before
	for len(l.Words) > 0 {
		n, far, err := r.longest(to, l, func(f *form.Form) (form.Values, int, *form.Mismatch, error) {
			return f.Prefix(l.Words)
		})
		if m := (*form.Mismatch)(nil); errors.As(err, &m) && m.At == 0 && before != nil {
			return before
		}
		if err != nil {
			return err
		}
		l.Words = l.Words[n:]
		if before = nil; far.At >= n && (far.Err != nil || far.Word == "") {
			before = far
		}
	}
	return nil
}

// longest reads the words that the longest match of a form takes. It returns their number, and the mismatch
// behind them.
func (r *Reader[T]) longest(
	to T, l Line, match func(*form.Form) (form.Values, int, *form.Mismatch, error),
) (length int, behind *form.Mismatch, err error) {
	if len(l.Words) > form.MaxWords {
		return 0, nil, fmt.Errorf("it has more than %d words", form.MaxWords)
	}
	r.once.Do(r.parse)
	best := -1
	var values form.Values
	far := &form.Mismatch{At: -1, Word: l.Word(0)}
	for i, f := range r.forms {
		if !f.Starts(l.Word(0)) {
			continue
		}
		v, n, more, err := match(f)
		var m *form.Mismatch
		switch {
		case err == nil && n > length:
			best, length, values, behind = i, n, v, more
		case errors.As(err, &m) && m.At > far.At && !anyWords(f.Text):
			far = m
		}
	}
	if best < 0 {
		return 0, nil, far
	}
	switch s := r.Statements[best]; {
	case s.Reason != "":
		err = errors.New(s.Reason)
	case s.Do != nil:
		err = s.Do(to, l.with(l.Words[:length]), values)
	}
	return length, behind, err
}

// anyWords reports whether a form takes any words, so its mismatches tell nothing.
func anyWords(form string) bool { return strings.Contains(form, "<word>...") }
