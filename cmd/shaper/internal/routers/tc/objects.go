package tc

import (
	"cmp"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/pattern"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/routers"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// tcQdisc is a qdisc, with the options of all kinds.
type tcQdisc struct {
	tcCommand
	parent, handle uint32
	kind           string
	length         tcLength // overhead of its own and of its size table
	rate           *tcRate

	bytes, packets int64         // limits
	burst          int64         // of tbf
	latency        time.Duration // limit of tbf
	codel          queue.CoDel
	ecn            bool
	fair           fairness
	defaultClass   uint32 // htb
	perQuantum     uint32 // htb: r2q, by which a rate is divided for the default quantum
	bands          uint32 // prio

	tins      string // cake: value of the option, such as besteffort
	wash, nat bool   // cake
	isolate   string // cake: triple-isolate, or "" for another mode

	limitFrom string   // the rule for a limit that is a default
	remarks   []string // differences from ours
	lost      []string // options that a policy cannot express
}

// tcClass is a class of htb.
type tcClass struct {
	tcCommand
	parent, id    uint32
	length        tcLength
	rate, ceil    *tcRate
	prio, quantum uint32 // quantum 0: the default
	burst         string // options for bursts, or ""
}

// tcFilter is a filter.
type tcFilter struct {
	tcCommand
	kind     string
	handle   string // of fw, or of a single filter
	parent   uint32
	pref     uint32
	protocol uint32
	match    dataplane.Match
	total    []dataplane.Range // total length of the IPv4 packet; match has the metered length
	class    uint32            // 0: none
	bound    bool              // to the class, which cannot be deleted
	idle     bool              // without effect
	actions  []tcAction
	notes    []string // differences that remain
}

// tcLength is the number of bytes added to the length of each packet, and the minimum.
type tcLength struct {
	stab          int // overhead of the size table
	overhead, mpu int
	network       bool // overhead is added to the IP packet, not to the frame (cake)
}

// tcDevice is an interface with its traffic control.
type tcDevice struct {
	name     string
	line     int
	changes  int      // of variables in the name, before the first command
	refused  []uint32 // classes that were not understood
	qdiscs   []*tcQdisc
	classes  []*tcClass
	filters  []*tcFilter
	problems []routers.Problem
	notes    []routers.Problem

	queueLength int64 // txqueuelen; 0: unknown

	byID  map[uint32]*tcClass   // classes, after index
	below map[uint32][]*tcClass // classes by parent, after index
}

func (d *tcDevice) cannot(l routers.Line, format string, args ...any) {
	d.problems = append(d.problems, l.Problem(format, args...))
}

func (d *tcDevice) note(l routers.Line, format string, args ...any) {
	d.notes = append(d.notes, l.Problem(format, args...))
}

// tcImport reads the commands of a script.
type tcImport struct {
	*routers.Import
	link    meter.Rate
	devices []*tcDevice
	indexed map[uint32]*tcPolice // police actions by index
	found   bool                 // a tc command was found
}

// device returns an interface, which it adds at its first command.
func (t *tcImport) device(name string, first tcCommand) *tcDevice {
	for _, d := range t.devices {
		if d.name == name {
			return d
		}
	}
	d := &tcDevice{name: name, line: first.Number, changes: first.changes}
	t.devices = append(t.devices, d)
	return d
}

// Objects and verbs of tc. It accepts prefixes of them.
var (
	tcObjects = []string{"qdisc", "class", "filter"}
	tcVerbs   = []string{"add", "replace", "change", "delete", "show", "list", "lst", "get", "link"}
)

// complete returns the first full word abbreviated by s, or "".
func complete(s string, full []string) string {
	if i := slices.IndexFunc(full,
		func(f string) bool { return s != "" && strings.HasPrefix(f, s) }); i >= 0 {
		return full[i]
	}
	return ""
}

// command reads a command. Commands other than those of tc are skipped.
func (t *tcImport) command(c tcCommand) {
	words := c.Words
	namespace, batch := "", ""
	isTC := path.Base(words[0]) == "tc" || strings.EqualFold(words[0], "$tc") || foundTC().MatchString(words[0])
	if isTC {
		words = words[1:]
		for len(words) > 0 && strings.HasPrefix(words[0], "-") {
			if o := words[0]; len(words) > 1 && (o == "-n" || o == "-netns" || isBatch(o)) {
				if words = words[1:]; strings.HasPrefix(o, "-n") {
					namespace = " of " + words[0]
				} else {
					batch = words[0]
				}
			}
			words = words[1:]
		}
	}
	if isTC && batch != "" && batch != "-" {
		t.Cannot(c.Line, "its commands are in another file: give that file")
		return
	}
	if len(words) < 2 {
		t.Skip(c.Line)
		return
	}
	if t.ipLink(c, words) {
		return
	}
	if limits := strings.Join(words, " "); !isTC && otherLimits().MatchString(limits) {
		t.Outside(c.Line, "it limits or classifies packets outside of tc, and is not imported")
		return
	}
	object, verb := complete(words[0], tcObjects), complete(words[1], tcVerbs)
	if object == "" || verb == "" || !isTC && (object != words[0] || len(words) < 3) {
		t.found = t.found || isTC
		if text := strings.Join(words, " "); isTC && !strings.Contains(text, "show") || hidden().MatchString(text) {
			t.Cannot(c.Line, "it is not understood")
			return
		}
		t.Skip(c.Line)
		return
	}
	t.found = true
	if verb == "show" || verb == "list" || verb == "lst" || verb == "get" {
		t.Skip(c.Line)
		return
	}
	line := routers.Line{Number: c.Number, Words: words[2:]}
	name, err := cutDevice(&line)
	d := t.device(cmp.Or(name, "-")+namespace, c)
	switch {
	case c.block > 0 && verb == "delete" && len(d.qdiscs)+len(d.filters) == 0:
	case c.block > 0:
		err = fmt.Errorf(
			"it is in a loop, condition or function, or behind an exit, that begins in line %d, which is not evaluated: write it without, or import the interface itself",
			c.block)
	case err != nil:
	case strings.Contains(name, "$") && d.changes != c.changes:
		err = fmt.Errorf("%s may be another interface than in line %d: write its name", name, d.line)
	case object == "qdisc":
		err = t.qdisc(d, c, verb, line)
	case object == "class":
		err = t.class(d, c, verb, line)
	default:
		err = t.filter(d, c, verb, line)
	}
	if err != nil {
		d.cannot(c.Line, "%v", err)
	}
}

// foundTC matches $(which tc) and the like, whose blanks are removed.
var foundTC = pattern.Lazy("^(?:\\$\\(|`)(?:which|command-v|type-p)tc[)`]$")

// otherLimits matches commands of a script, other than tc, that limit or classify packets.
var otherLimits = pattern.Lazy(`^(?:\S*/)?(?:ip6?tables\S*|nft)\b.*(?:\blimit\b|\bhashlimit\b|\bconnlimit\b|-j CLASSIFY\b|-j (?:DSCP|TOS)\b|\b(?:priority|dscp) set\b)`)

// hidden matches a command of tc behind other words.
var hidden = pattern.Lazy(`\b(?:qdisc|class|filter) (?:add|replace|change|del\w*) `)

// ipLink reads the queue length of ip link set dev NAME txqueuelen N, the same with ifconfig NAME.
func (t *tcImport) ipLink(c tcCommand, words []string) bool {
	i := slices.IndexFunc(words, func(w string) bool { return w == "txqueuelen" || w == "txqlen" || w == "qlen" })
	if i < 0 || i+1 >= len(words) {
		return false
	}
	name := ""
	switch base := path.Base(words[0]); {
	case base == "ifconfig":
		name = words[1]
	case base == "ip" && complete(words[1], []string{"link"}) != "":
		name = words[2]
		d := slices.IndexFunc(words, func(w string) bool { return w == "dev" || w == "name" })
		if d >= 0 && d+1 < len(words) {
			name = words[d+1]
		} else if complete(name, []string{"set", "add"}) != "" {
			name = words[3]
		}
	default:
		return false
	}
	n, err := parseTCNumber(words[i+1], 31)
	if err == nil && c.block == 0 {
		t.device(name, c).queueLength = int64(n)
	}
	return err == nil
}

// cutDevice cuts dev NAME, or block NUMBER, from a command and returns the name.
func cutDevice(l *routers.Line) (name string, err error) {
	for i := 0; i+1 < len(l.Words); i++ {
		if w := l.Words[i]; w == "dev" || w == "block" {
			name = l.Words[i+1]
			if w == "block" {
				name = "block " + name
			}
			l.Words = slices.Concat(l.Words[:i], l.Words[i+2:])
			return name, nil
		}
	}
	return "", errors.New("dev is missing")
}
