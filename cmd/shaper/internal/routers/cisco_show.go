package routers

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/pattern"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

func init() { Importers["cisco-show"] = ciscoShow{} }

// ciscoShow is the output of show policy-map interface. It is translated to the statements of a
// configuration, and its counters are kept.
type ciscoShow struct{}

// Counter holds a router's counters of a class.
type Counter struct {
	Class  string
	Line   int
	Colors [3]*Shown // conformed, exceeded and violated; nil if not printed
}

// Shown is a number of packets and bytes. Some platforms print only one of them.
type Shown struct {
	Packets, Bytes *int64
}

// showReader is inside a class of a service policy.
type showReader struct {
	ciscoConfig
	device   string
	stack    []showLevel // of nested service policies
	class    *ciscoClass
	counter  *Counter
	counters map[*ciscoPolicy][]*Counter
	named    map[string]string // names of service policies, by the names of drafts
	section  string            // police, set, or ""
	color    string            // whose actions follow
	other    bool              // a service policy of another type, such as a firewall's
	queued   bool              // the class gets a rate or a share, so its queue limit counts
	limit    Line              // the queue limit, if it was printed before the rate
	priority map[int]Line      // those of the queues of priority levels; 0: of all
	level    int               // of such a queue
	police   int               // index of the police statement in the lines of the class; -1: none
}

// showLevel is a service policy. It ends with the first class indented less.
type showLevel struct {
	indent int
	policy *ciscoPolicy
}

// Import reads the service policies of interfaces. A draft is named after the interface and the
// direction.
func (ciscoShow) Import(src Source) (*Import, error) {
	lines, err := ReadLines(src.Text, ciscoPrompt)
	if err != nil {
		return nil, err
	}
	r := &showReader{
		ciscoConfig: newCiscoConfig(src),
		counters:    map[*ciscoPolicy][]*Counter{},
		named:       map[string]string{},
	}
	for i, l := range lines {
		if i+1 < len(lines) && isDevice(l, lines[i+1]) {
			r.addShown()
			r.device, r.stack, r.class = l.Text(), nil, nil
		} else {
			r.read(l)
		}
	}
	r.addShown()
	r.findChildren()
	for _, p := range r.policies {
		r.importPolicy(p)
		d := r.in.Draft(p.name, p.line.Number)
		for _, c := range r.counters[p] {
			d.Counters = append(d.Counters, *c)
		}
	}
	return r.in, nil
}

// isDevice reports whether a line is the name of an interface or circuit: a policy of a direction follows,
// with more indentation.
func isDevice(l, next Line) bool {
	m := showPolicy().FindStringSubmatch(next.Text())
	return m != nil && m[1] != "" && l.Indent < next.Indent && !l.Has("show") && !l.Has("class-map:") &&
		showPolicy().FindStringSubmatch(l.Text()) == nil
}

