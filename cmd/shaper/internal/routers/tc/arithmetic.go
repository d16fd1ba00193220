package tc

import (
	"math/bits"
	"strconv"
	"strings"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/pattern"
)

// substitution returns the value of $((...)), $(expr ...) or `expr ...` at the beginning of a text, and its
// length. Without a known value it stays as it is, without blanks, so it is one word.
func (s *tcScript) substitution(text string) (value string, length int) {
	var inside string
	switch {
	case strings.HasPrefix(text, "$(("):
		end := strings.Index(text, "))")
		if end < 0 {
			return text[:1], 1
		}
		inside, length = text[3:end], end+2
	case strings.HasPrefix(text, "$("), strings.HasPrefix(text, "`"):
		begin, sign := 1, "`"
		if text[0] == '$' {
			begin, sign = 2, ")"
		}
		end := strings.Index(text[begin:], sign)
		if end < 0 {
			return text[:1], 1
		}
		length = begin + end + 1
		command := text[begin : begin+end]
		var isExpr bool
		if inside, isExpr = strings.CutPrefix(strings.TrimSpace(command), "expr "); !isExpr {
			return strings.ReplaceAll(text[:length], " ", ""), length
		}
		inside = strings.NewReplacer(`\`, "", `"`, "", "'", "").Replace(inside)
	default:
		return text[:1], 1
	}
	for _, m := range increment().FindAllStringSubmatch(inside, -1) {
		s.forget(m[1])
	}
	e := &expression{
		tokens: token().FindAllString(s.expandNames(inside), -1), octal: strings.HasPrefix(text, "$(("),
	}
	n, ok := e.sum()
	if !ok || len(e.tokens) > 0 {
		return strings.ReplaceAll(text[:length], " ", ""), length
	}
	return strconv.FormatInt(n, 10), length
}

// increment matches an assignment in an expression.
var increment = pattern.Lazy(`([A-Za-z_]\w*)\s*(?:\+\+|--|[-+*/%]=|=[^=])`)

// token matches a part of an expression.
var token = pattern.Lazy(`\d+|[^\s\d]`)

// name matches a variable in $((...)): RATE or $RATE.
var name = pattern.Lazy(`\$?\{?[A-Za-z_]\w*\}?`)

// expandNames replaces variables by their values.
func (s *tcScript) expandNames(text string) string {
	return name().ReplaceAllStringFunc(text, func(w string) string {
		if v, ok := s.vars[strings.Trim(w, "${}")]; ok && len(v) < 20 {
			if w[0] == '$' { // the shell replaces it before
				return v
			}
			return "(" + v + ")"
		}
		return w
	})
}

// expression is the rest of an expression with whole numbers.
type expression struct {
	tokens []string
	depth  int  // of parentheses
	octal  bool // numbers with a leading 0 are octal, as in $((...))
}

// take removes the next token if it is one of these.
func (e *expression) take(tokens string) string {
	if len(e.tokens) == 0 || !strings.Contains(tokens, e.tokens[0]) {
		return ""
	}
	t := e.tokens[0]
	e.tokens = e.tokens[1:]
	return t
}

// sum returns the value of terms added and subtracted, or false if it is not known.
func (e *expression) sum() (n int64, ok bool) {
	n, ok = e.product()
	for ok {
		sign := e.take("+-")
		if sign == "" {
			return n, true
		}
		m, known := e.product()
		if sign == "-" {
			m = -m
		}
		n, ok = n+m, known && abs(n) < 1<<62 && abs(m) < 1<<62
	}
	return 0, false
}

func (e *expression) product() (n int64, ok bool) {
	n, ok = e.factor()
	for ok {
		sign := e.take("*/%")
		if sign == "" {
			return n, true
		}
		m, known := e.factor()
		high, _ := bits.Mul64(uint64(abs(n)), uint64(abs(m)))
		switch ok = known; {
		case !known || sign != "*" && m == 0:
			return 0, false
		case sign == "*":
			n, ok = n*m, high == 0 && abs(n*m) < 1<<62
		case sign == "/":
			n /= m
		default:
			n %= m
		}
	}
	return 0, false
}

const maxDepth = 100

func (e *expression) factor() (n int64, ok bool) {
	if e.depth > maxDepth {
		return 0, false
	}
	if e.take("(") != "" {
		e.depth++
		n, ok = e.sum()
		e.depth--
		return n, ok && e.take(")") != ""
	}
	if len(e.tokens) == 0 {
		return 0, false
	}
	base := 10
	if e.octal {
		base = 0
	}
	n, err := strconv.ParseInt(e.tokens[0], base, 63)
	e.tokens = e.tokens[1:]
	return n, err == nil
}

func abs(n int64) int64 { return max(n, -n) }
