package tc

import (
	"slices"
	"strconv"
	"strings"
	"time"

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

// knownLengths are the queue lengths of other kinds of interfaces, by the beginning of their usual names
// (drivers/net/ifb.c, tun.c and ppp/ppp_generic.c).
var knownLengths = map[string]int64{"ifb": 32, "tun": 500, "tap": 500, "ppp": 3}

// knownLength returns the queue length that an interface has by its name, or 0.
func knownLength(device string) int64 { return knownLengths[device[:min(len(device), 3)]] }

const defaultR2Q = 10 // r2q of htb (htb_init in net/sched/sch_htb.c)

// qdisc reads a qdisc command after its verb.
func (t *tcImport) qdisc(d *tcDevice, c tcCommand, verb string, a *tcArgs) {
	q := &tcQdisc{tcCommand: c}
	for q.kind == "" && a.more() {
		switch w := a.next(); {
		case w == "root":
			q.parent = tcRoot
		case w == "ingress" || w == "clsact":
			q.parent, q.handle, q.kind = tcIngress, ingressHandle, w
		case w == "parent":
			q.parent = a.handle()
		case w == "handle":
			q.handle = a.handle()
		case w == "stab":
			q.stab(a)
		case w == "estimator":
			a.next()
			a.next()
		default:
			q.kind = w
		}
	}
	if a.err != nil {
		return
	}
	if q.parent == 0 && q.handle == 0 {
		a.fail("root, parent or ingress is missing")
		return
	}
	same := func(o *tcQdisc) bool {
		return o.parent == q.parent && q.parent != 0 || o.handle == q.handle && q.handle != 0
	}
	if verb == "delete" {
		d.remove(q.parent, same)
		return
	}
	if q.kind == "" {
		a.fail("the kind of the qdisc is missing")
		return
	}
	if q.kind == "ingress" || q.kind == "clsact" {
		return
	}
	if q.options(a, t); a.err != nil {
		return
	}
	if i := slices.IndexFunc(d.qdiscs, same); i >= 0 {
		if verb == "add" {
			a.fail("the interface has another qdisc there, from line %d", d.qdiscs[i].Number)
			return
		}
		if q.parent == 0 {
			q.parent = d.qdiscs[i].parent
		}
		d.qdiscs[i] = q
		return
	}
	d.qdiscs = append(d.qdiscs, q)
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

// stab reads a size table. Only its overhead is exact.
func (q *tcQdisc) stab(a *tcArgs) {
	for {
		switch w := a.peek(); w {
		case "overhead":
			a.next()
			q.length.stab = value(a, strconv.Atoi)
		case "linklayer":
			a.next()
			q.layer(a)
		case "mpu", "mtu", "tsize":
			a.next()
			if n := a.next(); w == "mpu" && n != "0" {
				q.lost = append(q.lost, "stab mpu: a size table counts in cells of several bytes")
			}
		default:
			return
		}
	}
}

// layer reads the value of linklayer.
func (q *tcQdisc) layer(a *tcArgs) {
	if l := a.next(); complete(l, []string{"ethernet"}) == "" {
		q.lost = append(q.lost, "linklayer "+l+": it rounds packets to cells of 53 bytes")
	}
}

// size reads options of the length, which many kinds have.
func (q *tcQdisc) size(option string, a *tcArgs) bool {
	switch option {
	case "overhead":
		q.length.overhead = int(a.number(16))
	case "mpu":
		q.length.mpu = int(a.size())
	case "linklayer":
		q.layer(a)
	default:
		return false
	}
	return true
}

// kinds of qdiscs, with the functions to read an option. They return false for an unknown one.
var tcKinds = map[string]func(q *tcQdisc, option string, a *tcArgs, t *tcImport) bool{
	"htb":        (*tcQdisc).htb,
	"tbf":        (*tcQdisc).tbf,
	"fq_codel":   (*tcQdisc).fqCodel,
	"codel":      (*tcQdisc).fqCodel,
	"cake":       (*tcQdisc).cake,
	"sfq":        (*tcQdisc).sfq,
	"pfifo":      (*tcQdisc).fifo,
	"bfifo":      (*tcQdisc).fifo,
	"pfifo_fast": (*tcQdisc).fifo,
	"prio":       (*tcQdisc).prio,
}

// options reads the options of a qdisc.
func (q *tcQdisc) options(a *tcArgs, t *tcImport) {
	read := tcKinds[q.kind]
	if read == nil {
		a.fail("qdisc %s cannot be expressed", q.kind)
		return
	}
	q.defaults()
	for a.more() {
		if w := a.next(); !read(q, w, a, t) {
			a.unknown(w)
		}
	}
	if q.rate == nil && q.kind == "tbf" {
		a.fail("rate is missing")
	}
	if q.kind == "tbf" && q.bytes == 0 && q.latency == 0 {
		a.fail("limit or latency is missing")
	}
	if q.kind == "cake" && q.bytes == 0 { // cake_reconfigure in the kernel's sch_cake.c
		q.bytes = 4 << 20
		if q.rate != nil {
			us := q.codel.Interval.Microseconds()
			q.bytes = max(q.bytes, min(q.rate.bytes/1e6, 1<<30)*us*4+q.rate.bytes%1e6*us/1e6*4)
		}
		q.limitFrom = "cake's default: the larger of 4 MiB and the bytes of 4 intervals"
	}
}

// defaults sets the kernel's defaults of a kind (net/sched/sch_*.c).
func (q *tcQdisc) defaults() {
	q.perQuantum = defaultR2Q
	q.codel = queue.CoDel{Target: 5 * time.Millisecond, Interval: 100 * time.Millisecond}
	switch q.kind {
	case "fq_codel":
		q.packets, q.fair, q.ecn = 10240, byFlow, true
	case "codel":
		q.packets = 1000
	case "cake":
		q.fair, q.ecn = cakeFlows[tripleIsolate], true
		q.tins, q.isolate = "diffserv3, the default of cake", "triple-isolate, the default of cake"
	case "sfq":
		q.packets, q.fair, q.codel = 127, byFlow, queue.CoDel{}
	case "pfifo", "pfifo_fast":
		q.codel = queue.CoDel{}
	default:
		q.codel = queue.CoDel{}
	}
	q.bands = 3
}

func (q *tcQdisc) htb(option string, a *tcArgs, _ *tcImport) bool {
	switch {
	case complete(option, []string{"default"}) != "":
		q.defaultClass = value(a, parseTCMinor)
	case complete(option, []string{"r2q"}) != "":
		q.perQuantum = a.number(32)
	case complete(option, []string{"debug", "direct_qlen"}) != "":
		q.remarks = append(q.remarks, option+" "+a.next()+" is left out")
	case option == "offload":
		q.lost = append(q.lost, "offload")
	default:
		return false
	}
	return true
}

// parseTCMinor reads the second number of a class, which is hexadecimal.
func parseTCMinor(s string) (uint32, error) {
	h, err := parseTCHandle(":" + strings.TrimPrefix(s, ":"))
	return h, err
}

func (q *tcQdisc) tbf(option string, a *tcArgs, t *tcImport) bool {
	switch {
	case option == "rate":
		q.rate = a.rate(t.link)
	case complete(option, []string{"burst"}) != "", option == "buffer", option == "maxburst":
		q.remarks = append(q.remarks,
			"burst "+a.next()+" is left out: tbf sends as much at once after a pause, and our queue sends at its rate")
	case complete(option, []string{"limit"}) != "":
		q.bytes = a.size()
	case complete(option, []string{"latency"}) != "":
		q.latency = a.time()
	case complete(option, []string{"peakrate"}) != "":
		q.remarks = append(q.remarks,
			"peakrate "+a.next()+" is left out: it limits bursts, and our queue sends none")
	case option == "mtu", option == "minburst":
		q.remarks = append(q.remarks, option+" "+a.next()+" is left out")
	default:
		return q.size(option, a)
	}
	return true
}

func (q *tcQdisc) fqCodel(option string, a *tcArgs, _ *tcImport) bool {
	switch option {
	case "limit":
		q.packets = int64(a.number(32))
	case "target":
		q.codel.Target = a.time()
	case "interval":
		q.codel.Interval = a.time()
	case "ecn":
		q.ecn = true
	case "noecn":
		q.ecn = false
	case "flows", "quantum", "memory_limit", "drop_batch":
		q.remarks = append(q.remarks, option+" "+a.next()+" is left out")
	case "ce_threshold":
		q.lost = append(q.lost, "ce_threshold "+a.next())
	default:
		return false
	}
	return true
}

func (q *tcQdisc) sfq(option string, a *tcArgs, _ *tcImport) bool {
	switch option {
	case "limit":
		q.packets = int64(a.number(32))
	case "perturb", "quantum", "divisor", "flows", "depth":
		q.remarks = append(q.remarks, option+" "+a.next()+" is left out")
	case "headdrop":
		q.remarks = append(q.remarks,
			"headdrop is left out: ours always drops the first packet of the longest flow")
	case "redflowlimit", "min", "max", "avpkt", "burst", "probability":
		q.lost = append(q.lost, option+" "+a.next())
	case "ecn", "harddrop":
		q.lost = append(q.lost, option)
	default:
		return false
	}
	return true
}

func (q *tcQdisc) fifo(option string, a *tcArgs, _ *tcImport) bool {
	if complete(option, []string{"limit"}) == "" {
		return false
	}
	n := a.size() // tc reads packets like bytes, so 1k is 1024 packets
	if q.kind == "bfifo" {
		q.bytes = n
	} else {
		q.packets = n
	}
	return true
}

func (q *tcQdisc) prio(option string, a *tcArgs, _ *tcImport) bool {
	switch option {
	case "bands":
		q.bands = a.number(8)
	case "priomap":
		for range 16 {
			if _, err := strconv.Atoi(a.peek()); err == nil {
				a.next()
			}
		}
	default:
		return false
	}
	return true
}
