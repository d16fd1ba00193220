package main

import (
	"encoding/binary"
	"flag"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/nettest"
)

// TestRandomPolicies replays captures through random policies and compares every row and the
// resulting capture with the reference model.
func TestRandomPolicies(t *testing.T) {
	t.Parallel()
	r, path := seededRand(t), filepath.Join(t.TempDir(), "policy.yaml")
	all := testCaptures(t)
	rows := 0
	for range *randomPolicyCount {
		policy := randomPolicy(r, "wan", "lan", "ap")
		if err := os.WriteFile(path, []byte(policy), 0o600); err != nil {
			t.Fatal(err)
		}
		capture := randomCapture(t, r)
		outputAgainstModel(t, policy, path, capture, dataplane.Egress)
		for _, capture := range []string{capture, all[r.IntN(len(all))], all[r.IntN(len(all))]} {
			rows += againstModel(t, policy, path, capture, dataplane.Egress)
			if t.Failed() {
				t.Fatal(policy)
			}
		}
	}
	if rows < 60**randomPolicyCount {
		t.Errorf("only %d rows were compared", rows)
	}
	t.Logf("%d rows were compared", rows)
}

// TestRandomQueues compares the eBPF program with the pipeline in Go for policies that queue
// many packets.
func TestRandomQueues(t *testing.T) {
	needRoot(t)
	t.Parallel()
	r := seededRand(t)
	rows := 0
	policies := max(*randomPolicyCount/10, 2)
	for range policies {
		policy := randomPolicy(r)
		rows += sameByBoth(t, policy, randomCapture(t, r))
		if t.Failed() {
			t.Fatal(policy)
		}
	}
	if rows < 60*policies {
		t.Errorf("only %d rows were compared", rows)
	}
	t.Logf("%d rows were compared", rows)
}

// randomPolicyCount is the number of random policies of a test.
var randomPolicyCount = flag.Int("policies", map[bool]int{false: 15, true: 60}[nettest.Deep()],
	"random policies to test")

