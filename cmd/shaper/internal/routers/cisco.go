package routers

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/pattern"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/routers/form"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

func init() { All["cisco"] = cisco{} }

// cisco is the modular QoS command line (MQC) of IOS, IOS XE, IOS XR, NX-OS and EOS, as in the running
// configuration or in show policy-map.
type cisco struct{}

// ciscoPrompt is RP/0/RSP0/CPU0:router(config-pmap-c)# or switch#.
var ciscoPrompt = pattern.Lazy(`^\s*[\w./:@-]+(?:\((?P<level>config[\w-]*)\))?[#>] ?`)

// ciscoConfig holds the parts of a configuration, by name.
type ciscoConfig struct {
	Options
	in        *Import
	policies  []*ciscoPolicy
	byName    map[string]*ciscoPolicy
	cars      []*ciscoCAR
	children  map[string]bool // names of policies inside classes of others
	platform  string          // that the configuration shows, or ""
	classMaps map[string]*ciscoClassMap
	lists     map[string]*ciscoList
	matches   map[*ciscoClassMap][]Condition // that are read
}

type ciscoPolicy struct {
	name    string
	line    Line
	classes []*ciscoClass
	byName  map[string]*ciscoClass
}

// ciscoClass is a class of a policy map.
type ciscoClass struct {
	name  string
	line  Line
	lines []Line
	match *ciscoClassMap // of show policy-map, instead of the class map of its name
}

// ciscoClassMap holds its match statements.
type ciscoClassMap struct {
	operator string // match-any, match-all, or ""
	lines    []Line
}

// Import reads policy maps. Class maps and access lists may be before or after them.
func (cisco) Import(src Source) (*Import, error) {
	c, err := readCisco(src)
	if err != nil {
		return nil, err
	}
	c.findChildren()
	for _, p := range c.policies {
		c.importPolicy(p)
	}
	c.importCARs()
	return c.in, nil
}

// otherTypes are types of policy maps without meters and queues, or for other chips.
var otherTypes = []string{
	"inspect", "pbr", "network-qos", "packet-service", "performance-monitor", "control", "access-control",
	"epbr", "appnav", "redirect", "pdp",
}

func newCiscoConfig(src Source) ciscoConfig {
	return ciscoConfig{
		Options: src.Options, in: &Import{}, byName: map[string]*ciscoPolicy{}, children: map[string]bool{},
		classMaps: map[string]*ciscoClassMap{}, lists: map[string]*ciscoList{},
		matches: map[*ciscoClassMap][]Condition{},
	}
}

// addPolicy adds a policy map, and removes an earlier one with its name.
func (c *ciscoConfig) addPolicy(p *ciscoPolicy) {
	p.byName = map[string]*ciscoClass{}
	if old := c.byName[p.name]; old != nil {
		c.policies = slices.DeleteFunc(c.policies, func(other *ciscoPolicy) bool { return other == old })
	}
	c.policies = append(c.policies, p)
	c.byName[p.name] = p
}

// add adds a class. class-default is the last one, wherever it is written.
func (p *ciscoPolicy) add(c *ciscoClass) {
	n := len(p.classes)
	p.classes = append(p.classes, c)
	p.byName[c.name] = c
	if n > 0 && p.classes[n-1].name == classDefault {
		p.classes[n-1], p.classes[n] = p.classes[n], p.classes[n-1]
	}
}

// readCisco splits a configuration into its parts. Blocks are recognized by their keywords,
// because outputs of show commands and excerpts have any indentation.
func readCisco(src Source) (*ciscoConfig, error) {
	lines, err := ReadLines(withoutBanners(src.Text), ciscoPrompt)
	if err != nil {
		return nil, err
	}
	r := &ciscoReader{ciscoConfig: newCiscoConfig(src)}
	r.platform = ciscoPlatform(lines)
	for _, l := range lines {
		r.read(l)
	}
	return &r.ciscoConfig, r.fail
}

// withoutBanners empties the lines of banners, of which any text can be a part.
func withoutBanners(text string) string {
	lines := strings.Split(text, "\n")
	missing := map[string]bool{} // delimiters that do not come any more
	for i := 0; i < len(lines); i++ {
		m := banner().FindStringSubmatch(lines[i])
		if m == nil || strings.Contains(m[2], m[1]) || missing[m[1]] {
			continue
		}
		n := slices.IndexFunc(lines[i+1:], func(l string) bool { return strings.Contains(l, m[1]) })
		missing[m[1]] = n < 0
		for range n + 1 {
			i++
			lines[i] = ""
		}
	}
	return strings.Join(lines, "\n")
}

