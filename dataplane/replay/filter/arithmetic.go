package filter

// names are names of numbers: fields of headers, and their values.
var names = map[string]uint32{
	"tcpflags": 13,
	"tcp-fin":  0x01, "tcp-syn": 0x02, "tcp-rst": 0x04, "tcp-push": 0x08,
	"tcp-ack": 0x10, "tcp-urg": 0x20, "tcp-ece": 0x40, "tcp-cwr": 0x80,

	"icmptype": 0, "icmpcode": 1,
	"icmp-echoreply": 0, "icmp-unreach": 3, "icmp-sourcequench": 4, "icmp-redirect": 5, "icmp-echo": 8,
	"icmp-routeradvert": 9, "icmp-routersolicit": 10, "icmp-timxceed": 11, "icmp-paramprob": 12,
	"icmp-tstamp": 13, "icmp-tstampreply": 14, "icmp-ireq": 15, "icmp-ireqreply": 16,
	"icmp-maskreq": 17, "icmp-maskreply": 18,

	"icmp6type": 0, "icmp6code": 1,
	"icmp6-packettoobig": 2, "icmp6-timeexceeded": 3, "icmp6-parameterproblem": 4,
	"icmp6-echo": 128, "icmp6-echoreply": 129, "icmp6-routersolicit": 133, "icmp6-routeradvert": 134,
	"icmp6-neighborsolicit": 135, "icmp6-neighboradvert": 136, "icmp6-redirect": 137,
}

// precedence lists the operators between numbers. In libpcap, % and ^ are without precedence: they
// apply to the operand before them and to everything after them.
var precedence = map[string]int{
	"|": 1, "&": 2, "<<": 3, ">>": 3, "+": 4, "-": 4, "*": 5, "/": 5, "%": greedy, "^": greedy,
}

const greedy = 6

// sum parses numbers joined by operators of at least some precedence, or a test.
func (p *parser) sum(least int) operand {
	defer func() { p.depth-- }()
	if !p.deeper() {
		return operand{}
	}
	left := p.primary()
	for left.number != nil && p.failure == nil && !p.tok.word {
		operator := p.tok
		level := precedence[operator.text]
		if level == 0 || level < least {
			break
		}
		p.advance()
		next := level + 1
		if level == greedy {
			next = 0
		}
		right := p.sum(next)
		if p.failure != nil || right.number == nil {
			p.fail(right.start.at, "%q is not a number", right.start.text)
			return operand{}
		}
		zero := right.known && right.constant == 0
		if (operator.text == "/" || operator.text == "%") && zero {
			p.fail(right.start.at, "division by zero")
		}
		if (operator.text == "<<" || operator.text == ">>") && right.known && right.constant > 31 {
			p.fail(right.start.at, "shift by more than 31 bits")
		}
		left = operand{
			start: left.start, number: calculate(operator.text, left.number, right.number),
			guard: bothGuards(left, right),
		}
	}
	return left
}

// primary parses a number, a field of a header, a test, or an expression in parentheses.
func (p *parser) primary() operand {
	start := p.tok
	switch {
	case p.accept("-"):
		o := p.sum(greedy)
		if p.failure != nil || o.number == nil {
			p.fail(o.start.at, "%q is not a number", o.start.text)
			return operand{}
		}
		n := o.number
		return operand{start: start, number: func(v *view) uint32 { return -n(v) }, guard: o.guard}
	case p.accept("("):
		o := p.expression()
		p.expect(")")
		o.literal = false
		return o
	case p.accept("len"):
		return operand{start: start, number: func(v *view) uint32 { return v.wire }}
	case !start.word || start.escaped:
		return operand{start: start, test: p.primitive()}
	}
	if n, named := names[start.text]; named {
		p.advance()
		return constant(start, n)
	}
	if n, err := parseNumber(start.text); err == nil {
		if n > 1<<32-1 {
			p.fail(start.at, "%s does not fit in 32 bits", start.text)
		}
		p.advance()
		o := constant(start, uint32(n))
		o.literal = true
		return o
	}
	if _, ok := protocols[start.text]; ok {
		before := p.lexer
		p.advance()
		if p.accept("[") {
			return p.field(start)
		}
		if p.failure == nil {
			p.lexer, p.tok = before, start
		}
	}
	return operand{start: start, test: p.primitive()}
}

func constant(start token, n uint32) operand {
	return operand{start: start, number: func(*view) uint32 { return n }, constant: n, known: true}
}

// field parses the rest of keyword[offset:size].
func (p *parser) field(keyword token) operand {
	o := p.sum(0)
	if p.failure == nil && o.number == nil {
		p.fail(o.start.at, "%q is not a number", o.start.text)
	}
	size := 1
	if p.accept(":") {
		at := p.tok.at
		if size = int(p.literal(4)); size != 1 && size != 2 && size != 4 {
			p.fail(at, "the size of a field is 1, 2 or 4 bytes")
		}
	}
	p.expect("]")
	protocol := protocols[keyword.text]
	offset, tags := o.number, p.tags
	guard := protocol.hasField(tags)
	var start func(v *view) uint64
	switch protocol.index {
	case indexLink:
		start = func(*view) uint64 { return 0 }
	case indexNetwork:
		start = func(v *view) uint64 { return v.payload(tags) }
	case indexTransport4:
		start = func(v *view) uint64 { return v.transport(tags) }
	case indexTransport6:
		start = func(v *view) uint64 { return v.payload(tags) + 40 }
	default:
		p.fail(keyword.at, "%s has no fields", keyword.text)
	}
	n := func(v *view) uint32 { return v.load(start(v)+uint64(offset(v)), size) }
	return operand{start: keyword, number: n, guard: bothGuards(o, operand{guard: guard})}
}

// bothGuards joins the guards of two operands.
func bothGuards(a, b operand) test {
	switch {
	case a.guard == nil:
		return b.guard
	case b.guard == nil:
		return a.guard
	}
	return and(a.guard, b.guard)
}

// calculate returns the result of an operator, modulo 2^32.
func calculate(operator string, a, b number) number {
	switch operator {
	case "+":
		return func(v *view) uint32 { return a(v) + b(v) }
	case "-":
		return func(v *view) uint32 { return a(v) - b(v) }
	case "*":
		return func(v *view) uint32 { return a(v) * b(v) }
	case "&":
		return func(v *view) uint32 { return a(v) & b(v) }
	case "|":
		return func(v *view) uint32 { return a(v) | b(v) }
	case "^":
		return func(v *view) uint32 { return a(v) ^ b(v) }
	case "<<":
		return func(v *view) uint32 { return a(v) << b(v) }
	case ">>":
		return func(v *view) uint32 { return a(v) >> b(v) }
	}
	return func(v *view) uint32 {
		x, y := a(v), b(v)
		switch {
		case y == 0:
			v.beyond = true // libpcap excludes the packet
			return 0
		case operator == "/":
			return x / y
		}
		return x % y
	}
}

func compare(operator string, a, b number) test {
	switch operator {
	case "<":
		return func(v *view) bool { return a(v) < b(v) }
	case "<=":
		return func(v *view) bool { return a(v) <= b(v) }
	case ">":
		return func(v *view) bool { return a(v) > b(v) }
	case ">=":
		return func(v *view) bool { return a(v) >= b(v) }
	case "!=":
		return func(v *view) bool { return a(v) != b(v) }
	}
	return func(v *view) bool { return a(v) == b(v) }
}
