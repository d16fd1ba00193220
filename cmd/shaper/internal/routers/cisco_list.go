package routers

import (
	"errors"
	"fmt"
	"slices"
	"sort"
	"strconv"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/routers/form"
)

// ciscoList is an access list.
type ciscoList struct {
	v6       bool
	standard bool
	frames   bool
	numbers  map[int]int64 // of the entries, by line
	last     int64         // the largest
	lines    []Line        // beginning with permit or deny
}

// beginsList reads the first line of an access list, or a line of a numbered list.
func (r *ciscoReader) beginsList(l Line) bool {
	a := &args{l.Words}
	ip := a.take("ip", "ipv4", "ipv6", "mac")
	if a.take("access-list") == "" {
		return false
	}
	kind := ""
	for _, long := range []string{"standard", "extended"} {
		if isShort(a.peek(), long, 3) && len(a.words) > 1 {
			kind = long
			a.next()
			break
		}
	}
	name := a.next()
	if slices.Contains([]string{"resequence", "persistent", "logging", "log-update"}, name) {
		r.in.Skip(l)
		return true
	}
	number, err := strconv.Atoi(name)
	key := listKey(ip == "ipv6", name)
	list := r.lists[key]
	if list == nil {
		list = &ciscoList{
			v6:       ip == "ipv6",
			frames:   ip == "mac",
			numbers:  map[int]int64{},
			standard: kind == "standard" || err == nil && (number < 100 || 1300 <= number && number < 2000),
		}
		r.lists[key] = list
	}
	if ip == "" { // access-list 101 permit ...
		if name == "" || !list.add(l.with(a.words), true) {
			r.in.Skip(l)
		}
		return true
	}
	if err := a.unread(); err != nil {
		r.in.Cannot(l, "%v", err)
	}
	r.enter(l)
	r.list = list
	return true
}

var errNoList = errors.New("there is no such access list")

// listKey is the key of an access list. Lists for IPv4 and for IPv6 have names of their own.
func listKey(v6 bool, name string) string { return fmt.Sprint(v6, name) }

// listMatch returns the conditions of the packets that access lists of a name permit: of a family, or of
// both.
func (c *ciscoConfig) listMatch(name, family string) (out []Condition, err error) {
	for _, v6 := range []bool{false, true} {
		list := c.lists[listKey(v6, name)]
		if list == nil || v6 && (family == "ip" || family == "ipv4") || !v6 && family == "ipv6" {
			continue
		}
		when, err := list.match()
		if err != nil {
			return nil, err
		}
		out = append(out, when...)
	}
	if out == nil {
		return nil, errNoList
	}
	return out, nil
}

// add adds a line. It returns false if the line is not one of an access list.
func (c *ciscoList) add(l Line, inside bool) bool {
	a := &args{l.Words}
	n, numbered := a.number()
	if a.take("sequence") != "" {
		n, numbered = a.number()
	}
	if !numbered {
		n = c.last + 10
	}
	switch a.peek() {
	case "remark", "statistics", "counter", "exit": // statistics and counter are of NX-OS and EOS
		return true
	case "permit", "deny":
	default:
		if !inside || a.done() {
			return false
		}
	}
	c.lines = append(c.lines, l.with(a.words))
	c.last = max(c.last, n)
	c.numbers[l.Number] = n
	return true
}

// match returns the conditions of the permitted packets.
func (c *ciscoList) match() ([]Condition, error) {
	number := func(i int) int64 { return c.numbers[c.lines[i].Number] }
	sort.SliceStable(c.lines, func(i, j int) bool { return number(i) < number(j) })
	for i := 1; i < len(c.lines); i++ {
		if number(i) == number(i-1) {
			return nil, fmt.Errorf("line %d: %s: it has the number of the entry in line %d", c.lines[i].Number,
				c.lines[i].Text(), c.lines[i-1].Number)
		}
	}
	read := ciscoEntries4
	switch {
	case c.frames:
		return nil, errors.New("a list of frames cannot be expressed")
	case c.standard:
		read = ciscoStandard
	case c.v6:
		read = ciscoEntries6
	}
	return permitted(c.lines, "entries", func(l Line) (*listEntry, error) {
		e := &listEntry{v6: c.v6}
		return e, read.Read(e, l)
	})
}

// listEntry is an entry of an access list.
type listEntry struct {
	v6     bool
	permit bool
	Condition
}

// permitted returns the conditions of the packets permitted by an access list. It must only permit,
// but its last line may deny all. what names the lines.
func permitted(lines []Line, what string, read func(Line) (*listEntry, error)) (out []Condition, err error) {
	for i, l := range lines {
		e, err := read(l)
		if err == nil && !e.permit && (i < len(lines)-1 || !isFamily(&e.Match)) {
			err = errors.New("a policy has no negation")
		}
		if err != nil {
			return nil, fmt.Errorf("line %d: %s: %w", l.Number, l.Text(), err)
		}
		if e.permit {
			out = append(out, e.Condition)
		}
		if len(out) > maxAlternatives {
			return nil, fmt.Errorf("it has more than %d %s", maxAlternatives, what)
		}
	}
	if out == nil {
		return nil, errors.New("the access list permits nothing")
	}
	return out, nil
}

// take keeps the values of an entry. Without an address its list selects the IP version.
func (e *listEntry) take(l Line, v form.Values) error {
	e.permit = v.Get("action") == "permit"
	m := matchOf(v)
	if len(m.SPort)+len(m.DPort) > 0 && !hasPorts(&m) {
		return errPorts
	}
	if len(m.Src)+len(m.Dst) == 0 {
		m.EtherType = familyOf(e.v6).EtherType
	}
	e.Condition = ConditionOf(l, m)
	return nil
}

// Entries of access lists.
var (
	ciscoEntries = []Statement[*listEntry]{{
		Form: "(permit:action | deny:action) (ip | ipv4 | ipv6 | <proto>) <address:src> [<ports:sport>]" +
			" <address:dst> [<ports:dport>] {(dscp <dscp> | precedence <precedence:dscp>) | log | log-input}",
		Do: (*listEntry).take,
	}}
	ciscoEntries4 = &Reader[*listEntry]{Kinds: &conditionKinds, Statements: ciscoEntries}
	ciscoEntries6 = &Reader[*listEntry]{Kinds: &conditionKinds6, Statements: ciscoEntries}
	ciscoStandard = &Reader[*listEntry]{Kinds: &conditionKinds, Statements: []Statement[*listEntry]{
		{Form: "(permit:action | deny:action) <standard:src> [log]", Do: (*listEntry).take},
	}}
)