// banner matches the first line of a banner: its delimiter, and the text behind it.
var banner = pattern.Lazy(
	`^(?:\S+[#>] ?)?banner (?:motd|login|exec|incoming|slip-ppp|prompt-timeout|config-save) (\^C|[^\sA-Za-z0-9\x80-\x{10FFFF}])(.*)$`)

// ciscoReader is in at most one block.
type ciscoReader struct {
	ciscoConfig
	policy   *ciscoPolicy
	class    *ciscoClass
	classMap *ciscoClassMap
	list     *ciscoList
	device   Line // the interface
	other    bool // a block without meters and queues
	indent   int  // of the first line of the block
	fail     error
	host     string
}

func (r *ciscoReader) leave() {
	r.policy, r.class, r.classMap, r.list, r.other = nil, nil, nil, nil, false
}

// enter begins a block.
func (r *ciscoReader) enter(l Line) {
	r.leave()
	r.indent = l.Indent
}

// inside reports whether a line is in the block, by its indentation or prompt.
func (r *ciscoReader) inside(l Line) bool {
	if l.Prompt == "" {
		return l.Indent > r.indent
	}
	return ciscoMode().MatchString(l.Prompt) && !ciscoStart().MatchString(l.Text())
}

var (
	// ciscoMode matches the prompts of class maps, policy maps and access lists.
	ciscoMode = pattern.Lazy(`\(config-\S*(?:cmap|pmap|nacl|acl)`)
	// ciscoStart matches statements that leave such a mode.
	ciscoStart = pattern.Lazy(
		`(?i)^(?:int\w*|router|line|vlan|vrf|ip|ipv[46]|route-map|crypto|aaa|snmp-server|controller|do|control-plane|username|logging|ntp)(?: |$)`)
)

func (r *ciscoReader) read(l Line) {
	if !l.Has("description") && !l.Has("remark") { // guides have comments behind statements
		if i := slices.IndexFunc(l.Words[1:], func(w string) bool { return strings.HasPrefix(w, "!") }); i >= 0 {
			l.Words = l.Words[:i+1]
		}
	}
	switch {
	case l.is("end"):
		r.leave()
		return
	case strings.HasPrefix(l.Words[0], "!"), ciscoNoise().MatchString(l.Text()): // the block goes on
		return
	case l.Has("hostname") && l.Indent == 0 && l.Prompt == "" && len(l.Words) == 2 && l.Words[1] != "dynamic":
		if r.host != "" && r.host != l.Word(1) {
			r.fail = cmp.Or(r.fail, fmt.Errorf(
				"line %d: %s: another router begins, and %s is before it: give the configuration of one",
				l.Number, l.Text(), r.host))
		}
		r.host = l.Word(1)
	}
	if l.Has("no") && r.removes(l) {
		r.fail = cmp.Or(r.fail, fmt.Errorf(
			"line %d: %s: no changes the configuration before it: paste what show running-config prints afterwards", l.Number, l.Text()))
		return
	}
	if l.is("end-policy-map") || l.is("end-class-map") { // IOS XR
		r.leave()
		return
	}
	if r.begins(l) {
		return
	}
	inside := r.inside(l)
	switch {
	case r.other && (inside || inInspect().MatchString(l.Text())):
	case r.policy != nil && r.policyLine(l, inside):
		return
	case r.classMap != nil && (inside || l.Has("match") || l.Has("description")):
		if !l.Has("description") && !l.is("exit") {
			r.classMap.lines = append(r.classMap.lines, l)
		}
		return
	case r.list != nil && r.list.add(l, inside):
		return
	case !inside && r.continues(l):
		r.in.Cannot(l, "it is not understood: is it abbreviated, or the rest of the line before it?")
		return
	case !inside:
		r.leave()
		r.indent = l.Indent
	}
	if !inside && !l.Has("rate-limit") {
		r.device = Line{}
	}
	if isShort(l.Words[0], "interface", 3) && len(l.Words) > 1 {
		r.device = l
	}
	switch {
	case l.Has("rate-limit") && r.device.Words != nil:
		r.cars = append(r.cars, &ciscoCAR{device: strings.Join(r.device.Words[1:], " "), line: l})
	case ciscoLimit().MatchString(l.Text()):
		r.in.Outside(l, outsideReason)
	case !r.other && r.lost(l):
		r.in.Cannot(l, "it is in no policy map, class map or access list: is a line before it not understood?")
	default:
		r.in.Skip(l)
	}
}

