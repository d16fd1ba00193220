package filter

import (
	"fmt"
	"slices"
)

// maxDepth bounds the depth of parentheses, brackets and negations.
const maxDepth = 200

type direction int

const (
	isEither direction = iota // source or destination
	isSrc
	isDst
	isBoth
)

// qualifiers are the keywords before a value.
type qualifiers struct {
	proto     string // of a protocol, or ""
	direction direction
	kind      string // host, net, port, portrange, proto; "" is host
}

// operand is a test, or a number to compare.
type operand struct {
	start  token
	test   test
	number number
	guard  test // tests for the headers read by number; nil: always
	// constant is valid if the number is known. literal is set if it was written as a number, which
	// can also be a value without keywords.
	constant       uint32
	known, literal bool
}

// parser compiles an expression.
type parser struct {
	lexer
	tok     token // the next one
	failure *Error
	tags    int         // VLAN tags of all vlan so far
	last    *qualifiers // of the previous test with a value
	depth   int
}

// fail notes the first error. After it, the next token is always the end.
func (p *parser) fail(at int, format string, args ...any) {
	if p.failure == nil {
		p.failure = &Error{at + 1, fmt.Sprintf(format, args...)}
	}
	p.at = len(p.text)
	p.tok = token{at: len(p.text)}
}

// advance reads the next token and returns the one before it.
func (p *parser) advance() token {
	current := p.tok
	next, err := p.next()
	if err != nil {
		p.fail(err.Column-1, "%s", err.Reason)
		return current
	}
	p.tok = next
	return current
}

// is reports whether the next token is one of texts.
func (p *parser) is(texts ...string) bool {
	return p.tok.text != "" && !p.tok.escaped && slices.Contains(texts, p.tok.text)
}

// accept advances if the next token is one of texts.
func (p *parser) accept(texts ...string) bool {
	if !p.is(texts...) {
		return false
	}
	p.advance()
	return p.failure == nil
}

func (p *parser) expect(text string) {
	if !p.accept(text) {
		p.unexpected(fmt.Sprintf("want %q", text))
	}
}

// unexpected reports the next token as an error.
func (p *parser) unexpected(want string) {
	if p.tok.text == "" {
		p.fail(p.tok.at, "the filter ends too early: %s", want)
		return
	}
	p.fail(p.tok.at, "unexpected %q: %s", p.tok.text, want)
}

// deeper reports whether the expression may be one level deeper. The caller must decrease
// depth in any case.
func (p *parser) deeper() bool {
	if p.depth++; p.depth > maxDepth {
		p.fail(p.tok.at, "there are more than %d levels of parentheses", maxDepth)
	}
	return p.failure == nil
}

func (p *parser) parse() (test, error) {
	p.advance()
	if p.failure == nil && p.tok.text == "" {
		p.unexpected("want an expression such as \"host 192.0.2.1 and udp\"")
	}
	t := p.tested(p.expression())
	if p.failure == nil && p.tok.text != "" {
		p.unexpected("want and, or, or the end")
	}
	if p.failure != nil {
		return nil, p.failure
	}
	return t, nil
}

// expression parses tests joined by and and or, or a single number.
func (p *parser) expression() operand {
	left := p.unit()
	for p.is("and", "&&", "or", "||") {
		first := p.tested(left)
		join := or
		if p.is("and", "&&") {
			join = and
		}
		p.advance()
		second := p.tested(p.unit())
		if p.failure != nil {
			return operand{}
		}
		left = operand{start: left.start, test: join(first, second)}
	}
	return left
}

// tested returns the test of an operand. A literal is a value with the previous keywords.
func (p *parser) tested(o operand) test {
	switch {
	case p.failure != nil:
		return nil
	case o.test != nil:
		return o.test
	case o.literal && p.last != nil:
		return p.value(*p.last, o.start)
	}
	p.fail(o.start.at,
		"%q is a number: compare it, as in len > 100, or write a keyword such as port before it",
		o.start.text)
	return nil
}

