package tc

import (
	"slices"
	"strconv"
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
		"nowash", "split-gso", "no-split-gso", "noatm", "egress", "no-ack-filter", "via-ethernet",
	}
	cakeLost = []string{
		"atm", "ptm", "ingress", "ack-filter", "ack-filter-aggressive", "autorate-ingress", "conservative",
		"ipoa-vcmux", "ipoa-llcsnap", "bridged-vcmux", "bridged-llcsnap", "pppoa-vcmux", "pppoa-llc",
		"pppoe-vcmux", "pppoe-llcsnap",
	}
)

func (q *tcQdisc) cake(option string, a *tcArgs, t *tcImport) bool {
	if rtt, ok := cakeRTTs[option]; ok {
		q.cakeRTT(rtt)
		return true
	}
	if o, ok := cakeOverheads[option]; ok {
		q.length.network = true
		q.length.overhead += o.overhead
		q.length.mpu = max(q.length.mpu, o.mpu)
		if option == "pppoe-ptm" || option == "bridged-ptm" {
			q.lost = append(q.lost, "the 64b/65b coding of "+option)
		}
		return true
	}
	switch option {
	case "bandwidth":
		q.rate = a.rate(t.link)
	case "unlimited":
		q.rate = nil
	case "rtt":
		q.cakeRTT(a.time())
	case "memlimit":
		q.bytes = a.size()
	case "overhead":
		q.length.network = true
		q.length.overhead += value(a, strconv.Atoi)
	case "mpu":
		q.length.mpu = value(a, strconv.Atoi)
	case "raw":
		q.length = tcLength{stab: q.length.stab}
	case "wash":
		q.wash = true
	case "nat", "nonat":
		q.nat = option == "nat"
	case "fwmark":
		q.lost = append(q.lost, "fwmark "+a.next())
	default:
		flow, isFlow := cakeFlows[option]
		switch {
		case isFlow:
			q.fair, q.isolate = flow, ""
			if option == tripleIsolate {
				q.isolate = option
			}
		case slices.Contains(cakeTins, option):
			q.tins = option
		case slices.Contains(cakeLost, option):
			q.lost = append(q.lost, option)
		case !slices.Contains(cakePlain, option):
			return false
		}
	}
	return true
}

// cakeRTT sets the interval of CoDel. Its target is a twentieth of it.
func (q *tcQdisc) cakeRTT(rtt time.Duration) {
	q.codel = cakeCoDel(rtt)
}

func cakeCoDel(rtt time.Duration) queue.CoDel {
	return queue.CoDel{Target: max(rtt/20, time.Microsecond), Interval: rtt}
}

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
