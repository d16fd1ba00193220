package filter

import (
	"fmt"
	"strings"
)

// token is a word, an operator, or "" at the end.
type token struct {
	text    string
	at      int  // offset in the expression, bytes
	word    bool // letters, digits and the characters between them
	escaped bool // the word was preceded by \
}

// lexer splits an expression into tokens.
type lexer struct {
	text     string
	at       int
	brackets int // open brackets: in them, a colon and a hyphen are no part of a word
}

var operators = []string{"&&", "||", "!=", "==", "<=", ">=", "<<", ">>"}

func (l *lexer) next() (token, *Error) {
	for l.at < len(l.text) && strings.IndexByte(" \t\r\n", l.text[l.at]) >= 0 {
		l.at++
	}
	start := l.at
	if start == len(l.text) {
		return token{at: start}, nil
	}
	rest := l.text[start:]
	escaped := rest[0] == '\\'
	if escaped {
		rest = rest[1:]
	}
	if n := l.wordLength(rest); n > 0 {
		l.at = len(l.text) - len(rest) + n
		return token{rest[:n], start, true, escaped}, nil
	}
	unexpected := &Error{start + 1, fmt.Sprintf("unexpected %q", l.text[start:start+1])}
	if escaped {
		return token{}, unexpected
	}
	n := 1
	for _, o := range operators {
		if strings.HasPrefix(rest, o) {
			n = 2
		}
	}
	switch c := rest[0]; {
	case strings.IndexByte("()[]:&|!=<>+-*/%^", c) < 0:
		return token{}, unexpected
	case c == '[':
		l.brackets++
	case c == ']':
		l.brackets--
	}
	l.at += n
	return token{text: rest[:n], at: start}, nil
}

// wordLength returns the length of the word at the start of a text, bytes. An IPv6 address may
// start with colons.
func (l *lexer) wordLength(text string) int {
	joins := ".:-_"
	if l.brackets > 0 {
		joins = "_"
	}
	n := 0
	for n < len(text) && (isLetter(text[n]) || isDigit(text[n]) || strings.IndexByte(joins, text[n]) >= 0) {
		n++
	}
	if n > 0 && strings.IndexByte(joins, text[0]) >= 0 && !(n > 1 && text[:2] == "::") {
		return 0
	}
	return n
}

func isLetter(c byte) bool { return c|0x20 >= 'a' && c|0x20 <= 'z' }
func isDigit(c byte) bool  { return c >= '0' && c <= '9' }