var (
	showPolicy  = pattern.Lazy(`(?i)^service-policy(?: (?:qos|queue?ing))?(?: (input|output))? ?: *(\S.*)$`)
	showClass   = pattern.Lazy(`(?i)^class-map: (\S+)(?: \((match-any|match-all)\))?(?: \([\d/]+\))?$`)
	showCounter = pattern.Lazy(
		`(?i)^(conformed|exceeded|violated) (?:(\d+) packets?,? ?)?(?:(\d+) bytes?)?; actions?:(.*)$`)
	showPercent = pattern.Lazy(`^(bandwidth(?: remaining)?) (\d+) ?%$`)
	// showPriority is a strict priority queue without a rate. Its drops are a counter.
	showPriority = pattern.Lazy(
		`(?i)^priority: strict(?:, burst bytes \d+)?(?:, b/w exceed drops: \d+)?$`)
	// policePercent is a rate in percent, which the line with its value follows.
	policePercent = pattern.Lazy(`^(?:cir|pir|rate) \d+ ?%(?:,? b[ce] \d+ ?(?:ms|us))?$`)
	// showOther begins a service policy of a type without meters and queues.
	showOther  = pattern.Lazy(`(?i)^service-policy (?:` + strings.Join(otherTypes, "|") + `)\b`)
	showDevice = pattern.Lazy(`^(?:[A-Z][A-Za-z-]+ ?\d[\d/.:]*|Control Plane)$`)
	// inBrackets are values beside names and percentages: dscp ef (46), bandwidth 30% (3000 kbps).
	inBrackets = pattern.Lazy(`(?i) *\(\d+(?: [kmg]?bps)?\)`)
	// showCount is a line of a class with counters that no draft keeps, or a heading without parameters.
	showCount = pattern.Lazy(`(?i)^(?:` + strings.Join([]string{
		`\d+ packets?(?:, \d+ bytes?)?`,
		`\d+ (?:minute|second) (?:offered )?rate ` + countedRate + `(?:, drop rate ` + countedRate + `)?`,
		`conformed ` + countedRate + `,? exceed(?:ed)? ` + countedRate + `(?:,? violated? ` + countedRate + `)?`,
		`\(` + queueCount + `(?:/` + queueCount + `)*\) \d+(?:/\d+)*`,
		`packets marked \d+`,
		`marker statistics: (?:disabled|enabled)`,
		`target shape rate \d+`,
		`mean queue depth: \d+(?: (?:packets|bytes|[mu]s/ \d+ bytes))?`,
		`output queue: conversation \d+`,
		`queueing`,
	}, "|") + `)$`)
)

const (
	countedRate = `\d+ [kmg]?[bp]ps`
	queueCount  = `(?:queue depth|depth|(?:total|no-buffer|tail) drops|flowdrops|(?:pkts|bytes) (?:output|queued|matched))`
)

func (r *showReader) read(l Line) {
	text := l.Text()
	if m := showPolicy().FindStringSubmatch(text); m != nil {
		r.other = false
		r.begin(l, m[1], m[2])
		return
	}
	if m := showClass().FindStringSubmatch(text); m != nil && !r.other {
		r.beginClass(l, m[1], strings.EqualFold(m[2], "match-any"))
		return
	}
	switch {
	case showOther().MatchString(text):
		r.other, r.class = true, nil
		r.in.Skip(l)
	case r.other && ciscoLimit().MatchString(text):
		r.in.Outside(l, outsideReason)
	case r.other:
		r.in.Skip(l)
	case l.Has("class-map:"), l.Has("service-policy") && strings.Contains(text, ":"):
		r.class = nil // the lines that follow belong to no class
		r.in.Cannot(l, "it is not understood")
	case showDevice().MatchString(text):
		r.addShown()
		r.device, r.stack, r.class = text, nil, nil
	case r.class == nil && len(r.stack) > 0 && l.Has("queue", "stats"):
		r.level = 0
	case r.class == nil && len(r.stack) > 0 && l.Has("priority", "level") && len(l.Words) == 3:
		r.level, _ = strconv.Atoi(l.Words[2])
	case r.class == nil && len(r.stack) > 0 && l.Has("queue", "limit"):
		r.priority[r.level] = limitLine(l)
	case r.class != nil:
		r.statement(l, text)
	default:
		r.in.Skip(l)
	}
}

// leave ends the service policies indented more than a line.
func (r *showReader) leave(l Line) {
	for len(r.stack) > 0 && l.Indent < r.stack[len(r.stack)-1].indent {
		r.stack = r.stack[:len(r.stack)-1]
	}
}

