package manual

import "strings"

// span is a part of a text with one style.
type span struct {
	text  string
	style style
}

type style uint8

const (
	normal style = iota
	literal
	strong
	link
)

// spans splits a text at code, bold text and links. A link becomes its label.
func spans(text string) []span {
	var out []span
	for text != "" {
		at := strings.IndexAny(text, "`*[")
		if at < 0 {
			return append(out, span{text: text})
		}
		if at > 0 {
			out = append(out, span{text: text[:at]})
			text = text[at:]
		}
		s, rest, ok := styled(text)
		if !ok {
			s, rest = span{text: text[:1]}, text[1:]
		}
		out = append(out, s)
		text = rest
	}
	return out
}

// styled reads the code, bold text or link with which a text begins.
func styled(text string) (s span, rest string, ok bool) {
	switch {
	case text[0] == '`':
		s.text, rest, ok = strings.Cut(text[1:], "`")
		s.style = literal
	case strings.HasPrefix(text, "**"):
		s.text, rest, ok = strings.Cut(text[2:], "**")
		s.style = strong
	case text[0] == '[':
		var target string
		if s.text, rest, ok = strings.Cut(text[1:], "]("); ok && !strings.ContainsAny(s.text, "[]") {
			target, rest, ok = strings.Cut(rest, ")")
		} else {
			ok = false
		}
		s.text, s.style = plain(s.text), link
		ok = ok && target != ""
	}
	return s, rest, ok
}

// plain returns a text without styles.
func plain(text string) string {
	var out strings.Builder
	for _, s := range spans(text) {
		out.WriteString(s.text)
	}
	return strings.ReplaceAll(out.String(), `\|`, "|")
}
