package policyfile

import (
	"fmt"
	"math/big"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/a-seed-32e5a53f/shaper/meter"
)

// ratePolicy is the policy of --rate: one queue for everything, with control
// traffic before it. The meter bounds control traffic, so that a sender cannot
// get around the rate by marking packets CS6; the excess is queued like the rest.
// DHCP, BGP, DHCPv6, LDP, BFD and multihop BFD are known by their ports (IANA).
const ratePolicy = `
classes:
  - {name: control-dscp, match: {dscp: [cs6, cs7]}, meter: control, red: {queue: all}}
  - {name: control-proto, match: {proto: [igmp, icmpv6, eigrp, ospf, pim, vrrp]}, meter: control, red: {queue: all}}
  - {name: control-dport, match: {dport: [67-68, 179, 546-547, 646, 3784, 4784]}, meter: control, red: {queue: all}}
  - {name: control-sport, match: {sport: 179}, meter: control, red: {queue: all}}
  - {name: all, green: {queue: all}}
meters:
  control: {type: token-bucket, rate: %dbit, burst: 64KiB}
queues:
  all: {rate: %q, limit: %dms, codel: {target: %dms, interval: %dms}, ecn: true}
`

const (
	// leastRate is the rate whose target needs the longest interval that CoDel
	// may have, 3 s.
	leastRate = 16_000 // bit/s

	// The kernel hands down up to 64 KiB of TCP at once, at any rate where the RTT
	// is short. CoDel must not take one of them that is sent, and one behind it, for
	// a bad queue, or TCP does not reach the rate; the limit leaves room for four.
	// That would be long at low rates: there it is slowTarget and slowLimit.
	rateGSO    = 64 << 10 // bytes
	slowTarget = 250 * time.Millisecond
	slowLimit  = 500 * time.Millisecond

	// At any rate there is room for a GSO packet, the headers of its 45 segments,
	// and eight packets of an MTU.
	rateRoom = 80 << 10 // bytes

	rateMTU      = 1500 // bytes
	rateLimit    = 100 * time.Millisecond
	codelTarget  = 5 * time.Millisecond   // RFC 8289 §4.4
	codelNeed    = 100 * time.Millisecond // an interval, RFC 8289 §4.3
	controlShare = 20                     // part of the rate that control traffic has
)

// byRate reads the policy of --rate, whose faults are at n.
func (l *loader) byRate(n *yaml.Node) *yaml.Node {
	r, ok := parsed(l, n, "rate", ParseRate)
	if !ok {
		return nil
	}
	if r.Cmp(meter.BitRate(leastRate)) < 0 {
		l.fail(n, "rate: %s is below %v, the minimum of --rate: use --queue or a policy file", n.Value, meter.BitRate(leastRate))
		return nil
	}
	limit := max(rateLimit, lasts(rateRoom, r), min(lasts(4*rateGSO, r), slowLimit))
	target := max(codelTarget, lasts(2*rateMTU, r), min(lasts(2*rateGSO, r), slowTarget))
	interval := max(codelNeed, 2*target)

	var doc yaml.Node
	text := fmt.Sprintf(ratePolicy, max(bitsOf(r)/controlShare, leastRate), n.Value, limit.Milliseconds(), target.Milliseconds(), interval.Milliseconds())
	if err := yaml.Unmarshal([]byte(text), &doc); err != nil {
		panic(err) // the text is ours, and the rate is one
	}
	root := doc.Content[0]
	moved(root, n)
	return root
}

// lasts is how long bytes take at a rate, rounded up to a ms.
func lasts(bytes int64, r meter.Rate) time.Duration {
	ns := big.NewInt(bytes)
	ns.Mul(ns, big.NewInt(int64(r.Period)))
	ms := new(big.Int).Mul(big.NewInt(r.Bytes), big.NewInt(int64(time.Millisecond)))
	ns.Add(ns, ms).Sub(ns, big.NewInt(1)).Quo(ns, ms)
	return time.Duration(ns.Int64()) * time.Millisecond
}

// bitsOf is a rate in bit/s, rounded down, or the most that an int64 holds.
func bitsOf(r meter.Rate) int64 {
	bits := new(big.Int).Mul(big.NewInt(r.Bytes), big.NewInt(8e9))
	if bits.Quo(bits, big.NewInt(int64(r.Period))); bits.IsInt64() {
		return bits.Int64()
	}
	return 1<<63 - 1
}

// moved gives all nodes of a tree the place of another.
func moved(n, to *yaml.Node) {
	n.Line, n.Column = to.Line, to.Column
	for _, c := range n.Content {
		moved(c, to)
	}
}
