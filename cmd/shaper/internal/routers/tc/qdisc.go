package tc

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/routers"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/routers/form"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// Handles of the hooks for packets before the qdiscs (linux/pkt_sched.h).
const (
	tcIngress     = 0xfffffff1 // TC_H_INGRESS, the parent of ingress and clsact
	tcClsactIn    = 0xfffffff2
	tcClsactOut   = 0xfffffff3
	ingressHandle = 0xffff0000 // of the ingress qdisc, and of clsact
	majorMask     = 0xffff0000 // TC_H_MAJ_MASK
)

// defaultPackets is the queue length of most interfaces (txqueuelen, DEFAULT_TX_QUEUE_LEN), the limit of
// qdiscs without one.
const defaultPackets = 1000

// knownKinds are kinds of interfaces that differ from Ethernet, by the beginning of their usual names
// (drivers/net/ifb.c, tun.c, wireguard/device.c and ppp/ppp_generic.c).
var knownKinds = map[string]struct {
	queueLength int64 // packets; 0: defaultPackets
	bare        bool  // packets have no Ethernet header
}{"ifb": {32, false}, "tun": {500, true}, "tap": {500, false}, "ppp": {3, true}, "wg": {0, true}}

// knownLength returns the queue length that an interface has by its name, or 0.
func knownLength(device string) int64 { return knownKinds[device[:min(len(device), 3)]].queueLength }

// baseOf returns what the kernel counts of the packets that an interface sends, by its name.
func baseOf(device string) dataplane.LengthBase {
	if knownKinds[strings.TrimRight(device, "0123456789")].bare {
		return dataplane.L3
	}
	return dataplane.L2
}

const defaultR2Q = 10 // r2q of htb (htb_init in net/sched/sch_htb.c)

// qdiscRead is a qdisc that is read.
type qdiscRead struct {
	*tcQdisc
	link meter.Rate
}

// sizes are options that change the length of packets.
const sizes = " | overhead <u16:overhead> | mpu <size:mpu> | linklayer <word:layer>"

// qdiscWords are the parts of a qdisc command. Values called left are left out with a note; those called lost
// cannot be expressed.
var qdiscWords = &routers.Reader[*qdiscRead]{Kinds: &kinds, Statements: []routers.Statement[*qdiscRead]{
	{Form: "estimator <word> <word>"},
	{Form: "root:root", Do: (*qdiscRead).take},
	{Form: "(ingress:hook | clsact:hook)", Do: (*qdiscRead).take},
	{Form: "parent <classid:parent>", Do: (*qdiscRead).take},
	{Form: "handle <handle:handle>", Do: (*qdiscRead).take},
	{Form: "stab {overhead <int:stab> | linklayer <word:layer> | mpu <word:stabmpu> | mtu <word:left> | tsize <word:left>}", Do: (*qdiscRead).take},
	{Form: "htb:kind {default~ <minor:default> | r2q~ <number:r2q> | debug~ <word:left> | direct_qlen~ <word:left>" +
		" | offload:lost}", Do: (*qdiscRead).take},
	{Form: "tbf:kind {rate <word:rate> | (burst~ | buffer | maxburst) <size:tbfburst> | limit~ <size:bytes>" +
		" | latency~ <time:latency> | peakrate~ <word:left> | mtu <word:left> | minburst <word:left>" + sizes + "}", Do: (*qdiscRead).take},
	{Form: "(fq_codel:kind | codel:kind) {limit <number:packets> | target <time:target> | interval <time:interval>" +
		" | (ecn:ecn | noecn:ecn) | flows <word:left> | quantum <word:left> | memory_limit <word:left>" +
		" | drop_batch <word:left> | ce_threshold <word:lost>}", Do: (*qdiscRead).take},
	{Form: "sfq:kind {limit <number:packets> | perturb <word:left> | quantum <word:left> | divisor <word:left>" +
		" | flows <word:left> | depth <word:left> | headdrop:headdrop | redflowlimit <word:lost> | min <word:lost>" +
		" | max <word:lost> | avpkt <word:lost> | burst <word:lost> | probability <word:lost> | ecn:lost | harddrop:lost}", Do: (*qdiscRead).take},
	{Form: "(pfifo:kind | pfifo_fast:kind) {limit~ <size:packets>}", Do: (*qdiscRead).take},
	{Form: "bfifo:kind {limit~ <size:bytes>}", Do: (*qdiscRead).take},
	{Form: "prio:kind {bands <u8:bands> | priomap <number>...}", Do: (*qdiscRead).take},
	{Form: "cake:kind [<cake>...]", Do: (*qdiscRead).take},
	{Form: "<foreign> [<word>...]", Do: func(_ *qdiscRead, l routers.Line, _ form.Values) error {
		return fmt.Errorf("qdisc %s cannot be expressed", l.Words[0])
	}},
}}

