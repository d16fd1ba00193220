package tc

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/routers"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/meter/unsaid"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// tcExport writes a policy as a shell script.
type tcExport struct {
	*routers.Export
	device string
	text   strings.Builder
	length tcLength
	rule   dataplane.LengthRule
	queues map[*dataplane.Queue]string // classes of htb
	links  map[*dataplane.Link]string
	nodes  map[any]*exportedNode // by queue or link
	police map[*dataplane.Meter]*exportedMeter
	id     int // the last minor number of a class
	index  int // the last index of a police action
	pref   int // the last priority of a filter
}

// firstIndex is the first index of police actions. All of them have one, because the kernel gives the
// lowest free numbers to others.
const firstIndex = 1001

// Export writes a script of tc commands for the egress of an interface: HTB with a class for each
// queue and a filter for each class of the policy, or tbf if a single queue is all.
func (Dialect) Export(p *dataplane.Policy, name string) *routers.Export {
	x := &tcExport{
		Export: &routers.Export{}, device: name,
		queues: map[*dataplane.Queue]string{}, links: map[*dataplane.Link]string{},
		nodes:  map[any]*exportedNode{},
		police: map[*dataplane.Meter]*exportedMeter{}, id: 15, index: firstIndex - 1,
	}
	if len(name) > 15 || name == "" || strings.ContainsAny(name, "/ \t\n'\"$`\\;&|#") { // IFNAMSIZ
		x.Cannot("%q is not the name of an interface: give it with --name", name)
	}
	if name == "SHAPER" { // the default of --name
		x.Note("the script is for an interface SHAPER: give yours with --name")
	}
	if p.Customers != nil {
		x.Cannot("customers")
	}
	if p.DropUnclassified {
		x.Cannot("otherwise: drop: write a last class with match: {length: 0-4294967295} and green: drop")
	}
	x.Unsaid("policy", p, notOfTC,
		"Length", "Classes", "DropUnclassified", "Meters", "Queues", "Links", "Envelopes", "Customers")
	for i := range p.Classes {
		c := &p.Classes[i]
		x.Unsaid("class "+c.Name, c, notOfTC, "Name", "Match", "Meter", "Green", "Yellow", "Red")
	}
	x.rule = p.Length
	x.setLength(p.Length)
	x.line("#!/bin/sh -e\n# Written by shaper export --to tc. To remove it: tc qdisc del dev %s root", name)
	if !x.single(p) {
		x.tree(p)
	}
	x.Text = x.text.String()
	return x.Export
}

// notOfTC is the reason for fields that the exporter does not know.
const notOfTC = "tc does not express it"

func (x *tcExport) line(format string, args ...any) { fmt.Fprintf(&x.text, format+"\n", args...) }

// label writes a comment with the name of a part.
func (x *tcExport) label(kind, name string) {
	if strings.Join(strings.Fields(name), " ") != name || strings.HasPrefix(name, `"`) {
		name = strings.ReplaceAll(strconv.Quote(name), "  ", ` \x20`) // import joins blanks
	}
	x.line("# %s: %s", kind, name)
}

// setLength finds the parameters for a length rule. tc counts frames; a size table with a negative
// overhead makes it count IP packets.
func (x *tcExport) setLength(r dataplane.LengthRule) {
	x.Unsaid("length", r, notOfTC, "Base", "Overhead", "MPU")
	l := tcLength{overhead: max(r.Overhead, 0), mpu: r.MPU, stab: min(r.Overhead, 0)}
	switch noHeader := baseOf(x.device) == dataplane.L3; {
	case r.Base == dataplane.L3 && noHeader:
	case noHeader:
		x.Cannot("length %v: packets of %s have no Ethernet header: write l3", r.Base, x.device)
	case r.Base == dataplane.L3:
		l.stab -= routers.EthernetHeader
		x.Note("length l3: stab overhead %d makes tc count IP packets; it supposes an Ethernet interface",
			l.stab)
	case r.Base == dataplane.L1 && r != (dataplane.LengthRule{Base: dataplane.L1}):
		x.Cannot("length l1 with overhead or mpu")
	case r.Base == dataplane.L1:
		l.overhead, l.mpu = 24, 84 // max(60, frame) + 24
	case r.Overhead <= -routers.EthernetHeader:
		x.Cannot("length l2 with overhead %d: write l3 with overhead %d", r.Overhead,
			r.Overhead+routers.EthernetHeader)
	}
	if l.overhead >= 1<<16 || l.mpu >= 1<<16 {
		x.Cannot("overhead and mpu above 65535")
	}
	x.length = l
}

