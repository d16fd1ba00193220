package form

import (
	"fmt"
	"strings"
)

type parser struct {
	text  string
	words []string
	kinds Readers
}

// tokens splits a form into its words and signs.
func tokens(text string) []string {
	for _, sign := range []string{"[", "]", "(", ")", "{", "}", "|", "..."} {
		text = strings.ReplaceAll(text, sign, " "+sign+" ")
	}
	return strings.Fields(text)
}

func (p *parser) fail(format string, args ...any) {
	panic(fmt.Sprintf("form %q: %s", p.text, fmt.Sprintf(format, args...)))
}

// list reads sequences, separated by |, up to a closing sign, which it takes.
func (p *parser) list(end string) (all []node) {
	for {
		all = append(all, p.sequence(end))
		switch {
		case len(p.words) == 0 && end != "":
			p.fail("%s is missing", end)
		case len(p.words) == 0:
			return all
		}
		sign := p.words[0]
		p.words = p.words[1:]
		if sign == end {
			return all
		}
	}
}

func (p *parser) alternatives(end string) node { return either(p.list(end)) }

// sequence reads up to | or a closing sign.
func (p *parser) sequence(end string) node {
	var list []node
	for len(p.words) > 0 {
		w := p.words[0]
		if w == "|" || w == end {
			break
		}
		p.words = p.words[1:]
		var n node
		switch {
		case w == "[":
			n = optional(p.alternatives("]"))
		case w == "(":
			n = p.alternatives(")")
		case w == "{":
			n = unordered(p.list("}"))
		case strings.HasPrefix(w, "<"):
			n = p.value(w)
		case strings.ContainsAny(w, "])}"):
			p.fail("%s is misplaced", w)
		default:
			n = p.word(w)
		}
		if len(p.words) > 0 && p.words[0] == "..." {
			p.words = p.words[1:]
			n = repeated(n)
		}
		list = append(list, n)
	}
	if len(list) == 0 {
		p.fail("a part is empty")
	}
	return sequence(list)
}

// value reads <kind:name> or <kind>.
func (p *parser) value(w string) node {
	kind, name, named := strings.Cut(strings.Trim(w, "<>"), ":")
	if !named {
		name = kind
	}
	read := p.kinds[kind]
	if read == nil {
		p.fail("kind %s is unknown", kind)
	}
	return value(name, nil, read)
}

// word reads x, or x:name, which keeps the word under a name.
func (p *parser) word(w string) node {
	text, name, named := strings.Cut(w, ":")
	text, short := strings.CutSuffix(text, "~")
	is := func(word string) bool {
		return strings.EqualFold(word, text) ||
			short && word != "" && len(word) < len(text) && strings.EqualFold(word, text[:len(word)])
	}
	if !named {
		return word(is)
	}
	return value(name, is, func([]string) (any, int, error) { return text, 1, nil })
}