// ciscoNoise matches messages of the system between statements.
var ciscoNoise = pattern.Lazy(`^(?:#|(?:\d+: )?[*.]?\w{3} +\d+ (?:\d{4} )?[\d:.]+(?: \w+)?: %|%\w+-\d-)`)

// isShort reports whether a word is a beginning of another one, of at least some letters.
func isShort(word, long string, least int) bool {
	return len(word) >= least && len(word) <= len(long) && strings.EqualFold(word, long[:len(word)])
}

// continues reports whether a line without indentation seems to belong to the block: an abbreviated
// statement, or the rest of a line that was wrapped.
func (r *ciscoReader) continues(l Line) bool {
	if r.policy == nil && r.classMap == nil && r.list == nil || l.Has("service") || l.Has("policy") {
		return false
	}
	short := func(word string) bool { return isShort(l.Words[0], word, 3) }
	return ciscoWrapped().MatchString(l.Text()) || slices.ContainsFunc([]string{
		"class-map", "policy-map", "police", "shape", "bandwidth", "priority", "queue-limit", "random-detect",
		"service-policy", "description", "match", "permit", "deny", "evaluate", "fair-queue", "estimate",
	}, short)
}

// ciscoWrapped matches the rest of a statement.
var ciscoWrapped = pattern.Lazy(`(?i)^(?:bc|be|pir|burst|peak-rate|peak-burst|percent|(?:conform|exceed|violate)\S*|af[1-4][1-3]|cs[0-7]|ef|\d+|eq|range|gt|lt|neq|log|established|dscp|precedence|host|any|ms|us|bytes|packets|[kmg]bps)(?: |$)`)

// inInspect matches statements of policy maps and class maps of other types.
var inInspect = pattern.Lazy(`(?i)^(?:class|match|inspect|drop|pass|set|description)(?: |$)`)

// removes reports whether a line that begins with no removes a part that was read.
func (r *ciscoReader) removes(l Line) bool {
	name := l.Words[len(l.Words)-1]
	switch {
	case r.list != nil && (l.Has("no", "permit") || l.Has("no", "deny")),
		r.classMap != nil && l.Has("no", "match"),
		r.policy != nil && len(l.Words) > 1 && ciscoAction(Line{Words: l.Words[1:]}):
		return true
	case l.Has("no", "policy-map"):
		return r.byName[name] != nil
	case l.Has("no", "class-map"):
		return r.classMaps[name] != nil
	case l.Has("no", "class"):
		return r.policy != nil
	case l.Has("no", "access-list"):
		return r.lists[listKey(false, l.Word(2))] != nil
	case l.Word(2) == "access-list": // of ip, ipv4 or ipv6
		return r.lists[listKey(l.Has("no", "ipv6"), name)] != nil
	}
	return l.Has("no", "rate-limit") && slices.ContainsFunc(r.cars, func(c *ciscoCAR) bool {
		return c.device == strings.Join(r.device.Words[min(1, len(r.device.Words)):], " ")
	})
}

// lost reports whether a line is of a block that was left because of a line before it.
func (r *ciscoReader) lost(l Line) bool {
	return (l.Indent == 0 || ciscoMode().MatchString(l.Prompt)) && ciscoLost().MatchString(l.Text())
}

// ciscoLost matches statements that are of policy maps, class maps and access lists only.
var ciscoLost = pattern.Lazy(`(?i)^(?:set (?:dscp|cos|mpls experimental|ip dscp)|class \S+$|(?:permit|deny) (?:ip|tcp|udp|icmp)|trust (?:dscp|cos))\b`)

// outsideReason is the reason for limits outside of policies.
const outsideReason = "it limits or marks packets outside of a policy, and is not imported"