// root returns the beginning of the command for the root qdisc.
func (x *tcExport) root() string {
	s := fmt.Sprintf("tc qdisc add dev %s root handle 1:", x.device)
	if x.length.stab != 0 {
		s += fmt.Sprintf(" stab overhead %d linklayer ethernet", x.length.stab)
	}
	return s
}

// sizes returns the options of the length for police, htb and tbf.
func (x *tcExport) sizes() (s string) {
	if x.length.overhead > 0 {
		s += fmt.Sprintf(" overhead %d", x.length.overhead)
	}
	if x.length.mpu > 0 {
		s += fmt.Sprintf(" mpu %d", x.length.mpu)
	}
	return s
}

// rate writes a rate. tc has whole bytes per second.
func (x *tcExport) rate(what string, r meter.Rate) (text string, bytes int64) {
	bits, ok := r.Bits()
	if !ok || bits%8 != 0 || bits == 0 {
		x.Cannot("%s: rate %v is not a whole number of bytes per second", what, r)
	}
	return meter.ByteRate(bits / 8).String(), bits / 8
}

// single writes tbf for a policy whose only class sends all packets to a queue with a plain limit.
func (x *tcExport) single(p *dataplane.Policy) bool {
	if len(p.Classes) != 1 {
		return false
	}
	c := &p.Classes[0]
	green := c.Action(meter.Green)
	q := green.Queue
	if !matchesAll(&c.Match) || c.Meter != nil || q == nil || unsaid.Fields(green, "Queue") != nil {
		return false
	}
	// Without a link, priority and weight have no effect.
	other := unsaid.Fields(q, "Name", "Rate", "Time", "Bytes", "TargetAtRate", "IntervalAtRate", "Priority",
		"Weight")
	if other != nil || q.Time > 0 && (q.Bytes > 0 || q.Time%time.Microsecond != 0) {
		return false
	}
	rate, bytes := x.rate("queue "+q.Name, q.Rate)
	burst := max(bytes/1000, 2*fullFrame)
	limit := fmt.Sprintf("limit %d", q.Bytes)
	if q.Time > 0 {
		limit = fmt.Sprintf("latency %dus", q.Time/time.Microsecond)
		x.Note("queue %s: tbf converts latency %v to bytes: the rate during it, plus the burst", q.Name,
			q.Time)
	}
	x.checkBytes("queue "+q.Name, bytes, burst)
	x.checkBytes("queue "+q.Name, 0, q.Bytes)
	x.Note("queue %s: tbf sends up to %d bytes at once after a pause, and then at the rate", q.Name, burst)
	x.label("class", c.Name)
	x.label("queue", q.Name)
	x.line("%s tbf rate %s burst %d %s%s", x.root(), rate, burst, limit, x.sizes())
	return true
}

// fullFrame is the length of a full Ethernet frame without FCS, bytes (psched_mtu). tbf drops packets that
// are longer than its burst.
const fullFrame = 1514

// checkBytes checks that a number of bytes fits the options of tc, as a time at a rate unless that
// is 0.
func (x *tcExport) checkBytes(what string, rate, bytes int64) {
	if _, ok := burstTicks(rate, bytes); !ok && rate > 0 {
		x.Cannot("%s: %d bytes take more than 274 s at the rate, the maximum of tc", what, bytes)
	}
	if bytes >= 1<<32 {
		x.Cannot("%s: %d bytes are 4 GiB or more", what, bytes)
	}
}

// matchesAll reports whether a match is that of all packets.
func matchesAll(m *dataplane.Match) bool {
	all := dataplane.Match{Length: anyLength}
	return m.Covers(&all) && len(m.Length) > 0
}

// next returns the ID of a new class.
func (x *tcExport) next() string {
	x.id++
	if x.id >= 1<<16 {
		x.Cannot("more than 65,520 queues and links")
	}
	return fmt.Sprintf("1:%x", x.id)
}

