package policyfile

import (
	"fmt"
	"math/big"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/a-seed-32e5a53f/shaper/meter"
)

// ratePolicyText is the policy of --rate: one fair queue for everything except control traffic,
// which is sent at once. Without customers, down is the rate at egress. A meter bounds control
// traffic, because a sender could otherwise bypass the rate by marking packets CS6; the excess is
// queued like the rest. The ports are those of DHCP, BGP, DHCPv6, LDP, BFD and multihop BFD (IANA).
const ratePolicyText = `
classes:
  - {name: control-dscp, match: {dscp: [cs6, cs7]}, meter: control, red: {queue: all}}
  - {name: control-proto, match: {proto: [igmp, icmpv6, eigrp, ospf, pim, vrrp]}, meter: control, red: {queue: all}}
  - {name: control-dport, match: {dport: [67-68, 179, 546-547, 646, 3784, 4784]}, meter: control, red: {queue: all}}
  - {name: control-sport, match: {sport: 179}, meter: control, red: {queue: all}}
  - {name: all, green: {queue: all}}
meters:
  control: {type: token-bucket, rate: %dbit, burst: 64KiB}
queues:
  all: {rate: {down: %q, up: %q}, limit: %dms, ecn: true}
`

const (
	// leastRate is the minimum of --rate, in bit/s. At lower rates CoDel's interval would
	// exceed its maximum of 3 s.
	leastRate = 16_000

	// rateRoom is the minimum limit, in bytes: a forwarded GSO packet, the headers of its 45
	// segments, and eight packets of the MTU.
	rateRoom = 80 << 10

	rateLimit   = 100 * time.Millisecond
	controlPart = 20 // control traffic gets 1/20 of the rate
)

// HasTwoRates reports whether the text of --rate has a rate for each direction.
func HasTwoRates(text string) bool { return strings.Contains(text, "=") }

// twoRates returns the text of --rate with a rate for each direction.
func twoRates(egress, ingress string) string { return "egress=" + egress + ",ingress=" + ingress }

// lineRates returns the nodes of the rates at egress and ingress. ok is false after an error.
func (l *loader) lineRates(n *yaml.Node) (pair [2]*yaml.Node, ok bool) {
	if !HasTwoRates(n.Value) {
		return [2]*yaml.Node{n, n}, true
	}
	words := mappingNode(n.Line)
	for _, w := range splitWords(n.Value, n.Line) {
		l.assign(words, w)
	}
	return l.directionRates(words, twoRates("20mbit", "100mbit"))
}

// directionRates returns the values of a mapping with egress and ingress, such as example.
func (l *loader) directionRates(n *yaml.Node, example string) (pair [2]*yaml.Node, ok bool) {
	return l.ratePair(n, "rate", "egress", "ingress", example+", or one rate for both")
}

// wholeRate reads a rate of --rate, and returns nil after an error, such as for a rate below the minimum.
func (l *loader) wholeRate(n *yaml.Node) *meter.Rate {
	r, ok := parsed(l, n, "rate", ParseRate)
	switch {
	case !ok:
		return nil
	case r.Cmp(meter.BitRate(leastRate)) < 0:
		l.fail(n, "rate: %s is below %v, the minimum of --rate: use --queue or a policy file", n.Value,
			meter.BitRate(leastRate))
		return nil
	}
	return &r
}

// ratePolicy returns the nodes of the policy of --rate. Their place is the place of n.
func (l *loader) ratePolicy(n *yaml.Node) *yaml.Node {
	pair, ok := l.lineRates(n)
	if !ok {
		return nil
	}
	least := l.wholeRate(pair[0])
	other := least
	if pair[1] != pair[0] {
		other = l.wholeRate(pair[1])
	}
	if least == nil || other == nil {
		return nil
	}
	if other.Cmp(*least) < 0 {
		least = other
	}
	limit := max(rateLimit, timeOf(rateRoom, *least))

	var doc yaml.Node
	text := fmt.Sprintf(ratePolicyText, max(bitRate(*least)/controlPart, leastRate),
		pair[0].Value, pair[1].Value, limit.Milliseconds())
	if err := yaml.Unmarshal([]byte(text), &doc); err != nil {
		panic(err) // the text is constant, and the rate was parsed
	}
	root := doc.Content[0]
	setPlace(root, n)
	return root
}

// timeOf returns the time of a number of bytes at a rate, rounded up to a ms.
func timeOf(bytes int64, r meter.Rate) time.Duration {
	ns := big.NewInt(bytes)
	ns.Mul(ns, big.NewInt(int64(r.Period)))
	ms := new(big.Int).Mul(big.NewInt(r.Bytes), big.NewInt(int64(time.Millisecond)))
	ns.Add(ns, ms).Sub(ns, big.NewInt(1)).Quo(ns, ms)
	return time.Duration(ns.Int64()) * time.Millisecond
}

// bitRate returns a rate in bit/s, rounded down, but at most the largest int64.
func bitRate(r meter.Rate) int64 {
	bits := new(big.Int).Mul(big.NewInt(r.Bytes), big.NewInt(8e9))
	if bits.Quo(bits, big.NewInt(int64(r.Period))); bits.IsInt64() {
		return bits.Int64()
	}
	return 1<<63 - 1
}

// setPlace gives all nodes of a tree the place of another node.
func setPlace(tree, to *yaml.Node) {
	tree.Line, tree.Column = to.Line, to.Column
	for _, c := range tree.Content {
		setPlace(c, to)
	}
}
