package tc

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// cakeRTTs are the presets of rtt (tc/q_cake.c in iproute2).
var cakeRTTs = map[string]time.Duration{
	"datacentre": 100 * time.Microsecond, "lan": time.Millisecond, "metro": 10 * time.Millisecond,
	"regional": 30 * time.Millisecond, "internet": 100 * time.Millisecond, "oceanic": 300 * time.Millisecond,
	"satellite": time.Second, "interplanetary": 1000 * time.Second,
}

// cakeOverheads are names of overheads, in bytes per packet (tc/q_cake.c in iproute2).
var cakeOverheads = map[string]struct{ overhead, mpu int }{
	"pppoe-ptm": {30, 0}, "bridged-ptm": {22, 0}, "ethernet": {38, 84}, "ether-vlan": {4, 0},
	"docsis": {18, 64},
}

// fairness is the keys of the hosts and of the flows that share a queue evenly.
type fairness struct{ hosts, flows dataplane.Key }

// byFlow is the fairness of fq_codel and sfq.
var byFlow = fairness{flows: dataplane.Key{By: dataplane.ByFlow}}

// tripleIsolate is fairness to the hosts of both sides. A policy has those of one side.
const tripleIsolate = "triple-isolate"

// cakeFlows are the modes of cake.
var cakeFlows = map[string]fairness{
	"flowblind": {}, "flows": byFlow, "srchost": {flows: dataplane.Key{By: dataplane.BySrc}},
	"dsthost":      {flows: dataplane.Key{By: dataplane.ByDst}},
	"hosts":        {flows: dataplane.Key{By: dataplane.ByHosts}},
	"dual-srchost": {dataplane.Key{By: dataplane.BySrc}, byFlow.flows},
	"dual-dsthost": {dataplane.Key{By: dataplane.ByDst}, byFlow.flows},
	tripleIsolate:  {dataplane.Key{By: dataplane.ByDst}, byFlow.flows},
}

// cakeTins are the values of tins: classes by DSCP. besteffort has one.
var cakeTins = []string{"besteffort", "diffserv3", "diffserv4", "diffserv8", "diffserv", "precedence"}

// Words of cake without effect on the fate of packets, or whose effect is lost.
var (
	cakePlain = []string{
		"unlimited", "raw", "wash", "nat", "nonat", "nowash", "split-gso", "no-split-gso", "noatm", "egress",
		"no-ack-filter", "via-ethernet",
	}
	cakeLost = []string{
		"fwmark", "atm", "ptm", "ingress", "ack-filter", "ack-filter-aggressive", "autorate-ingress", "conservative",
		"ipoa-vcmux", "ipoa-llcsnap", "bridged-vcmux", "bridged-llcsnap", "pppoa-vcmux", "pppoa-llc",
		"pppoe-vcmux", "pppoe-llcsnap",
	}
)

// cakeOption is an option of cake that was read.
type cakeOption func(q *qdiscRead) error

// readCake reads an option of cake.
func readCake(words []string) (any, int, error) {
	word, n := words[0], 1
	argument := ""
	if slices.Contains([]string{"bandwidth", "rtt", "memlimit", "overhead", "mpu", "fwmark"}, word) {
		if len(words) == 1 {
			return nil, 0, fmt.Errorf("the value of %s is missing", word)
		}
		argument, n = words[1], 2
	}
	option := cakeOption(func(q *qdiscRead) error { return q.cake(word, argument) })
	_, flow := cakeFlows[word]
	_, rtt := cakeRTTs[word]
	_, overhead := cakeOverheads[word]
	if argument == "" && !flow && !rtt && !overhead && !slices.Contains(cakeTins, word) &&
		!slices.Contains(cakeLost, word) && !slices.Contains(cakePlain, word) {
		return nil, 0, fmt.Errorf("%q is not understood", word)
	}
	return option, n, nil
}

