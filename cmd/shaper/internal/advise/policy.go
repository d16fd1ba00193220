package advise

import (
	"fmt"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// gsoMax is the default maximum size of a GSO packet in the kernel, in bytes
// (GSO_LEGACY_MAX_SIZE).
const gsoMax = 65536

// mtu is the MTU of Ethernet, bytes.
const mtu = 1500

// control are the classes before the policer. Lost routing or neighbor discovery costs more than
// it saves.
const control = `classes:
  - name: control                # never dropped: ICMP and routing protocols
    match: {proto: [icmp, icmpv6, ospf, vrrp, pim, 2, 88]}
  - name: sessions               # BGP, LDP, BFD
    match: {dport: [179, 646, 3784]}
`

// recommend adds the policy, unless the packets and the RTT tell too little.
func (a *Advice) recommend(o Options) {
	burst, why := int64(0), ""
	// Throttled TCP fills any bucket, so its packets do not tell which burst it needs.
	if a.Bursts != nil && a.Capture.Enough && !(a.Capture.TCP.Throttled && a.ClosedLoop != nil) {
		burst = a.Bursts.Meters[0].Params.(meter.TokenBucket).Burst
		why = "the smallest one with the wanted loss for the packets of the capture"
	}
	queued := ""
	limit := func(t *Target) time.Duration {
		return (t.Delay + time.Millisecond - 1).Truncate(time.Millisecond)
	}
	if a.ClosedLoop != nil {
		t := a.ClosedLoop.Target
		switch {
		case t.Burst == 0 && t.Delay == 0:
			a.warn("TCP does not reach %s, with any burst or queue", t.goal())
			return
		case t.Burst == 0:
			a.Policy = fmt.Sprintf("%s  - name: all\n    green: {queue: line}\nqueues:\n", control) +
				fmt.Sprintf("  # rate: as given\n  # limit: the smallest one with which TCP gets %s; no burst of a policer is enough\n",
					t.goal()) +
				fmt.Sprintf("  line: {rate: %v, limit: %v}\n", o.Rate, limit(t))
			return
		case t.Burst > burst:
			burst, why = t.Burst, fmt.Sprintf("the smallest one with which TCP gets %s", t.goal())
		}
		if t.Delay > 0 {
			queued = fmt.Sprintf("    # A queue of %s does so, too, and loses less: green: {queue: line}, and\n    # queues: {line: {rate: %v, limit: %v}}.\n",
				millis(limit(t)), o.Rate, limit(t))
		}
		if burst < a.ClosedLoop.BDP {
			a.warn("the burst is below the bandwidth-delay product, %s bytes: a single flow falls short of the rate",
				say.Grouped(a.ClosedLoop.BDP))
		}
	}
	if burst == 0 {
		return
	}
	a.Policy = fmt.Sprintf("%s  - name: all\n    # rate: as given\n    # burst: %s\n%s    meter: {type: token-bucket, rate: %v, burst: %d}\n",
		control, why, queued, o.Rate, burst)
	if burst < gsoMax {
		a.warn("the burst is smaller than a GSO packet: with TSO on, the kernel sends packets of up to %d bytes, which never fit: shaper run --gso-limit auto caps them",
			gsoMax)
	}
	if burst < mtu {
		a.warn("the burst is below the MTU, %d bytes: a full packet never fits (RFC 2697 §2)", mtu)
	}
}

// lengthKey returns the key of a policy for the rule by which lengths were counted; "" for the default.
func lengthKey(r dataplane.LengthRule) string {
	if r == (dataplane.LengthRule{}) {
		return ""
	}
	return fmt.Sprintf("length: {base: %v, overhead: %d, mpu: %d}\n", r.Base, r.Overhead, r.MPU)
}

func (a *Advice) warn(format string, args ...any) {
	a.Warnings = append(a.Warnings, fmt.Sprintf(format, args...))
}