// leaf writes the qdisc of a queue.
func (x *tcExport) leaf(q *dataplane.Queue) {
	what := "queue " + q.Name
	c, err := q.Resolve()
	if err != nil { // it compiled
		x.Cannot("%s: %v", what, err)
		return
	}
	if q.WRED != ([3]queue.Early{}) {
		x.Cannot("%s: wred", what)
	}
	if q.Seed != 0 {
		x.Cannot("%s: seed", what)
	}
	x.Unsaid(what+": codel", c.CoDel, notOfTC, "Target", "Interval")
	bytes := c.Bytes
	if c.Time > 0 {
		bytes, _ = c.Rate.Burst(c.Time)
	}
	kind, ok := x.cake(q, &c.Config, bytes)
	if !ok {
		kind = x.discipline(what, q, &c.Config, bytes)
	}
	class := x.queues[q]
	x.line("tc qdisc add dev %s parent %s handle %s: %s", x.device, class, strings.TrimPrefix(class, "1:"),
		kind)
}

// discipline returns the qdisc of a queue with a limit in bytes or packets, other than cake.
func (x *tcExport) discipline(what string, q *dataplane.Queue, c *queue.Config, bytes int64) string {
	codel, fair := c.CoDel != queue.CoDel{}, q.Fair.By != dataplane.NoKey
	switch {
	case codel && bytes > 0:
		c.Packets = min(max(bytes/fullFrame, 1), queue.MaxPackets)
		x.Cannot("%s: with codel, tc has a limit in packets: write limit: %dp", what, c.Packets)
		bytes = 0
	case c.Time > 0:
		x.Cannot("%s: limit %v is a time, and tc counts bytes or packets: write limit: %d", what, c.Time,
			bytes)
	case c.Packets > 0 && bytes > 0:
		x.Cannot("%s: two limits", what)
	}
	switch {
	case fair && (q.Fair != dataplane.Key{By: dataplane.ByFlow} || q.Hosts.By != dataplane.NoKey):
		x.Cannot("%s: fair: tc has fair: flow; others with a limit in bytes, ecn and the target of codel 1/20 of its interval",
			what)
	case fair && !codel && (bytes > 0 || c.Packets > maxSFQ):
		x.Cannot("%s: fair without codel: tc has limits in packets, up to %dp", what, maxSFQ)
	case !codel && c.ECN:
		x.Cannot("%s: ecn without codel", what)
	}
	switch {
	case codel:
		kind := map[bool]string{true: "fq_codel", false: "codel"}[fair]
		ecn := map[bool]string{true: "ecn", false: "noecn"}[c.ECN]
		if c.CoDel.Target%time.Microsecond != 0 || c.CoDel.Interval%time.Microsecond != 0 {
			x.Cannot("%s: codel: tc has whole microseconds", what)
		}
		x.Note("%s: the kernel counts CoDel's times in units of 1024 ns", what)
		return fmt.Sprintf("%s limit %d target %dus interval %dus %s", kind, c.Packets,
			c.CoDel.Target/time.Microsecond, c.CoDel.Interval/time.Microsecond, ecn)
	case fair:
		if c.Packets > sfqDepth {
			x.Note("%s: sfq keeps at most %d packets of a flow", what, sfqDepth)
		}
		return fmt.Sprintf("sfq limit %d", c.Packets)
	case bytes == 0:
		return fmt.Sprintf("pfifo limit %d", c.Packets)
	}
	x.checkBytes(what, 0, bytes)
	return fmt.Sprintf("bfifo limit %d", bytes)
}

// maxSFQ is the largest limit of sfq with its default flows and depth (sch_sfq.c).
const maxSFQ = 127 * 127

// cake returns cake for a queue with a limit in bytes and CoDel, if cake has its parameters.
func (x *tcExport) cake(q *dataplane.Queue, c *queue.Config, bytes int64) (string, bool) {
	mode, ok := cakeMode(fairness{q.Hosts, q.Fair})
	rtt := c.CoDel.Interval
	if !ok || bytes == 0 || bytes >= 1<<32 || c.Time > 0 || c.Packets > 0 || !c.ECN || rtt == 0 ||
		rtt%time.Microsecond != 0 || rtt/time.Microsecond >= 1<<32 || c.CoDel != cakeCoDel(rtt) {
		return "", false
	}
	x.Note("queue %s: the memory limit of cake counts the kernel's buffers, which are larger than packets", q.Name)
	return fmt.Sprintf("cake unlimited besteffort %s rtt %dus memlimit %d", mode, rtt/time.Microsecond, bytes), true
}

// cakeMode returns the mode of cake for a fairness.
func cakeMode(f fairness) (string, bool) {
	for name, keys := range cakeFlows {
		if keys == f && name != tripleIsolate {
			return name, true
		}
	}
	return "", false
}