// unit parses a negation, a comparison, another test, or a number.
func (p *parser) unit() operand {
	start := p.tok
	if p.accept("not", "!") {
		defer func() { p.depth-- }()
		if !p.deeper() {
			return operand{}
		}
		inner := p.tested(p.unit())
		if p.failure != nil {
			return operand{}
		}
		return operand{start: start, test: not(inner)}
	}
	left := p.sum(0)
	if left.number == nil || !p.is("<", "<=", ">", ">=", "=", "==", "!=") {
		return left
	}
	operator := p.advance().text
	right := p.sum(0)
	if p.failure == nil && right.number == nil {
		p.fail(right.start.at, "%q is not a number", right.start.text)
	}
	if p.failure != nil {
		return operand{}
	}
	p.last = nil
	t := compare(operator, left.number, right.number)
	if guard := bothGuards(left, right); guard != nil {
		t = and(guard, t)
	}
	return operand{start: start, test: t}
}

// primitive parses a test from its first word.
func (p *parser) primitive() test {
	switch start := p.tok; {
	case !start.word:
		p.unexpected("want a test such as host, port or tcp")
		return nil
	case p.accept("less"):
		p.last = nil
		n := p.literal(1<<32 - 1)
		return func(v *view) bool { return v.wire <= n }
	case p.accept("greater"):
		p.last = nil
		n := p.literal(1<<32 - 1)
		return func(v *view) bool { return v.wire >= n }
	case p.accept("vlan"):
		p.last = nil
		id := -1
		if p.tok.word && isDigit(p.tok.text[0]) {
			id = int(p.literal(4095))
		}
		p.tags++
		return vlan(id, p.tags-1)
	case p.last != nil && !p.startsTest():
		return p.value(*p.last, p.advance())
	}
	return p.qualified()
}

// startsTest reports whether the next token is a keyword before a value.
func (p *parser) startsTest() bool {
	_, isProtocol := protocols[p.tok.text]
	return !p.tok.escaped && (isProtocol || p.is("src", "dst", "host", "net", "port", "portrange", "proto"))
}

// qualified parses keywords and the values after them, or the name of a protocol.
func (p *parser) qualified() test {
	start := p.tok
	var q qualifiers
	protocol, isProtocol := protocols[start.text]
	if isProtocol && !start.escaped {
		q.proto = start.text
		p.advance()
	}
	directed := p.is("src", "dst")
	if directed {
		q.direction = p.direction()
	}
	if p.is("host", "net", "port", "portrange", "proto") {
		q.kind = p.advance().text
	} else if q.proto != "" && !directed {
		p.last = nil
		if protocol.index == indexLink {
			p.unexpected("want host, src, dst, proto or [ after ether")
			return nil
		}
		return protocol.test(p.tags)
	} else if !directed {
		p.unknown(start)
		return nil
	}
	if q.kind == "proto" && directed {
		p.fail(start.at, "proto has no direction")
	}
	p.last = &q
	return p.values(q)
}

// unknown reports a word which cannot begin a test.
func (p *parser) unknown(word token) {
	if _, _, ok := parseNetwork(word.text); ok {
		p.fail(word.at, "write host or net before %q", word.text)
		return
	}
	p.fail(word.at,
		"unknown word %q: shaper supports host, net, port, portrange, proto, the names of protocols, vlan, less, greater and comparisons",
		word.text)
}

// direction parses src, dst, src or dst, src and dst.
func (p *parser) direction() direction {
	first := p.advance().text
	rest := p.lexer
	joined := p.tok
	if p.is("or", "and", "||", "&&") {
		p.advance()
		if p.is("src", "dst") && p.tok.text != first {
			p.advance()
			if joined.text == "or" || joined.text == "||" {
				return isEither
			}
			return isBoth
		}
		if p.failure == nil {
			p.lexer, p.tok = rest, joined
		}
	}
	if first == "src" {
		return isSrc
	}
	return isDst
}

// values parses the values after keywords: one, or several in parentheses.
func (p *parser) values(q qualifiers) test {
	defer func() { p.depth-- }()
	if !p.deeper() {
		return nil
	}
	if p.accept("not", "!") {
		t := p.values(q)
		if p.failure != nil {
			return nil
		}
		return not(t)
	}
	if !p.accept("(") {
		return p.value(q, p.advance())
	}
	t := p.values(q)
	for p.is("and", "&&", "or", "||") {
		join := or
		if p.is("and", "&&") {
			join = and
		}
		p.advance()
		more := p.values(q)
		if p.failure != nil {
			return nil
		}
		t = join(t, more)
	}
	p.expect(")")
	return t
}