// begin begins a service policy: of an interface, or without a direction inside a class.
func (r *showReader) begin(l Line, direction, name string) {
	p := &ciscoPolicy{name: strings.TrimSpace(r.device + " " + strings.ToLower(direction)), line: l}
	if direction == "" && len(r.stack) > 0 && r.class != nil {
		r.leave(l)
	}
	if direction == "" && len(r.stack) > 0 && r.class != nil {
		p.name = r.stack[len(r.stack)-1].policy.name + " " + name
		r.class.lines = append(r.class.lines,
			Line{Number: l.Number, Words: []string{"service-policy", p.name}})
	} else {
		if other, ok := r.named[p.name]; ok && other != name {
			p.name += " " + name // another policy of the same interface
		}
		r.named[p.name] = name
		r.stack = nil
	}
	r.class, r.priority = nil, map[int]Line{}
	delete(r.counters, r.byName[p.name]) // of an earlier output for the same interface
	r.addPolicy(p)
	r.stack = append(r.stack, showLevel{l.Indent, p})
}

// beginClass begins a class. An output for one class shows no service policy.
func (r *showReader) beginClass(l Line, name string, any bool) {
	if r.leave(l); len(r.stack) == 0 {
		r.begin(l, "", "")
	}
	r.addShown()
	p := r.stack[len(r.stack)-1].policy
	r.class = &ciscoClass{name: name, line: l}
	p.add(r.class)
	r.counter = nil
	r.section, r.queued, r.limit, r.police = "", false, Line{}, -1
	if name != classDefault {
		r.class.match = &ciscoClassMap{operator: map[bool]string{false: "match-all", true: "match-any"}[any]}
	}
}

// add adds a statement to the class.
func (r *showReader) add(l Line, words ...string) {
	r.class.lines = append(r.class.lines, Line{Number: l.Number, Words: words})
}

// statement translates a line of a class.
func (r *showReader) statement(l Line, text string) {
	text = strings.TrimSuffix(text, ",")
	lower := strings.ToLower(text)
	if m := showCounter().FindStringSubmatch(text); m != nil {
		r.count(l, m)
		return
	}
	switch words := strings.Fields(strings.ToLower(inBrackets().ReplaceAllString(text, ""))); {
	case showCount().MatchString(text):
		if l.Has("conformed") {
			r.section = "" // the current rates are the last line of a policer
		}
	case strings.HasPrefix(lower, "match:"):
		if m := r.class.match; m != nil {
			m.lines = append(m.lines, Line{Number: l.Number, Words: append([]string{"match"},
				strings.Fields(inBrackets().ReplaceAllString(text, ""))[1:]...)})
		}
	case strings.HasPrefix(lower, "police:"):
		r.section, r.color, r.police = "police", "", len(r.class.lines)
		r.add(l, "police")
		r.policeLine(l, lower, words[1:])
	case lower == "qos set":
		r.section = "set"
	case lower == "drop" && r.section != "police":
		r.add(l, "drop")
	case strings.HasPrefix(lower, "shape ("), strings.HasPrefix(lower, "priority"),
		strings.HasPrefix(lower, "bandwidth"), strings.HasPrefix(lower, "queue limit"):
		r.section = ""
		r.queue(l, text, words)
	case r.section == "police":
		r.policeLine(l, lower, words)
	case r.section == "set" && len(words) > 1:
		r.add(l, append([]string{"set"}, words...)...)
	case strings.HasPrefix(lower, "exp-weight-constant"), l.Has("afd", "wred", "stats", "begin"):
		r.section = "wred" // a table of thresholds and counters follows
		r.add(l, "random-detect")
	case r.section != "wred":
		r.add(l, append([]string{strings.TrimSuffix(l.Words[0], ":")}, l.Words[1:]...)...)
	}
}

// count keeps a counter, whose actions follow. Old systems print a single one in the same line.
func (r *showReader) count(l Line, m []string) {
	r.color = map[string]string{
		"conformed": "conform", "exceeded": "exceed", "violated": "violate",
	}[strings.ToLower(m[1])]
	if r.counter == nil {
		r.counter = &Counter{Class: r.class.name, Line: l.Number}
		p := r.stack[len(r.stack)-1].policy
		r.counters[p] = append(r.counters[p], r.counter)
	}
	shown := &Shown{}
	for i, to := range []**int64{&shown.Packets, &shown.Bytes} {
		if n, err := strconv.ParseInt(m[2+i], 10, 64); err == nil {
			*to = &n
		}
	}
	r.counter.Colors[policeColors[r.color]] = shown
	if action := strings.Fields(strings.ToLower(m[4])); len(action) > 0 {
		r.add(l, append([]string{r.color + "-action"}, action...)...)
	}
}