// ciscoLimit matches statements outside of policy maps that limit, shape or queue packets.
var ciscoLimit = pattern.Lazy(`(?i)^(?:` + strings.Join([]string{
	`police`, `rate-limit`, `traffic-shape`, `storm-control`, `srr-queue`, `wrr-queue`, `priority-queue`,
	`priority-group`, `custom-queue-list`, `random-detect`, `fair-queue`, `shape`, `queue-limit`,
	`bandwidth (?:percent|remaining|guaranteed)`, `priority strict`, `mls (?:rate-limit|qos aggregate-policer|qos srr-queue)`,
	`qos (?:shared-policer|aggregate-policer)`, `(?:platform|hardware) (?:rate-limiter|qos (?:police|shape|queue-buffer|port))`,
	`hardware access-list .* rate-limit`,
	`frame-relay (?:traffic-shaping|traffic-rate|cir|bc|be|mincir|fair-queue)`, `map-class frame-relay`,
	`ip (?:rsvp bandwidth|multicast rate-limit)`, `lpts (?:pifib hardware|punt) police`, `ip rtp priority`,
	`broadcast-suppression`, `queue-set`, `hold-queue`,
	`tx-(?:ring-limit|queue)`, `mls qos (?:cos|trust|map|rewrite)`, `qos (?:trust|cos|map|rewrite)`, `auto qos`,
	`(?:vbr-\w+|cbr|ubr) \d+`, `rcv-queue`, `mls qos (?:queue-set|dscp-mutation)`, `qos (?:queue-softmax-multiplier|dscp|pre-classify)`,
	`max-reserved-bandwidth`, `frame-relay ip rtp`, `queue-list`, `priority-list`, `tunnel tos`,
	`set (?:ip (?:precedence|dscp|tos)|ipv6 precedence)`, `flow \S+ rate`, `switchport block`,
}, "|") + `)\b`)

// ciscoPlatforms are statements of one platform only, first those that no other has.
var ciscoPlatforms = []struct {
	name string
	sign func() *regexp.Regexp
}{
	{"ios-xr", pattern.Lazy(`(?i)^end-(?:policy|class)-map$|^!! IOS XR|^ipv4 access-list `)},
	{"eos", pattern.Lazy(`(?i)^police .*\bburst-size |^policy-map type quality-of-service |^class built-in |^! device: .*EOS`)},
	{"nx-os", pattern.Lazy(
		`(?i)^police .*\b(?:conform|exceed|violate) |^policy-map type (?:qos|queuing) |^feature |^vdc |^shape [kmg]?bps `)},
}

// ciscoPlatform returns the platform that a statement shows, or "".
func ciscoPlatform(lines []Line) string {
	for _, p := range ciscoPlatforms {
		if slices.ContainsFunc(lines, func(l Line) bool { return p.sign().MatchString(l.Text()) }) {
			return p.name
		}
	}
	return ""
}

// begins reads the first line of a block.
func (r *ciscoReader) begins(l Line) bool {
	text := strings.ToLower(l.Text())
	a := &args{l.Words}
	switch {
	case strings.HasPrefix(text, "policy-map "), strings.HasPrefix(text, "policy map "):
		if a.next(); strings.HasPrefix(text, "policy map") {
			a.next()
		}
		r.enter(l)
		kind := r.blockType(a)
		if slices.Contains(otherTypes, kind) {
			r.other = true
			r.in.Skip(l)
			return true
		}
		name := r.name(l, a)
		if r.policy = r.byName[name]; r.policy == nil { // a policy map can be continued
			r.policy = &ciscoPolicy{name: name, line: l}
			r.addPolicy(r.policy)
		}
	case strings.HasPrefix(text, "class-map "):
		a.next()
		r.enter(l)
		kind := r.blockType(a)
		m := &ciscoClassMap{operator: a.take("match-any", "match-all")}
		if slices.Contains(otherTypes, kind) || a.done() || a.peek() == "match-none" {
			r.other = true
			r.in.Skip(l)
			return true
		}
		name := r.name(l, a)
		if r.classMap = r.classMaps[name]; r.classMap == nil {
			r.classMap = m
			r.classMaps[name] = m
		} else if m.operator != "" && r.classMap.operator != m.operator {
			r.in.Cannot(l, "the class map is also %s, before it", cmp.Or(r.classMap.operator, "without an operator"))
		}
	default:
		return r.beginsList(l)
	}
	return true
}

// blockType reads the type of a map.
func (*ciscoReader) blockType(a *args) string {
	if a.take("type") == "" {
		return ""
	}
	return strings.ToLower(a.next())
}

// name reads a name, which is the last word of a line.
func (r *ciscoReader) name(l Line, a *args) string {
	name := a.next()
	if err := a.unread(); err != nil {
		r.in.Cannot(l, "%v", err)
	}
	return name
}

// policyLine reads a line of a policy map. It returns false for a line behind it.
func (r *ciscoReader) policyLine(l Line, inside bool) bool {
	a := &args{l.Words}
	switch {
	case a.take("class") != "":
		r.blockType(a)
		if a.peek() == "built-in" { // EOS
			a.next()
		}
		name := strings.TrimSuffix(a.next(), ",")
		if err := a.unread(); err != nil {
			r.in.Cannot(l, "%v", err)
		}
		if r.class = r.policy.byName[name]; r.class == nil {
			r.class = &ciscoClass{name: name, line: l}
			r.policy.add(r.class)
		}
		return true
	case l.Has("description"), l.Has("exit"):
		return true
	case r.class == nil && inside:
		r.in.Cannot(l, "it is not understood")
		return true
	case r.class != nil && (inside || ciscoAction(l)):
		r.class.lines = append(r.class.lines, l)
		return true
	}
	return false
}

