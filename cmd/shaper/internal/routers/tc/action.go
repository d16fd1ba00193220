package tc

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

// verdict is the control of an action: the fate of the packet after it.
type verdict string

const (
	tcOK       verdict = "ok"       // pass: to the class of the filter
	tcDrop     verdict = "drop"     //
	tcPipe     verdict = "pipe"     // to the next action
	tcContinue verdict = "continue" // to the next filter
)

// tcVerdicts are the controls by name. reclassify starts with the first filter again: the police
// action finds no more tokens, and after some rounds the kernel drops the packet
// (max_reclassify_loop in net/sched/cls_api.c).
var tcVerdicts = []struct {
	name string
	verdict
}{
	{"continue", tcContinue},
	{"drop", tcDrop},
	{"shot", tcDrop},
	{"pass", tcOK},
	{"ok", tcOK},
	{"reclassify", tcDrop},
	{"pipe", tcPipe},
}

// parseVerdict reads a control. tc accepts prefixes.
func parseVerdict(s string) (verdict, bool) {
	for _, v := range tcVerdicts {
		if s != "" && strings.HasPrefix(v.name, s) {
			return v.verdict, true
		}
	}
	return "", false
}

// control reads a control if the next word is one. Otherwise it returns the default.
func (a *tcArgs) control(otherwise verdict) verdict {
	w := a.peek()
	if v, ok := parseVerdict(w); ok {
		a.next()
		return v
	}
	if w == "goto" || w == "jump" || w == "trap" {
		a.fail("%s cannot be expressed", w)
	}
	return otherwise
}

// tcAction is an action of a filter.
type tcAction struct {
	police   *tcPolice
	mark     *dataplane.Mark
	redirect string // interface for the redirected packets
	then     verdict
}

// tcPolice is a police action.
type tcPolice struct {
	index           uint32
	rate            *tcRate
	burst           int64
	burstText       string
	packets, pburst int64 // pkts_rate and pkts_burst
	mtu             int64
	length          tcLength
	conform, exceed verdict
	lost            []string // options that a policy cannot express
}

// checksums are the words of action csum, which tc shows in parentheses.
var checksums = []string{
	"ip4h", "iph", "ipv4h", "icmp", "igmp", "tcp", "udp", "udplite", "sctp", "and", "or", "+", "empty",
	"?empty",
}

// readActions reads actions.
func (f *tcFilter) readActions(a *tcArgs, t *tcImport) {
	for a.more() {
		w := a.peek()
		if w == "flowid" || w == "classid" {
			return
		}
		if w == "action" {
			a.next()
			continue
		}
		if _, ok := parseVerdict(w); ok {
			f.actions = append(f.actions, tcAction{then: a.control("")})
			continue
		}
		switch a.next(); w {
		case "gact":
			f.actions = append(f.actions, tcAction{then: a.control(tcOK)})
		case "police":
			f.actions = append(f.actions, a.police(t))
		case "skbedit":
			f.skbedit(a)
		case "pedit":
			f.pedit(a)
		case "csum":
			for slices.Contains(checksums, strings.Trim(a.peek(), "(),")) {
				a.next()
			}
			f.actions = append(f.actions, tcAction{then: a.control(tcOK)})
		case "mirred":
			f.mirred(a)
		case "index", "cookie", "hw_stats":
			a.next()
		case "no_percpu", "skip_hw":
		default:
			a.fail("action %s cannot be expressed", w)
		}
	}
}

// police reads a police action, up to the first word other than its options.
func (a *tcArgs) police(t *tcImport) tcAction {
	p := &tcPolice{conform: tcOK, exceed: tcDrop}
	for a.more() {
		w := a.peek()
		if v, ok := parseVerdict(w); ok && w != "p" {
			a.next()
			p.exceed = v
			continue
		}
		name := complete(w,
			[]string{"index", "burst", "peakrate", "overhead", "linklayer", "pkts_rate", "pkts_burst"})
		if slices.Contains(
			[]string{"rate", "mtu", "mpu", "avrate", "conform-exceed", "buffer", "maxburst", "minburst"}, w) {
			name = w
		}
		if name == "" {
			break
		}
		a.next()
		switch name {
		case "index":
			p.index = a.number(32)
		case "rate":
			p.rate = a.rate(t.link)
		case "burst", "buffer", "maxburst":
			p.burstText = a.peek()
			p.burst = a.size()
		case "mtu", "minburst":
			p.mtu = a.size()
		case "mpu":
			p.length.mpu = int(a.size())
		case "overhead":
			p.length.overhead = int(a.number(16))
		case "linklayer":
			if l := a.next(); l != "ethernet" {
				p.lost = append(p.lost, "linklayer "+l+": it rounds packets to cells of 53 bytes")
			}
		case "peakrate":
			p.lost = append(p.lost,
				"peakrate "+a.next()+
					": a packet must conform to two buckets, and takes from none if it does not; no meter does that")
		case "avrate":
			p.lost = append(p.lost, "avrate "+a.next()+": it limits a rate estimator")
		case "pkts_rate":
			p.packets = int64(a.number(32))
		case "pkts_burst":
			p.pburst = int64(a.number(32))
		case "conform-exceed":
			a.conformExceed(p)
		}
	}
	if p.rate != nil && p.packets > 0 {
		a.fail("rate and pkts_rate in one police action: tc rejects that")
	}
	return tcAction{police: p, then: tcOK}
}

