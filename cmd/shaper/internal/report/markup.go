package report

import (
	"fmt"
	"html"
	"io"
	"strings"
	"unicode/utf8"
)

// markup is complete HTML or SVG, which is written without being escaped.
type markup string

// document collects a page or a picture.
//
// It replaces html/template: a program with a template engine keeps every exported method of every
// type it uses, which would add 8 MB to shaper.
type document struct{ strings.Builder }

// printf is fmt.Fprintf with every string escaped, unless it is markup. Attribute
// values must be quoted in format, and no argument may be inside a script.
func (d *document) printf(format string, args ...any) {
	for i, arg := range args {
		if s, ok := arg.(string); ok {
			args[i] = escaped(s)
		}
	}
	fmt.Fprintf(d, format, args...)
}

// writeTo writes the document, and wraps the writer's error.
func (d *document) writeTo(w io.Writer) error {
	if _, err := io.WriteString(w, d.String()); err != nil {
		return fmt.Errorf("report: %w", err)
	}
	return nil
}

// escaped returns text for an element or a quoted attribute of HTML and XML. Characters forbidden
// in XML become U+FFFD.
func escaped(s string) markup {
	return markup(html.EscapeString(strings.Map(func(r rune) rune {
		switch {
		case r == '\t' || r == '\n' || r == '\r':
			return r
		case r < ' ' || r == 0xFFFE || r == 0xFFFF:
			return utf8.RuneError
		}
		return r
	}, s)))
}