// ciscoAction reports whether a line begins with a keyword of a class in a policy map.
func ciscoAction(l Line) bool {
	return slices.Contains([]string{
		"police", "conform-action", "exceed-action", "violate-action", "conform-color", "exceed-color",
		"shape", "bandwidth", "priority", "queue-limit", "random-detect", "set", "fair-queue",
		"service-policy", "drop", "cir", "average", "queue-buffers", "child-conform-aware", "estimate",
	}, strings.ToLower(l.Words[0]))
}

// importPolicy makes the draft of a policy map.
func (c *ciscoConfig) importPolicy(p *ciscoPolicy) {
	d := c.in.Draft(p.name, p.line.Number)
	d.Remark("class-default and match any also take packets that are not IP on the router. Here these pass.")
	d.Remark("Most Cisco routers count the Ethernet header too. If yours does, import with --length l2.")
	d.Remark("Read as a configuration of %s.", c.platformName())
	if len(c.lists) > 0 {
		d.Remark("On the router, an entry of an access list with ports also takes later fragments. Here these have no ports.")
	}
	d.Part = c.children[p.name]
	b := &ciscoBuilder{ciscoConfig: c, Options: c.Options, draft: d}
	if rate, line, child := b.parent(p); child != nil {
		b.link = b.newLink(rate, line, line.Text())
		b.Link = b.link.Rate // percentages in the child are of this rate
		p = child
	} else if bits, ok := c.Link.Bits(); ok && bits > 0 {
		b.link = b.newLink(bits, Line{}, "--link")
	}
	b.policy(p)
}

// platformOf returns the platform: as said, or as a statement shows, or else IOS.
func (c *ciscoConfig) platformOf() string { return cmp.Or(c.Platform, c.platform, "ios") }

// isXR reports whether the platform is one of IOS XR.
func (c *ciscoConfig) isXR() bool {
	return slices.Contains([]string{"ios-xr", "ncs5500"}, c.platformOf())
}

func (c *ciscoConfig) platformName() string {
	return fmt.Sprintf("%s (--platform %s)", platformNames[c.platformOf()], c.platformOf())
}

// newLink returns a link.
func (b *ciscoBuilder) newLink(rate int64, line Line, comment string) *dataplane.Link {
	l := &dataplane.Link{Name: linkName, Rate: meter.BitRate(rate)}
	b.linkLine = line
	b.draft.From(l, "", line, "%s", comment)
	return l
}

// linkName is the name of the link in imported policies.
const linkName = "link"

// findChildren finds the policies inside classes of others.
func (c *ciscoConfig) findChildren() {
	for _, p := range c.policies {
		for _, class := range p.classes {
			for _, l := range class.lines {
				if name, ok := childOf(l); ok && name != p.name {
					c.children[name] = true
				}
			}
		}
	}
}

// childOf returns the name of the policy in a service-policy statement.
func childOf(l Line) (string, bool) {
	v, err := serviceForm().Match(l.Words)
	if err != nil {
		return "", false
	}
	return v.Get("name").(string), true
}

var serviceForm = sync.OnceValue(func() *form.Form {
	return form.Parse("service-policy [type <word>] [input | output] <word:name>", ciscoKinds)
})

// parent returns the child of a policy which shapes all traffic, and the rate with its line.
func (b *ciscoBuilder) parent(p *ciscoPolicy) (rate int64, line Line, child *ciscoPolicy) {
	if len(p.classes) != 1 || p.classes[0].name != classDefault {
		return 0, line, nil
	}
	shown := func(l Line) bool { return l.Has(shownWord) }
	lines := slices.DeleteFunc(slices.Clone(p.classes[0].lines), shown)
	if len(lines) != 2 {
		return 0, line, nil
	}
	for _, l := range lines {
		if name, ok := childOf(l); ok && name != p.name {
			child = b.byName[name]
		}
		if l.Has("shape") {
			line = l
			parts := &ciscoParts{ciscoBuilder: b}
			if err := ciscoStatements.Read(parts, l); err != nil {
				return 0, line, nil // the policy is imported without its child, which reports the error
			}
			rate = parts.rate
		}
	}
	if rate == 0 {
		child = nil
	}
	return rate, line, child
}

const classDefault = "class-default"