// conformExceed reads EXCEED/CONFORM, with or without blanks.
func (a *tcArgs) conformExceed(p *tcPolice) {
	words := strings.Split(a.next(), "/")
	if a.peek() == "/" {
		a.next()
		words = append(words, a.next())
	}
	var ok bool
	p.exceed, ok = parseVerdict(words[0])
	if ok && len(words) == 2 {
		p.conform, ok = parseVerdict(words[1])
	}
	if !ok || len(words) > 2 {
		a.fail("conform-exceed %s is not understood", strings.Join(words, "/"))
	}
}

// skbedit reads a skbedit action.
func (f *tcFilter) skbedit(a *tcArgs) {
	action := tcAction{}
	for a.more() && action.then == "" {
		switch w := a.peek(); w {
		case "mark":
			a.next()
			action.mark = &dataplane.Mark{Field: dataplane.SKBMark, Value: a.number(32)}
		case "priority", "queue_mapping", "ptype", "inheritdsfield":
			a.fail("skbedit %s cannot be expressed", w)
		default:
			if action.then = a.control(""); action.then == "" {
				f.actions = append(f.actions, tcAction{mark: action.mark, then: tcPipe})
				return
			}
		}
	}
	if action.then == "" {
		action.then = tcPipe
	}
	f.actions = append(f.actions, action)
}

// pedit reads a pedit action on the DSCP: munge ip dsfield set VALUE retain 0xfc.
func (f *tcFilter) pedit(a *tcArgs) {
	if a.peek() == "ex" {
		a.next()
	}
	words := []string{a.next(), a.next(), a.next(), a.next(), a.next(), a.next(), a.next()}
	if a.err != nil {
		return
	}
	field := strings.Join(words[:4], " ")
	fields := []string{"munge ip dsfield set", "munge ip tos set", "munge ip6 traffic_class set"}
	v, err := strconv.ParseUint(words[4], 0, 8)
	mask, err2 := strconv.ParseUint(words[6], 0, 8)
	if err != nil || err2 != nil || !slices.Contains(fields, field) || words[5] != "retain" || mask != 0xfc ||
		v&3 != 0 {
		a.fail("pedit %s cannot be expressed: only munge ip dsfield set VALUE retain 0xfc can",
			strings.Join(words, " "))
		return
	}
	mark := &dataplane.Mark{Field: dataplane.DSCP, Value: uint32(v) >> 2}
	f.actions = append(f.actions, tcAction{mark: mark, then: a.control(tcOK)})
}

// mirred reads a mirred action.
func (f *tcFilter) mirred(a *tcArgs) {
	direction, verb := a.next(), a.next()
	if a.peek() == "dev" {
		a.next()
	}
	device := a.next()
	if verb != "redirect" {
		a.fail("mirred %s %s cannot be expressed", direction, verb)
		return
	}
	a.control("")
	f.actions = append(f.actions, tcAction{redirect: device})
}

// tcOutcome is the result of the actions of a filter for a color.
type tcOutcome struct {
	verdict verdict // tcOK, tcDrop or tcContinue
	marks   []dataplane.Mark
}

// outcome returns the outcome of actions without police actions.
func outcome(actions []tcAction, marks []dataplane.Mark) (o tcOutcome, err error) {
	o.marks = slices.Clone(marks)
	for _, a := range actions {
		switch {
		case a.police != nil:
			return o,
				fmt.Errorf("a third police action, or one that conforming and exceeding packets share, cannot be expressed")
		case a.redirect != "":
			return o, fmt.Errorf("redirection to %s cannot be expressed here", a.redirect)
		case a.mark != nil:
			o.marks = slices.DeleteFunc(o.marks,
				func(m dataplane.Mark) bool { return m.Field == a.mark.Field })
			o.marks = append(o.marks, *a.mark)
		}
		if a.then != tcPipe {
			o.verdict = a.then
			break
		}
	}
	if o.verdict == "" {
		o.verdict = tcOK
	}
	if o.verdict == tcDrop {
		o.marks = nil
	}
	return o, nil
}