// take takes the values of a part of the command.
func (q *qdiscRead) take(l routers.Line, v form.Values) (err error) {
	for _, x := range v {
		option := ""
		if x.At > 0 {
			option = l.Words[x.At-1]
		}
		switch value := x.Value.(type) {
		case cakeOption:
			err = value(q)
		case time.Duration:
			*map[string]*time.Duration{
				"latency": &q.latency, "target": &q.codel.Target, "interval": &q.codel.Interval,
			}[x.Name] = value
		case int:
			q.length.stab = value
		case int64:
			q.takeSize(x.Name, value, option+" "+x.Words[0])
		case uint32:
			q.takeNumber(x.Name, value)
		case string:
			err = q.takeWord(x.Name, value, option)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// takeSize takes a number of bytes or packets, which tc reads alike: 1k is 1024 packets.
func (q *qdiscRead) takeSize(name string, n int64, text string) {
	switch name {
	case "bytes":
		q.bytes = n
	case "packets":
		q.packets = n
	case "mpu":
		q.length.mpu = int(n)
	case "tbfburst":
		q.remarks = append(q.remarks,
			text+" is left out: tbf sends as much at once after a pause, and our queue sends at its rate")
		q.burst = n
	}
}

func (q *qdiscRead) takeNumber(name string, n uint32) {
	switch name {
	case "parent":
		q.parent = n
	case "handle":
		q.handle = n
	case "default":
		q.defaultClass = n
	case "r2q":
		q.perQuantum = n
	case "packets":
		q.packets = int64(n)
	case "bands":
		q.bands = n
	case "overhead":
		q.length.overhead = int(n)
	}
}

func (q *qdiscRead) takeWord(name, word, option string) (err error) {
	switch name {
	case "root":
		q.parent = tcRoot
	case "hook":
		q.parent, q.handle, q.kind = tcIngress, ingressHandle, word
	case "kind":
		if q.kind != word { // otherwise the command changes a qdisc
			q.kind = word
			q.defaults()
		}
	case "rate":
		q.rate, err = positiveRate(word, q.link)
	case "ecn":
		q.ecn = word == "ecn"
	case "headdrop":
		q.remarks = append(q.remarks,
			"headdrop is left out: ours always drops the first packet of the longest flow")
	case "left":
		q.remarks = append(q.remarks, option+" "+word+" is left out")
	case "lost":
		if word != "offload" && word != "ecn" && word != "harddrop" {
			word = option + " " + word
		}
		q.lost = append(q.lost, word)
	case "stabmpu":
		if word != "0" {
			q.lost = append(q.lost, "stab mpu: a size table counts in cells of several bytes")
		}
	case "layer":
		if word != "ethernet"[:min(len(word), len("ethernet"))] {
			q.lost = append(q.lost, "linklayer "+word+": it rounds packets to cells of 53 bytes")
		}
	}
	return err
}

// qdisc reads a qdisc command after its verb.
func (t *tcImport) qdisc(d *tcDevice, c tcCommand, verb string, words routers.Line) error {
	q := &qdiscRead{&tcQdisc{tcCommand: c}, t.link}
	if err := qdiscWords.ReadEach(q, words); err != nil {
		return err
	}
	same := func(o *tcQdisc) bool {
		return o.parent == q.parent && q.parent != 0 || o.handle == q.handle && q.handle != 0
	}
	switch {
	case q.parent == 0 && q.handle == 0:
		return errors.New("root, parent or ingress is missing")
	case verb == "delete":
		d.remove(q.parent, same)
		return nil
	case q.kind == "":
		return errors.New("the kind of the qdisc is missing")
	case q.kind == "ingress" || q.kind == "clsact":
		return nil
	case q.rate == nil && q.kind == "tbf":
		return errors.New("rate is missing")
	case q.kind == "tbf" && q.bytes == 0 && q.latency == 0:
		return errors.New("limit or latency is missing")
	}
	moved := func(o *tcQdisc) bool {
		return o.handle == q.handle && q.handle != 0 && o.parent != q.parent && q.parent != 0
	}
	if o := slices.IndexFunc(d.qdiscs, moved); o >= 0 {
		d.note(c.Line, "tc rejects it, and it has no effect: its handle is that of the qdisc in line %d", d.qdiscs[o].Number)
		return nil
	}
	i := slices.IndexFunc(d.qdiscs, same)
	if i >= 0 && verb != "add" {
		old := d.qdiscs[i]
		fresh := verb == "replace" && q.handle != 0 && q.handle != old.handle || q.handle == 0 && q.kind != old.kind
		switch {
		case fresh:
			d.destroy(old)
			d.qdiscs = append(d.qdiscs, q.tcQdisc)
			i, q.parent = len(d.qdiscs)-1, cmp.Or(q.parent, old.parent)
		case q.kind != old.kind || q.kind == "htb":
			d.note(c.Line, "tc rejects it, and it has no effect: the qdisc from line %d cannot be changed so", old.Number)
			return nil
		}
	}
	if i >= 0 && d.qdiscs[i] != q.tcQdisc && verb != "add" && slices.Contains(changeable, q.kind) {
		changed := *d.qdiscs[i]
		changed.tcCommand = c
		if changed.limitFrom != "" {
			changed.bytes, changed.limitFrom = 0, ""
		}
		if q.length.network {
			changed.length.overhead = 0 // names of overheads are added up
		}
		q.tcQdisc = &changed
		_ = qdiscWords.ReadEach(q, words) // without an error before
	}
	if q.kind == "cake" && q.bytes == 0 {
		q.cakeLimit()
	}
	if q.kind == "sfq" && q.packets > sfqDepth {
		q.remarks = append(q.remarks, fmt.Sprintf("sfq keeps at most %d packets of a flow, and here the limit is for all flows", sfqDepth))
	}
	switch {
	case i < 0 && verb == "change":
		return errors.New("the interface has no qdisc there to change")
	case i < 0:
		d.qdiscs = append(d.qdiscs, q.tcQdisc)
		return nil
	case verb == "add":
		return fmt.Errorf("the interface has another qdisc there, from line %d", d.qdiscs[i].Number)
	}
	q.parent, q.handle = cmp.Or(q.parent, d.qdiscs[i].parent), cmp.Or(q.handle, d.qdiscs[i].handle)
	d.qdiscs[i] = q.tcQdisc
	return nil
}

const sfqDepth = 127 // packets of a flow (SFQ_MAX_DEPTH in net/sched/sch_sfq.c)

// changeable are the kinds that keep the options which a change, or replace with the same kind, leaves out.
var changeable = []string{"cake", "fq_codel", "codel", "sfq", "pfifo", "bfifo"}

// destroy removes a qdisc with its classes, the qdiscs below these, and its filters.
func (d *tcDevice) destroy(q *tcQdisc) {
	inside := func(id uint32) bool { return q.handle != 0 && id != tcRoot && id&majorMask == q.handle }
	d.qdiscs = slices.DeleteFunc(d.qdiscs, func(o *tcQdisc) bool { return o == q || inside(o.parent) })
	d.classes = slices.DeleteFunc(d.classes, func(k *tcClass) bool { return inside(k.id) })
	d.filters = slices.DeleteFunc(d.filters, func(f *tcFilter) bool { return inside(f.parent) })
}

// remove handles tc qdisc del.
func (d *tcDevice) remove(parent uint32, same func(*tcQdisc) bool) {
	d.qdiscs = slices.DeleteFunc(d.qdiscs, same)
	ingress := parent == tcIngress
	d.filters = slices.DeleteFunc(d.filters, func(f *tcFilter) bool {
		return ingress == (f.parent&majorMask == ingressHandle && f.parent != tcRoot) &&
			(ingress || parent == tcRoot)
	})
	if parent == tcRoot {
		d.qdiscs, d.classes = nil, nil
	}
}

// defaults sets the kernel's defaults of a kind (net/sched/sch_*.c).
func (q *tcQdisc) defaults() {
	q.perQuantum = defaultR2Q
	q.bands = 3
	codel := queue.CoDel{Target: 5 * time.Millisecond, Interval: 100 * time.Millisecond}
	switch q.kind {
	case "fq_codel":
		q.packets, q.fair, q.ecn, q.codel = 10240, byFlow, true, codel
	case "codel":
		q.packets, q.codel = 1000, codel
	case "cake":
		q.fair, q.ecn, q.codel = cakeFlows[tripleIsolate], true, codel
		q.tins, q.isolate = "diffserv3, the default of cake", "triple-isolate, the default of cake"
	case "sfq":
		q.packets, q.fair = 127, byFlow
	}
}