// policeLine reads parameters and actions of a policer.
func (r *showReader) policeLine(l Line, lower string, words []string) {
	police := &r.class.lines[r.police]
	switch {
	case len(words) == 0, policePercent().MatchString(lower):
	case r.color == "":
		for _, w := range words {
			if w = strings.Trim(w, ","); w != "" {
				police.Words = append(police.Words, w)
			}
		}
	default:
		if len(words) > 1 && strings.HasPrefix(words[0], "set-") &&
			(words[1] == "dscp" || words[1] == "cos") {
			words = append(words[:1], words[2:]...)
		}
		r.add(l, append([]string{r.color + "-action"}, words...)...)
	}
}

// queue reads the parameters of a queue. A queue limit alone belongs to the interface.
func (r *showReader) queue(l Line, text string, words []string) {
	switch {
	case words[0] == "queue":
		r.limit = limitLine(l)
		r.addLimit()
		return
	case words[0] == "shape" && len(words) > 1:
		words[1] = strings.Trim(words[1], "()")
		if len(words) > 2 && words[2] == "cir" {
			words = slices.Delete(words, 2, 3)
		}
	case showPriority().MatchString(text):
		words = []string{"priority"}
	case strings.HasPrefix(words[0], "priority"):
		words[0] = strings.TrimSuffix(words[0], ":")
		if len(words) > 1 {
			words[1] = strings.TrimSuffix(words[1], ":")
		}
	default:
		if m := showPercent().FindStringSubmatch(strings.Join(words, " ")); m != nil {
			words = append(strings.Fields(m[1]), "percent", m[2])
		}
	}
	for i := range words {
		words[i] = strings.TrimSuffix(words[i], ",")
	}
	if words[0] == "priority" { // it is printed twice, then with its level
		r.class.lines = slices.DeleteFunc(r.class.lines, func(l Line) bool { return l.is("priority") })
	}
	r.add(l, words...)
	r.queued = true
	r.addLimit()
}

// limitLine returns the statement for a printed limit, such as queue limit 10 ms/ 1250 bytes.
func limitLine(l Line) Line {
	words := strings.Fields(strings.ToLower(strings.ReplaceAll(l.Text(), ",", "")))
	if i := slices.IndexFunc(words, func(w string) bool { return strings.HasSuffix(w, "/") }); i > 0 {
		words = append(words[:i:i], strings.TrimSuffix(words[i], "/"))
	}
	return Line{Number: l.Number, Words: append([]string{shownWord, "queue-limit"}, words[2:]...)}
}

// addShown adds the queue limit of a class without a rate or share, which counts if the class has a queue, or
// that of its priority level.
func (r *showReader) addShown() {
	if r.class == nil || slices.ContainsFunc(r.class.lines, func(l Line) bool { return l.Has(shownWord) }) {
		return
	}
	for _, l := range r.class.lines {
		if level, _ := strconv.Atoi(cmp.Or(l.Word(2), "1")); l.Has("priority") && r.limit.Words == nil {
			r.limit = r.priority[level]
			if r.limit.Words == nil {
				r.limit = r.priority[0]
			}
		}
	}
	if r.limit.Words != nil {
		r.class.lines = append(r.class.lines, r.limit)
	}
}

// addLimit adds the queue limit, which is printed before or after the rate of the queue.
func (r *showReader) addLimit() {
	if r.queued && r.limit.Words != nil {
		r.class.lines = append(r.class.lines, r.limit)
		r.limit = Line{}
	}
}

// ColorOf returns the color of a counter, for a meter with one bucket or two.
func ColorOf(counter, buckets int) meter.Color {
	if counter == 1 && buckets == 1 {
		return meter.Red
	}
	return meter.Color(counter)
}