// cake takes an option of cake.
func (q *qdiscRead) cake(option, argument string) (err error) {
	if rtt, ok := cakeRTTs[option]; ok {
		q.codel = cakeCoDel(rtt)
	}
	if o, ok := cakeOverheads[option]; ok {
		q.length.network = true
		q.length.overhead += o.overhead
		q.length.mpu = cmp.Or(o.mpu, q.length.mpu)
	}
	if flow, ok := cakeFlows[option]; ok {
		q.fair, q.isolate = flow, ""
		if option == tripleIsolate {
			q.isolate = option
		}
	}
	if slices.Contains(cakeTins, option) {
		q.tins = option
	}
	if slices.Contains(cakeLost, option) {
		q.lost = append(q.lost, strings.TrimSpace(option+" "+argument))
	}
	switch option {
	case "bandwidth":
		q.rate, err = positiveRate(argument, q.link)
	case "unlimited":
		q.rate = nil
	case "rtt":
		var rtt time.Duration
		rtt, err = parseTCTime(argument)
		q.codel = cakeCoDel(rtt)
	case "memlimit":
		q.bytes, err = parseTCSize(argument)
	case "overhead":
		var n int
		n, err = strconv.Atoi(argument)
		q.length.network, q.length.overhead = true, n
	case "mpu":
		q.length.mpu, err = strconv.Atoi(argument)
	case "raw":
		q.length = tcLength{stab: q.length.stab}
	case "wash", "nowash":
		q.wash = option == "wash"
	case "no-ack-filter":
		q.withdraw("ack-filter", "ack-filter-aggressive")
	case "egress":
		q.withdraw("ingress")
	case "noatm":
		q.withdraw("atm", "ptm")
	case "nat", "nonat":
		q.nat = option == "nat"
	case "pppoe-ptm", "bridged-ptm":
		q.lost = append(q.lost, "the 64b/65b coding of "+option)
	}
	return err
}

// withdraw removes options that a later one switches off.
func (q *tcQdisc) withdraw(options ...string) {
	q.lost = slices.DeleteFunc(q.lost, func(o string) bool { return slices.Contains(options, o) })
}

// cakeCoDel returns the CoDel of an RTT. Its target is a twentieth of it.
func cakeCoDel(rtt time.Duration) queue.CoDel {
	return queue.CoDel{Target: max(rtt/20, time.Microsecond), Interval: rtt}
}

// cakeCoDel returns the CoDel of cake at its rate: a slow one needs the time of 1.5 packets (cake_set_rate
// in the kernel's sch_cake.c).
func (q *tcQdisc) cakeCoDel() queue.CoDel {
	c := q.codel
	if q.rate == nil || q.rate.bytes == 0 {
		return c
	}
	packets := time.Duration(fullFrame * int64(time.Second) * 3 / 2 / q.rate.bytes)
	target := max(c.Target, packets)
	return queue.CoDel{Target: target, Interval: max(c.Interval+target-c.Target, 2*target)}
}

// cakeLimit sets the default limit of cake (cake_reconfigure in the kernel's sch_cake.c).
func (q *tcQdisc) cakeLimit() {
	q.limitFrom = fmt.Sprintf("cake's default without bandwidth: %d packets of %d bytes", cakePackets, fullFrame)
	if q.bytes = cakePackets * fullFrame; q.rate == nil {
		return
	}
	us := q.codel.Interval.Microseconds()
	q.bytes = min(q.bytes, max(4<<20, min(q.rate.bytes/1e6, 1<<30)*us*4+q.rate.bytes%1e6*us/1e6*4))
	q.limitFrom = fmt.Sprintf("cake's default: the bytes of 4 intervals, at least 4 MiB and at most %d packets of %d bytes",
		cakePackets, fullFrame)
}

const cakePackets = 10240 // cake_init

// cakeNotes notes the modes of cake that a policy does not have.
func (b *tcQueues) cakeNotes(q *tcQdisc) {
	if q.tins != "besteffort" {
		b.Note(q.Line, "%s: the tins by DSCP are left out, and all packets share one queue (besteffort says that)", q.tins)
	}
	if q.isolate != "" {
		b.Note(q.Line, "%s: the destinations get the same each, and not the sources too (dual-dsthost says that)",
			q.isolate)
	}
	if q.nat && q.fair != (fairness{}) && q.fair != byFlow {
		b.Note(q.Line, "nat: hosts behind NAT are told apart by the addresses in the packet only")
	}
	if q.wash && q.parent != tcRoot {
		b.Cannot(q.Line, "wash below a class")
	}
}