// seededRand returns a random source and logs its seed. SHAPER_SEED repeats a run.
func seededRand(t *testing.T) *rand.Rand {
	seed := uint64(time.Now().UnixNano())
	if n, err := strconv.ParseUint(os.Getenv("SHAPER_SEED"), 10, 64); err == nil {
		seed = n
	}
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

// randomCapture writes a capture of bursts and returns its path. Some packets are ECN-capable
// or have a color in their DSCP.
func randomCapture(t *testing.T, r *rand.Rand) string {
	t.Helper()
	return burstCapture(t, r, func(size int) (frame []byte, wire int) {
		dscp := []byte{0, 10, 12, 14, 46}[r.IntN(5)]
		frame = append(make([]byte, 12), 8, 0, 0x45, dscp<<2|byte(r.IntN(4)))
		frame = binary.BigEndian.AppendUint16(frame, uint16(size))
		fragment := []byte{0, 0, 0, 0, 0x20, 0x40}[r.IntN(6)]
		frame = append(frame, 0, 0, fragment, byte(r.IntN(10)/9), 64, []byte{1, 6, 17}[r.IntN(3)], 0, 0, 192,
			0, 2, byte(r.IntN(4)), 203, 0, 113, 1)
		frame = binary.BigEndian.AppendUint16(frame, uint16(r.Uint32()))
		return append(frame, 0, 53, 0, 0, 0, 0), 14 + size
	})
}

// burstCapture writes a capture of bursts. next returns the headers of a packet whose IP packet
// should have the given size in bytes, and the length of its frame.
func burstCapture(t *testing.T, r *rand.Rand, next func(size int) (frame []byte, wire int)) string {
	t.Helper()
	little := binary.LittleEndian
	raw := little.AppendUint32(nil, 0xa1b23c4d) // timestamps in ns
	raw = append(raw, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0)
	fcs := 4 * r.IntN(2)
	// Ethernet, with the length of the FCS
	raw = append(raw, 0xff, 0xff, 0, 0, 1, 0, 0, byte(fcs)<<3|byte(fcs))
	now := int64(1e18)
	for range 100 + r.IntN(900) {
		switch r.IntN(100) {
		default: // at the same time as the previous packet
		case 0:
			now += r.Int64N(300e6)
		case 1:
			now -= r.Int64N(3e6)
		case 2, 3, 4, 5, 6, 7, 8, 9:
			now += r.Int64N(1000)
		case 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29:
			now += r.Int64N(3e6)
		}
		size := 28 + r.IntN(1473)
		switch r.IntN(10) {
		case 0:
			size = 1501 + r.IntN(9000)
		case 1, 2, 3:
			size = 1500
		}
		packet, wire := next(size)
		if r.IntN(3) == 0 { // not truncated
			packet = append(packet, make([]byte, wire-len(packet))...)
			if fcs > 0 {
				packet = little.AppendUint32(packet, crc32.ChecksumIEEE(packet)&^uint32(r.IntN(10)/9))
				packet = packet[:len(packet)-r.IntN(6)/5]
			}
		}
		for _, v := range []int64{now / 1e9, now % 1e9, int64(len(packet)), int64(wire + fcs)} {
			raw = little.AppendUint32(raw, uint32(v))
		}
		raw = append(raw, packet...)
	}
	path := filepath.Join(t.TempDir(), "random.pcap")
	if err := os.WriteFile(path, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// pickWord returns one of the words at random.
func pickWord(r *rand.Rand, words ...string) string { return words[r.IntN(len(words))] }

// randomPolicy returns a policy with queues with their own rates and queues of the given links.
// Without links, the eBPF program supports the policy.
func randomPolicy(r *rand.Rand, links ...string) string {
	var b strings.Builder
	queues, meter := randomParts(r, &b, links)
	b.WriteString("classes:\n")
	for i := range 1 + r.IntN(6) {
		fmt.Fprintf(&b, "  - name: c%d\n", i)
		if r.IntN(5) > 0 {
			fmt.Fprintf(&b, "    match: {%s}\n", randomMatch(r))
		}
		if r.IntN(5) > 0 {
			fmt.Fprintf(&b, "    meter: {%s%s}\n", meter(), randomColor(r))
			if r.IntN(2) == 0 {
				fmt.Fprintf(&b, "    then: m%d\n", r.IntN(3))
			}
		}
		for _, color := range []string{"green", "yellow", "red"} {
			if r.IntN(2) == 0 {
				fmt.Fprintf(&b, "    %s: %s\n", color, randomAction(r, queues, links == nil))
			}
		}
	}
	randomRest(r, &b)
	return b.String()
}

// randomParts writes links, queues, envelopes and the meters m0 to m2. It returns the names of
// the queues and a function for random meters.
func randomParts(r *rand.Rand, b *strings.Builder, links []string) (queues []string, meter func() string) {
	b.WriteString("queues:\n")
	queues = []string{"q0", "q1", "q2", "q3"}
	used := map[string]bool{}
	for _, q := range queues {
		text := randomQueue(r, links)
		fmt.Fprintf(b, "  %s: {%s}\n", q, text)
		for _, link := range links {
			used[link] = used[link] || strings.Contains(text, "link: "+link)
		}
	}
	if links != nil {
		b.WriteString("links:\n")
	}
	for i, link := range links {
		rate := pickWord(r, "1mbit", "500 Kbit", "7777777bit", "33 Mbit/s", "12112kbit", "3Gbit")
		if i > 0 && used[link] && r.IntN(2) == 0 {
			fmt.Fprintf(b, "  %s: {link: %s%s%s}\n", link, pickWord(r, links[:i]...), randomShare(r),
				pickWord(r, "", ", rate: "+rate))
			continue
		}
		fmt.Fprintf(b, "  %s: {rate: %s}\n", link, rate)
	}
	meter = randomEnvelope(r, b, links == nil)
	b.WriteString("meters:\n")
	for i := range 3 { // each may chain a later one
		then := ""
		if i < 2 && r.IntN(2) == 0 {
			then = fmt.Sprintf(", then: m%d", i+1+r.IntN(2-i))
		}
		fmt.Fprintf(b, "  m%d: {%s, color: aware%s}\n", i, meter(), then)
	}
	return queues, meter
}

// randomColor returns the options of a meter for its input color.
func randomColor(r *rand.Rand) string {
	if r.IntN(2) > 0 {
		return ""
	}
	return ", color: aware" + pickWord(r, "", "", ", precolor: {from: pcp, map: {0: yellow, 5: red}}",
		", precolor: {from: mpls, map: {0: yellow, 3: red}}", ", precolor: {from: dscp, map: {ef: red, 0: yellow}}")
}

// randomRest writes the length rule and the action for unclassified packets.
func randomRest(r *rand.Rand, b *strings.Builder) {
	if r.IntN(3) == 0 {
		fmt.Fprintf(b, "length: %s\n",
			pickWord(r, "l2", "l1", "{base: l3, overhead: -20}", "{base: l3, overhead: 38, mpu: 84}"))
	}
	if r.IntN(4) == 0 {
		fmt.Fprintf(b, "otherwise: %s\n", pickWord(r, "drop", "drop", "pass"))
	}
}

func randomRate(r *rand.Rand) string {
	return fmt.Sprintf(pickWord(r, "%dbit", "%dkbit", "%dB/s", "%dB/7ms", "%dkB/1min"),
		1+r.IntN(1_000_000)/(1+r.IntN(1000)))
}

// randomShare returns the place of a queue or a link below a link. The guarantees of four queues fit
// into any link.
func randomShare(r *rand.Rand) string {
	return pickWord(r, "", fmt.Sprintf(", priority: %d", r.IntN(3)), ", priority: 7") +
		pickWord(r, "", fmt.Sprintf(", weight: %d", 1+r.IntN(4))) +
		pickWord(r, "", "", ", guarantee: 10kbit", ", guarantee: 123456bit")
}

func randomQueue(r *rand.Rand, links []string) string {
	slow := randomRate(r) // may be too slow for a link
	q := "rate: " + pickWord(r, slow, "10mbit", "7777777bit", "33mbit")
	if links != nil && r.IntN(3) > 0 {
		q = "link: " + pickWord(r, links...) + randomShare(r) +
			pickWord(r, "", "", ", rate: 300kbit", ", rate: 7777777bit")
	}
	unit, most := "ms", 1+r.IntN(200)
	switch r.IntN(3) {
	case 0:
		unit, most = "p", 1+r.IntN(60)
	case 1:
		unit, most = "B", 1+r.IntN(60_000)
	}
	q += fmt.Sprintf(", limit: %d%s", most, unit)
	var early []string
	for _, color := range []string{"green", "yellow", "red"} {
		if r.IntN(2) == 0 {
			to := 1 + r.IntN(most)
			early = append(early, fmt.Sprintf("%s: {min: %d%s, max: %d%[3]s, probability: %[5]s}", color,
				r.IntN(to+1), unit, to, pickWord(r, "0", "1", "0.1", "0.5", "0.123456789")))
		}
	}
	if early != nil {
		q += ", wred: {" + strings.Join(early, ", ") + "}"
	}
	switch own := strings.HasPrefix(q, "rate: "); {
	case links != nil && r.IntN(3) == 0 && !strings.HasPrefix(q, "rate: "+slow):
		q += ", fair: " + pickWord(r, "flow", "src", "dst", "hosts", "'src/24,64'", "dst/8", "vlan", "dscp")
	case !own || early != nil:
		q += pickWord(r, "", ", fair: false")
	case links == nil || r.IntN(2) == 0 || strings.HasPrefix(q, "rate: "+slow): // else fair by default
		q += ", fair: false"
	}
	return q + pickWord(r, "", ", codel: {}", ", codel: {target: 1ms, interval: 3ms}",
		", codel: {target: 100us, interval: 1us}", ", codel: {target: 5us, interval: 3s}",
		", codel: {interval: 77777ns}") +
		pickWord(r, "", ", ecn: true") + pickWord(r, "", fmt.Sprintf(", seed: %d", r.Uint64()>>r.IntN(64)))
}

func randomMatch(r *rand.Rand) string {
	keys := map[string]func() string{
		"src": func() string {
			return pickWord(r, "192.0.2.0/24", "198.51.100.0/24", "0.0.0.0/0", "2001:db8::/32", "'::/0'",
				"[192.0.2.1, 2001:db8::1]")
		},
		"dst":        func() string { return pickWord(r, "192.0.2.0/25", "203.0.113.0/24", "128.0.0.0/1", "2001:db8::/33") },
		"proto":      func() string { return pickWord(r, "tcp", "udp", "icmp", "[tcp, udp]", "0-100", "58") },
		"sport":      func() string { return pickWord(r, "0-1023", "1024-65535", "53") },
		"dport":      func() string { return pickWord(r, "[53, 443]", "5000-5999", "0") },
		"dscp":       func() string { return pickWord(r, "ef", "[af11, af12, af13]", "0", "1-63") },
		"vlan":       func() string { return pickWord(r, "0-4095", "1-100", "100") },
		"pcp":        func() string { return pickWord(r, "0", "[1, 3, 5]", "2-7") },
		"mark":       func() string { return pickWord(r, "0", "1-9") },
		"ethertype":  func() string { return pickWord(r, "arp", "ipv4", "[ipv6, 0x8847]", "0x8864", "0-0xffff") },
		"length":     func() string { return pickWord(r, "0-100", "40", "1000-9000", "0-65535") },
		"inner-vlan": func() string { return pickWord(r, "0-4095", "100", "[7, 200-300]") },
		"vni":        func() string { return pickWord(r, "0-16777215", "[1, 2]", "0x1-0xff") },
		"teid":       func() string { return pickWord(r, "0-0xffffffff", "[1, 2]", "4294967295") },
		"tcp-flags": func() string {
			return pickWord(r, "syn", "ack", "syn+ack", "syn/syn+ack", "0/syn+fin+rst", "[fin, psh]", "0x10", "0-100")
		},
		"icmp-type": func() string {
			return pickWord(r, "echo-request", "icmp:0-8", "icmp:3/4", "icmpv6:128-136", "[unreachable, icmp:11]", "icmp:0/0-127/3")
		},
	}
	var parts []string
	for _, key := range []string{
		"src", "dst", "proto", "sport", "dport", "dscp", "vlan", "pcp", "mark", "ethertype", "length",
		"inner-vlan", "tcp-flags", "icmp-type", "vni", "teid",
	} {
		if r.IntN(6) == 0 {
			parts = append(parts, key+": "+keys[key]())
		}
	}
	return strings.Join(parts, ", ")
}

// randomAction returns an action. The reference model may not support it.
func randomAction(r *rand.Rand, queues []string, unknown bool) string {
	if r.IntN(3) == 0 {
		return pickWord(r, "pass", "drop")
	}
	choices := []string{
		"dscp: " + pickWord(r, "af12", "0", "63"), "pcp: 3", "mpls: 4",
		pickWord(r, "ecn: ce", "ecn: ce, else: drop"), "mark: 7", "queue: " + pickWord(r, queues...),
	}
	if unknown {
		choices = append(choices, "dei: 1")
	}
	var parts []string
	for _, part := range choices {
		if r.IntN(3) == 0 {
			parts = append(parts, part)
		}
	}
	if parts == nil {
		return "pass"
	}
	return "{" + strings.Join(parts, ", ") + "}"
}
