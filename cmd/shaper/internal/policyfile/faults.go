package policyfile

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

const (
	// maxRowErrors is the maximum number of errors printed for a file of customers.
	maxRowErrors = 20

	maxCauses  = 200 // kinds of errors told apart in a file of customers
	maxReasons = 64  // errors told apart in a kind; others are counted
	mostLines  = 3   // line numbers printed for an error
	mostNames  = 600 // length of an error up to which it lists other values, bytes
)

// faults are the errors of a file of customers. Errors with the same reason are one, with the numbers of
// their lines. Errors that differ only in their values have the same cause; if there are too many, they are
// one error, too.
type faults struct {
	causes []*cause
	byKind map[string]*cause
	more   int // errors beyond maxCauses
}

// cause holds the errors of one kind.
type cause struct {
	fault                    // of all lines; its reason is the first one
	faults []*fault          // in the order of their first lines; at most maxReasons
	byText map[string]*fault // faults by reason
	more   bool              // there are others
}

// fault is an error in one or more lines.
type fault struct {
	reason string
	first  [mostLines]int32 // numbers of the first lines
	last   int32
	lines  int
}

func (f *fault) add(line int) {
	if at := int32(line); f.lines == 0 || at != f.last { // a file contains fewer lines than 2^31
		if f.last = at; f.lines < mostLines {
			f.first[f.lines] = at
		}
		f.lines++
	}
}

// none reports whether there are no errors.
func (f *faults) none() bool { return len(f.causes) == 0 }

// add adds an error. Those of one reason must be added in the order of their lines.
func (f *faults) add(line int, reason string) {
	kind := kindOf(reason)
	c := f.byKind[kind]
	switch {
	case c == nil && len(f.causes) == maxCauses:
		f.more++
		return
	case c == nil:
		if f.byKind == nil {
			f.byKind = map[string]*cause{}
		}
		c = &cause{fault: fault{reason: reason}, byText: map[string]*fault{}}
		f.causes, f.byKind[kind] = append(f.causes, c), c
	}
	c.add(line)
	one := c.byText[reason]
	switch {
	case one == nil && len(c.faults) == maxReasons:
		c.more = true
		return
	case one == nil:
		one = &fault{reason: reason}
		c.faults, c.byText[reason] = append(c.faults, one), one
	}
	one.add(line)
}

// errors returns at most maxRowErrors errors in the order of their first lines, and one that counts the
// others. place returns the place of a line, or that of the file for 0.
func (f *faults) errors(place func(line int) string) (out []error) {
	printed := 0
	for _, c := range f.causes {
		printed += len(c.faults)
	}
	// merge the faults of those causes that have the most
	merged := map[*cause]bool{}
	most := slices.Clone(f.causes)
	slices.SortStableFunc(most, func(a, b *cause) int { return len(b.faults) - len(a.faults) })
	for _, c := range most {
		if c.more || printed > maxRowErrors && len(c.faults) > 1 {
			merged[c] = true
			printed -= len(c.faults) - 1
		}
	}
	var list []*Error
	add := func(one *fault, others string) {
		at := int(one.first[0])
		list = append(list, &Error{place(at), one.reason + one.where(others), position{line: at}})
	}
	for _, c := range f.causes {
		if merged[c] {
			add(&c.fault, c.others())
			continue
		}
		for _, one := range c.faults {
			add(one, "")
		}
	}
	slices.SortStableFunc(list, func(a, b *Error) int { return a.at.compare(b.at) })
	more := f.more
	for i, e := range list {
		if i < maxRowErrors {
			out = append(out, e)
		} else {
			more++
		}
	}
	switch {
	case more == 1:
		out = append(out, fmt.Errorf("%s: and 1 more error", place(0)))
	case more > 1:
		out = append(out, fmt.Errorf("%s: and %s more errors", place(0), grouped(more)))
	}
	return out
}

// where describes the lines of an error in more than one, and other values.
func (f *fault) where(others string) string {
	if f.lines < 2 {
		return ""
	}
	var first []string
	for _, line := range f.first[:min(f.lines, mostLines)] {
		first = append(first, strconv.Itoa(int(line)))
	}
	at := fmt.Sprintf("%s lines, first %s", grouped(f.lines), strings.Join(first, ", "))
	if f.lines <= mostLines {
		last := len(first) - 1
		at = fmt.Sprintf("lines %s and %s", strings.Join(first[:last], ", "), first[last])
	}
	return " (" + at + others + ")"
}

// others describes the errors of a cause besides the first one, by their first values.
func (c *cause) others() string {
	var b strings.Builder
	seen := map[string]bool{firstValue(c.reason): true}
	all := !c.more
	for _, one := range c.faults[1:] {
		value := firstValue(one.reason)
		if seen[value] {
			continue
		}
		if seen[value] = true; b.Len()+len(value) > mostNames {
			all = false
			break
		}
		if b.Len() > 0 {
			b.WriteString(", ")
		}
		b.WriteString(value)
	}
	switch {
	case b.Len() == 0:
		return ""
	case all:
		return "; also " + b.String()
	}
	return "; also " + b.String() + " and others"
}

// firstValue returns the first value in a reason, or "".
func firstValue(reason string) string {
	if list, _ := splitValues(reason); list != nil {
		return list[0]
	}
	return ""
}

// kindOf returns a reason without its values.
func kindOf(reason string) string {
	_, kind := splitValues(reason)
	return kind
}

// splitValues returns the values in a reason, and the reason without them: texts in quotes, and words that
// contain a digit or are addresses.
func splitValues(reason string) (list []string, kind string) {
	var b strings.Builder
	for reason != "" {
		end := 0
		switch {
		case reason[0] == '"':
			for end = 1; end < len(reason) && reason[end] != '"'; end++ {
				if reason[end] == '\\' {
					end++
				}
			}
			end = min(end+1, len(reason))
		case reason[0] == ' ':
			b.WriteByte(' ')
			reason = reason[1:]
			continue
		default:
			if end = strings.IndexAny(reason, " \""); end < 0 {
				end = len(reason)
			}
			word := reason[:end]
			if !strings.HasSuffix(word, "::") {
				word = strings.TrimRight(word, ",:()")
			}
			if !strings.ContainsAny(word, "0123456789") && !strings.Contains(word, "::") {
				b.WriteString(reason[:end])
				reason = reason[end:]
				continue
			}
			end = len(word)
		}
		list = append(list, reason[:end])
		b.WriteByte('#')
		reason = reason[end:]
	}
	return list, b.String()
}

// grouped writes a number with commas between groups of three digits.
func grouped(n int) string {
	s := strconv.Itoa(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
