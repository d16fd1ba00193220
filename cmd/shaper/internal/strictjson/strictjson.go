// Package strictjson decodes JSON without ambiguity. encoding/json accepts a field in any case,
// takes the last of several with the same name, and replaces invalid UTF-8.
package strictjson

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"strings"
	"unicode/utf8"
)

// maxDepth is the maximum nesting of objects and lists. Those of shaper nest three deep.
const maxDepth = 16

// maxNames is the number of names in an object. Those of shaper have fewer than 20.
const maxNames = 100

// TooManyError is the error for a list with too many elements.
type TooManyError struct{ Most int }

func (e *TooManyError) Error() string { return fmt.Sprintf("a list has more than %d elements", e.Most) }

// Unmarshal is json.Unmarshal for a pointer to a type of structs, lists and maps. Errors are
// duplicate names in an object, names other than exactly those of fields, more than 100 names,
// deeply nested values, and lists longer than most elements (0: no limit). After an error, into is
// unchanged.
func Unmarshal(text []byte, into any, most int) error {
	if !utf8.Valid(text) {
		return errors.New("it is not UTF-8")
	}
	if json.Valid(text) { // otherwise json.Unmarshal returns the error
		s := scanner{text: text, most: most, fields: map[reflect.Type]map[string]reflect.Type{}}
		if err := s.value(reflect.TypeOf(into).Elem(), 0); err != nil {
			return err
		}
	}
	return json.Unmarshal(text, into)
}

// scanner reads valid JSON.
type scanner struct {
	text   []byte
	at     int
	most   int // elements of a list
	fields map[reflect.Type]map[string]reflect.Type
}

// next returns the next byte that is not blank.
func (s *scanner) next() byte {
	for strings.IndexByte(" \t\r\n", s.text[s.at]) >= 0 {
		s.at++
	}
	return s.text[s.at]
}

// value skips a value of a type; nil means any.
func (s *scanner) value(t reflect.Type, depth int) error {
	if depth > maxDepth {
		return fmt.Errorf("more than %d objects and lists contain each other", maxDepth)
	}
	for t != nil && t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t != nil && reflect.PointerTo(t).Implements(reflect.TypeFor[json.Unmarshaler]()) {
		t = nil
	}
	switch s.next() {
	case '{':
		return s.object(t, depth)
	case '[':
		return s.list(t, depth)
	case '"':
		s.skipString()
	default:
		for s.at < len(s.text) && strings.IndexByte(",]} \t\r\n", s.text[s.at]) < 0 {
			s.at++
		}
	}
	return nil
}

func (s *scanner) list(t reflect.Type, depth int) error {
	var element reflect.Type
	if t != nil && (t.Kind() == reflect.Slice || t.Kind() == reflect.Array) {
		element = t.Elem()
	}
	s.at++
	for n := 0; s.next() != ']'; n++ {
		if s.text[s.at] == ',' {
			s.at++
		}
		if s.most > 0 && n == s.most {
			return &TooManyError{s.most}
		}
		if err := s.value(element, depth+1); err != nil {
			return err
		}
	}
	s.at++
	return nil
}

func (s *scanner) object(t reflect.Type, depth int) error {
	var fields map[string]reflect.Type // nil: any name
	var element reflect.Type
	if t != nil && t.Kind() == reflect.Struct {
		fields = s.fieldsOf(t)
	} else if t != nil && t.Kind() == reflect.Map {
		element = t.Elem()
	}
	seen := map[string]bool{}
	s.at++
	for s.next() != '}' {
		if s.text[s.at] == ',' {
			s.at++
			s.next()
		}
		name, err := s.name()
		if err != nil {
			return err
		}
		if seen[name] {
			return fmt.Errorf("field %q is there twice", name)
		}
		if len(seen) == maxNames {
			return fmt.Errorf("an object has more than %d names", maxNames)
		}
		seen[name] = true
		field := element
		if fields != nil {
			known := false
			if field, known = fields[name]; !known {
				return unknown(name, fields)
			}
		}
		s.next()
		s.at++ // the colon
		if err := s.value(field, depth+1); err != nil {
			return err
		}
	}
	s.at++
	return nil
}

func unknown(name string, fields map[string]reflect.Type) error {
	for want := range fields {
		if strings.EqualFold(want, name) {
			return fmt.Errorf("unknown field %q: want %q", name, want)
		}
	}
	return fmt.Errorf("unknown field %q", name)
}

// name reads the name of a field.
func (s *scanner) name() (name string, err error) {
	begin := s.at
	s.skipString()
	quoted := s.text[begin:s.at]
	if text := quoted[1 : len(quoted)-1]; !strings.Contains(string(text), `\`) {
		return string(text), nil
	}
	return name, json.Unmarshal(quoted, &name)
}

func (s *scanner) skipString() {
	for s.at++; s.text[s.at] != '"'; s.at++ {
		if s.text[s.at] == '\\' {
			s.at++
		}
	}
	s.at++
}

// fieldsOf returns the fields of a struct by their names in JSON.
func (s *scanner) fieldsOf(t reflect.Type) map[string]reflect.Type {
	if known := s.fields[t]; known != nil {
		return known
	}
	out := map[string]reflect.Type{}
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case f.Anonymous && name == "" && f.Type.Kind() == reflect.Struct:
			maps.Copy(out, s.fieldsOf(f.Type))
		case !f.IsExported() || name == "-":
		default:
			out[cmp.Or(name, f.Name)] = f.Type
		}
	}
	s.fields[t] = out
	return out
}
