package tc

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/routers"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// tcCases are scripts, with the policies that they mean. Names do not count.
var tcCases = []struct {
	name, script, draft, policy string
	link                        int64 // bit/s
}{
	{
		name: "with prompts, sums and names of the kernel",
		script: "root@gw:~# RATE=20\n$ DOWN=$((RATE * 95 / 100))\n[root@gw ~]# UP=`expr $RATE / 4 + 1`\n" +
			"root@gw:~# tc qdisc add dev eth0 handle ffff: parent ffff:fff1 ingress\n" +
			"$ tc filter add dev eth0 parent ffff:fff1 protocol ip prio 1 u32 match ip dst 10.0.0.0/8 police rate ${DOWN}mbit burst 10k drop\n" +
			"$ sudo tc filter add dev eth0 parent ffff: protocol ip prio 2 u32 match ip src 10.0.0.0/8 police rate ${UP}mbit burst $(expr 10 \\* 2)k drop\n",
		draft: "eth0-ingress",
		policy: `{length: l3, classes: [
			{name: a, match: {dst: 10.0.0.0/8}, meter: {type: token-bucket, rate: 19mbit, burst: 10240}},
			{name: b, match: {src: 10.0.0.0/8}, meter: {type: token-bucket, rate: 6mbit, burst: 20480}}]}`,
	},
	{
		name: "the policer of many guides",
		script: `tc qdisc add dev eth0 handle ffff: ingress
tc filter add dev eth0 parent ffff: protocol ip prio 50 u32 match ip src 0.0.0.0/0 police rate 256kbps burst 10k drop flowid :1`,
		draft: "eth0-ingress",
		// kbps is 8000 bit/s, k is 1024, and packets are counted without their Ethernet header.
		policy: `{length: l3, classes: [{name: a, match: {ethertype: ipv4}, meter: {type: token-bucket, rate: 2048kbit, burst: 10240}}]}`,
	},
	{
		name: "htb with guaranteed rates, a default, and leaf qdiscs",
		script: `#!/bin/bash
DEV=eth0   # the uplink
TC="sudo /sbin/tc"
$TC qdisc del dev $DEV root 2>/dev/null || true
$TC qdisc add dev $DEV root handle 1: htb default 0x30 r2q 5
$TC class add dev ${DEV} parent 1: classid 1:1 htb rate 10mbit > /dev/null 2>&1 || exit 1
$TC class add dev "$DEV" parent 1:1 classid 1:10 htb rate 5mbit \
	ceil 10mbit burst 15k
$TC class add dev eth0 parent 1:1 classid 1:20 htb rate 3mbit ceil 10mbit; tc class add dev eth0 parent 1:1 classid 1:30 htb rate 2mbit ceil 10mbit
tc qdisc add dev eth0 parent 1:10 handle 10: sfq perturb 10
tc qdisc add dev eth0 parent 1:20 handle 20: fq_codel limit 1000 target 10ms noecn
tc filter add dev eth0 parent 1:0 protocol ip prio 2 u32 match ip dst 10.0.0.0/8 flowid 1:20
tc filter add dev eth0 parent 1: protocol ip pref 1 u32 match ip protocol 6 0xff match ip dport 22 0xffff flowid 1:10`,
		policy: `{length: l2, classes: [
			{name: a, match: {proto: tcp, dport: 22, ethertype: ipv4}, green: {queue: q1}},
			{name: b, match: {dst: 10.0.0.0/8}, green: {queue: q2}},
			{name: c, match: {length: 0-4294967295}, green: {queue: q3}}],
			links: {l: {rate: 10mbit}}, queues: {
			q1: {link: l, guarantee: 5mbit, weight: 5, limit: 127p, fair: flow, codel: false},
			q2: {link: l, guarantee: 3mbit, weight: 3, limit: 1000p, codel: {target: 10ms, interval: 100ms}, fair: flow},
			q3: {link: l, guarantee: 2mbit, weight: 2, limit: 1000p}}}`,
	},
	{
		name: "classes below one class with a ceil, and one without a class to borrow from",
		script: `qdisc add dev eth0 root handle 1: htb
class add dev eth0 parent 1: classid 1:1 htb rate 100mbit
class add dev eth0 parent 1:1 classid 1:2 htb rate 1mbit ceil 20mbit
class add dev eth0 parent 1:1 classid 1:3 htb rate 80mbit
class add dev eth0 parent 1: classid 1:4 htb rate 3mbit ceil 5mbit
qdisc add dev eth0 parent 1:2 bfifo limit 64kb
qdisc add dev eth0 parent 1:3 pfifo limit 100
qdisc add dev eth0 parent 1:4 codel
filter add dev eth0 parent 1: protocol ip pref 1 handle 1 fw classid 1:2
filter add dev eth0 parent 1: protocol ip pref 2 handle 0x2/0xfffffffe fw classid 1:3
filter add dev eth0 parent 1: protocol all pref 3 matchall classid 1:4`,
		policy: `{length: l2, classes: [
			{name: a, match: {ethertype: ipv4, mark: 1}, green: {queue: q2}},
			{name: b, match: {ethertype: ipv4, mark: 2-3}, green: {queue: q3}},
			{name: c, match: {length: 0-4294967295}, green: {queue: q4}}],
			links: {l: {rate: 100mbit}}, queues: {
			q2: {link: l, rate: 20mbit, guarantee: 1mbit, limit: 65536},
			q3: {link: l, rate: 80mbit, guarantee: 80mbit, weight: 16, limit: 100p},
			q4: {rate: 3mbit, limit: 1000p, codel: {target: 5ms}, fair: false}}}`,
	},
	{
		name: "later filters without pref come first",
		script: `tc qdisc add dev eth0 root handle 1: htb
tc class add dev eth0 parent 1: classid 1:1 htb rate 1mbit
tc filter add dev eth0 parent 1: protocol ip u32 match ip tos 0x10 0xfc flowid 1:0
tc filter add dev eth0 parent 1: protocol ip u32 match u32 0 0 flowid 1:1`,
		policy: `{length: l2, classes: [
			{name: a, match: {ethertype: ipv4}, green: {queue: q}},
			{name: b, match: {ethertype: ipv4, dscp: 4}}],
			queues: {q: {rate: 1mbit, limit: 1000p, fair: false}}}`,
	},
	{
		name:   "tbf",
		script: "tc qdisc add dev ppp0 root tbf rate 220kbit latency 50ms burst 1540",
		draft:  "ppp0",
		policy: `{length: l3, classes: [{name: a, match: {length: 0-4294967295}, green: {queue: q}}], queues: {q: {rate: 220kbit, limit: 50ms, fair: false}}}`,
	},
	{
		name: "tbf with fq_codel",
		script: `tc qdisc add dev eth0 root handle 1: tbf rate 1gibit limit 1m burst 100k
tc qdisc add dev eth0 parent 1:1 handle 10: fq_codel`,
		policy: `{length: l2, classes: [{name: a, match: {length: 0-4294967295}, green: {queue: q}}], links: {l: {rate: 1073741824bit}},
			queues: {q: {link: l, limit: 10240p, codel: true, ecn: true, fair: flow}}}`,
	},
	{
		name:   "cake",
		script: "tc qdisc replace dev eth0 root cake bandwidth 50mbit besteffort dsthost rtt 20ms overhead 18 mpu 64 memlimit 1mb",
		policy: `{length: {base: l3, overhead: 18, mpu: 64}, classes: [{name: a, match: {length: 0-4294967295}, green: {queue: q}}],
			links: {l: {rate: 50mbit}}, queues: {q: {link: l, limit: 1MiB, codel: {target: 1ms, interval: 20ms}, ecn: true, fair: dst}}}`,
	},
	{
		// 1514 bytes last 12.112 ms, so the target is 18.168 ms; the interval is 100 ms and that, less 5 ms
		name:   "cake at a low rate",
		script: "tc qdisc add dev eth0 root cake bandwidth 1mbit besteffort flows",
		policy: `{length: l2, classes: [{name: a, match: {length: 0-4294967295}, green: {queue: q}}],
			links: {l: {rate: 1mbit}}, queues: {q: {link: l, limit: 4MiB, codel: {target: 18168us, interval: 113168us}, ecn: true, fair: flow}}}`,
	},
	{
		name:   "cake at a high rate: 10240 packets of 1514 bytes",
		script: "tc qdisc add dev eth0 root cake bandwidth 2gbit besteffort flows",
		policy: `{length: l2, classes: [{name: a, match: {length: 0-4294967295}, green: {queue: q}}],
			links: {l: {rate: 2gbit}}, queues: {q: {link: l, limit: 15503360, codel: true, ecn: true, fair: flow}}}`,
	},
	{
		name:   "cake: overhead replaces that of a name before it",
		script: "tc qdisc add dev eth0 root cake bandwidth 20mbit besteffort flows memlimit 1mb mpu 100 ethernet overhead 18",
		policy: `{length: {base: l3, overhead: 18, mpu: 84}, classes: [{name: a, match: {length: 0-4294967295}, green: {queue: q}}],
			links: {l: {rate: 20mbit}}, queues: {q: {link: l, limit: 1MiB, codel: true, ecn: true, fair: flow}}}`,
	},
	{
		name: "change keeps the options that it leaves out",
		script: "tc qdisc add dev eth0 root cake bandwidth 20mbit besteffort flows rtt 20ms overhead 18\n" +
			"tc qdisc change dev eth0 root cake bandwidth 10mbit\n[ -n x ] || exit\ntc qdisc replace dev eth0 root cake memlimit 1mb",
		policy: `{length: {base: l3, overhead: 18}, classes: [{name: a, match: {length: 0-4294967295}, green: {queue: q}}],
			links: {l: {rate: 10mbit}}, queues: {q: {link: l, limit: 1MiB, codel: {target: 1816800ns, interval: 20816800ns}, ecn: true, fair: flow}}}`,
	},
	{
		name: "masks",
		script: "tc qdisc add dev eth0 clsact\ntc filter add dev eth0 ingress protocol ip pref 1 u32 match ip src 10.0.0.0/255.128.0.0 " +
			"action police rate 1mbit burst 10k drop",
		draft:  "eth0-ingress",
		policy: `{length: l3, classes: [{name: a, match: {src: 10.0.0.0/9}, meter: {type: token-bucket, rate: 1mbit, burst: 10240}}]}`,
	},
	{
		name: "fq_codel changed",
		script: "tc qdisc add dev eth0 root handle 1: htb default 1\ntc class add dev eth0 parent 1: classid 1:1 htb rate 9mbit\n" +
			"tc qdisc add dev eth0 parent 1:1 fq_codel limit 300 target 20ms noecn\ntc qdisc change dev eth0 parent 1:1 fq_codel interval 200ms",
		policy: `{length: l2, classes: [{name: a, match: {length: 0-4294967295}, green: {queue: q}}],
			links: {l: {rate: 9mbit}}, queues: {q: {link: l, limit: 300p, codel: {target: 20ms, interval: 200ms}, ecn: false, fair: flow}}}`,
	},
	{
		name: "a filter changed by its handle",
		script: "tc qdisc add dev eth0 clsact\ntc filter add dev eth0 ingress protocol ip pref 1 handle 1 matchall action police rate 1mbit burst 10k drop\n" +
			"tc filter change dev eth0 ingress protocol ip pref 1 handle 1 matchall action police rate 2mbit burst 10k drop",
		draft:  "eth0-ingress",
		policy: `{length: l3, classes: [{name: a, match: {ethertype: ipv4}, meter: {type: token-bucket, rate: 2mbit, burst: 10240}}]}`,
	},
	{
		name:   "a namespace",
		script: "tc -n n1 qdisc add dev eth0 root bfifo limit 5\ntc -n n2 qdisc add dev eth0 root tbf rate 1mbit burst 10k limit 1",
		draft:  "eth0 of n2",
		policy: `{length: l2, classes: [{name: a, match: {length: 0-4294967295}, green: {queue: q}}], queues: {q: {rate: 1mbit, limit: 1, fair: false}}}`,
	},
	{
		name: "here documents, and commands that always run",
		script: "cat <<'X' >f\ntc qdisc add dev eth0 root tbf rate 5mbit burst 10k limit 1\nX\nmodprobe sch_tbf && tc -batch - <<EOF\n" +
			"qdisc add dev eth0 root tbf rate 1mbit burst 10k limit 1\nEOF",
		policy: `{length: l2, classes: [{name: a, match: {length: 0-4294967295}, green: {queue: q}}], queues: {q: {rate: 1mbit, limit: 1, fair: false}}}`,
	},
	{
		name:   "percent of the link, and its default limit",
		script: "tc qdisc add dev eth0 root cake bandwidth 100mbit besteffort flowblind\ntc qdisc replace dev eth0 root tbf rate 12.5% burst 10k limit 1",
		policy: `{length: l2, classes: [{name: a, match: {length: 0-4294967295}, green: {queue: q}}], queues: {q: {rate: 125mbit, limit: 1, fair: false}}}`,
		link:   1e9,
	},
	{
		name:   "two police actions, the second gets what conforms: RFC 2698",
		script: `tc filter add dev eth0 ingress protocol ipv6 matchall action police rate 20mbit burst 128k conform-exceed drop/pipe action police rate 10mbit burst 64k conform-exceed pipe/ok action skbedit mark 7`,
		draft:  "eth0-ingress",
		policy: `{length: l3, classes: [{name: a, match: {ethertype: ipv6}, meter: {type: trtcm, cir: 10mbit, cbs: 64KiB, pir: 20mbit, pbs: 128KiB}, yellow: {mark: 7}}]}`,
	},
	{
		name:   "two police actions, the second gets what exceeds: RFC 4115",
		script: `tc filter add dev eth0 egress protocol ip flower ip_proto udp dst_port 5000-5999 ip_tos 0xb8/0xfc action police rate 1mbps burst 5000b conform-exceed pipe action police rate 1mbit burst 1000 conform-exceed drop / pipe action pedit ex munge ip dsfield set 0x28 retain 0xfc pipe action csum ip4h pipe`,
		draft:  "eth0-egress",
		policy: `{length: l2, classes: [{name: a, match: {ethertype: ipv4, proto: udp, dport: 5000-5999, dscp: ef}, meter: {type: trtcm4115, cir: 8mbit, cbs: 5000, eir: 1mbit, ebs: 1000}, yellow: {dscp: 10}}]}`,
	},
	{
		name: "continue to a queue, and a police action shared by its index",
		script: `tc qdisc add dev eth0 root handle 1: stab overhead -14 linklayer ethernet htb
tc class add dev eth0 parent 1: classid 1:2 htb rate 5mbit overhead 4
tc filter add dev eth0 parent 1: pref 1 protocol ip u32 match ip src 192.0.2.1 action police index 9 pkts_rate 100 pkts_burst 50 conform-exceed continue
tc filter add dev eth0 parent 1: pref 2 protocol ip u32 match ip src 198.51.100.0/24 action police index 9
tc filter add dev eth0 parent 1: pref 3 protocol ip u32 match ip src 192.0.2.1 flowid 1:2
tc filter add dev eth0 parent 1: pref 4 protocol ip u32 match ip src 198.51.100.0/24 flowid 1:2
tc filter add dev eth0 parent 1: pref 5 protocol ipv6 u32 match ip6 dst 2001:db8::/33 match ip6 priority 0x20 0xe0 action drop`,
		policy: `{length: {base: l3, overhead: 4}, classes: [
			{name: a, match: {src: [192.0.2.1, 198.51.100.0/24]}, meter: {type: token-bucket, count: packets, rate: 100p/1s, burst: 50}, red: {queue: q}},
			{name: b, match: {dst: "2001:db8::/33", dscp: 8-15}, green: drop}],
			queues: {q: {rate: 5mbit, limit: 1000p, fair: false}}}`,
	},
	{
		name: "priorities of a link, and prio below a minimum rate",
		script: `tc qdisc add dev eth0 root handle 1: htb default 12
tc class add dev eth0 parent 1: classid 1:1 htb rate 10mbit overhead 24 mpu 84
tc class add dev eth0 parent 1:1 classid 1:11 htb rate 8bit ceil 20mbit prio 0 overhead 24 mpu 84
tc class add dev eth0 parent 1:1 classid 1:12 htb rate 8bit ceil 20mbit prio 3 quantum 3028 overhead 24 mpu 84
tc class add dev eth0 parent 1:1 classid 1:13 htb rate 8bit ceil 20mbit prio 3 quantum 1514 overhead 24 mpu 84
tc filter add dev eth0 parent 1: protocol 802.1Q pref 1 flower vlan_id 7 vlan_prio 5 classid 1:11
tc filter add dev eth0 parent 1: protocol arp pref 2 u32 match u32 0 0 flowid 1:13
tc filter add dev eth0 parent 1: protocol ip pref 3 u32 match ip protocol 1 0xff flowid 1:99`,
		policy: `{length: l1, classes: [
			{name: a, match: {vlan: 7, pcp: 5}, green: {queue: q1}},
			{name: b, match: {ethertype: arp}, green: {queue: q3}},
			{name: c, match: {ethertype: ipv4, proto: icmp}, green: {queue: q2}},
			{name: d, match: {length: 0-4294967295}, green: {queue: q2}}],
			links: {l: {rate: 10mbit}}, queues: {q1: {link: l, limit: 1000p},
			q3: {link: l, priority: 3, limit: 1000p}, q2: {link: l, priority: 3, weight: 2, limit: 1000p}}}`,
	},
	{
		name: "prio on the interface's rate",
		script: `tc qdisc add dev eth0 root handle 1: prio bands 2
tc filter add dev eth0 parent 1: protocol ip pref 1 u32 match ip dport 53 0xffff flowid 1:1`,
		policy: `{length: l2, classes: [{name: a, match: {ethertype: ipv4, dport: 53}, green: {queue: q}}],
			links: {l: {rate: 1gbit}}, queues: {q: {link: l, limit: 1000p}}}`,
		link: 1e9,
	},
}

// TestTCImport compares imported scripts with policies that were written by hand.
func TestTCImport(t *testing.T) {
	t.Parallel()
	for _, c := range tcCases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			for _, ends := range []string{"\n", "\r\n"} {
				s := routers.Source{Name: "script", Text: strings.ReplaceAll(c.script, "\n", ends)}
				s.Link = meter.BitRate(c.link)
				in, err := Dialect{}.Import(s)
				if err != nil {
					t.Fatal(err)
				}
				name := c.draft
				if name == "" {
					name = "eth0"
				}
				d, problems, err := in.Pick(name)
				if err != nil {
					t.Fatal(err)
				}
				for _, p := range problems {
					if !strings.Contains(p.Reason, "priomap") { // prio always has it
						t.Errorf("line %d: %v", p.Line, p)
					}
				}
				compareImport(t, d, c.policy)
			}
		})
	}
}

// rendered returns a draft as a policy file.
func rendered(t *testing.T, d *routers.Draft) string {
	t.Helper()
	out, err := d.Render("test", "")
	if err != nil {
		t.Fatalf("%s: %v", d.Name, err)
	}
	return out.Text
}

// compareImport compares a draft with a policy. Export writes it, if tc can express it, so that import
// gives it back.
func compareImport(t *testing.T, d *routers.Draft, policy string) {
	t.Helper()
	text := rendered(t, d)
	want := compileText(t, policy)
	if got := compileText(t, text); got != want {
		t.Fatalf("got other lines: %s\n%s", otherLines(want, got), text)
	}
	p, err := policyfile.Source{Name: "p", Text: text}.Compile()
	if err != nil {
		t.Fatal(err)
	}
	e := Dialect{}.Export(p.Policy, "eth0")
	for _, problem := range e.Problems {
		if !slices.ContainsFunc(unsaidExports, func(s string) bool { return strings.Contains(problem, s) }) {
			t.Errorf("export: %s\n%s", problem, text)
		}
	}
	if e.Problems != nil {
		return
	}
	if got, want := reimport(t, e.Text, "eth0"), canonical(p.Policy); got != want {
		t.Errorf("exported and imported, it has other lines: %s\n%s\n%s", otherLines(want, got), text, e.Text)
	}
}

// unsaidExports are parts of imported policies that export refuses.
var unsaidExports = []string{
	"action dscp for packets of any protocol", "with codel, tc has a limit in packets", "tc has whole microseconds",
}

// TestTCFiles compares the imported commands of well-known scripts with policies written by hand.
func TestTCFiles(t *testing.T) {
	t.Parallel()
	const (
		all     = "classes: [{name: a, match: {length: 0-4294967295}, green: {queue: q}}]"
		rejects = "tc rejects it"
		perturb = "perturb 10 is left out; quantum 6000 is left out"
		quantum = "quantum 300 is left out; flows 1024 is left out"
		bursts  = "burst and cburst"
		bits    = "the other bits of the mark"
	)
	for _, c := range []struct {
		file, device, policy string
		notes                []string // their beginnings
		refused              string   // the only statement that cannot be expressed
	}{
		{
			"wondershaper", "eth0", `{length: l2, classes: [
			{name: a, match: {ethertype: ipv4, dscp: 4}, green: {queue: high}},
			{name: b, match: {dst: 192.0.2.7}, green: {queue: high}},
			{name: c, match: {ethertype: ipv4, proto: icmp}, green: {queue: high}},
			{name: d, match: {ethertype: ipv4, proto: tcp, length: 0-77}, green: {queue: high}},
			{name: e, match: {ethertype: ipv4, dport: 6881}, green: {queue: low}},
			{name: f, match: {ethertype: ipv4}, green: {queue: bulk}},
			{name: g, match: {length: 0-4294967295}, green: {queue: bulk}}],
			links: {line: {rate: 1mbit}}, queues: {
			high: {link: line, rate: 950kbit, guarantee: 200kbit, priority: 1, limit: 127p, fair: flow, codel: false},
			bulk: {link: line, rate: 950kbit, guarantee: 400kbit, priority: 2, limit: 127p, fair: flow, codel: false},
			low: {link: line, rate: 900kbit, guarantee: 200kbit, priority: 3, limit: 127p, fair: flow, codel: false}}}`,
			[]string{
				perturb, perturb, perturb, "packets with ECN bits", rejects, rejects, rejects, "the total length",
				rejects, "packets of any protocol", rejects, rejects,
			},
			"",
		},
		{"wondershaper", "ifb0", `{length: l2, classes: [{name: a, green: {queue: q}}],
			queues: {q: {rate: 8mbit, limit: 32p, fair: false}}}`, nil, ""},
		{
			"simple", "eth0", `{length: {base: l2, overhead: 22}, classes: [
			{name: a, match: {ethertype: ipv4, mark: 1}, green: {queue: high}},
			{name: b, match: {ethertype: ipv4, mark: 2}, green: {queue: bulk}},
			{name: c, match: {ethertype: ipv4, mark: 3}, green: {queue: low}},
			{name: d, match: {ethertype: ipv6, mark: 1}, green: {queue: high}},
			{name: e, match: {ethertype: ipv6, mark: 2}, green: {queue: bulk}},
			{name: f, match: {ethertype: ipv6, mark: 3}, green: {queue: low}},
			{name: g, match: {ethertype: arp, mark: 1}, green: {queue: high}},
			{name: h, match: {ethertype: ipv4, proto: icmp}, green: {queue: low}},
			{name: i, match: {length: 0-4294967295}, green: {queue: bulk}}],
			links: {line: {rate: 10mbit}}, queues: {
			high: {link: line, rate: 3333kbit, guarantee: 128kbit, priority: 1, limit: 1001p, fair: flow, codel: {target: 5ms}, ecn: true},
			bulk: {link: line, rate: 9984kbit, guarantee: 1666kbit, priority: 2, limit: 1001p, fair: flow, codel: {target: 5ms}, ecn: true},
			low: {link: line, rate: 9984kbit, guarantee: 1666kbit, priority: 3, limit: 1001p, fair: flow, codel: {target: 5ms}, ecn: true}}}`,
			[]string{bursts, quantum, quantum, quantum, bits, bits, bits, bits, bits, bits, bits},
			"match of another protocol",
		},
		{"simple", "ifb4eth0", `{length: {base: l2, overhead: 22}, ` + all + `, links: {line: {rate: 20mbit}}, queues: {
			q: {link: line, guarantee: 20mbit, limit: 1001p, fair: flow, codel: {target: 5ms}, ecn: true}}}`, []string{bursts, "flows 1024"}, ""},
		{"simplest_tbf", "eth0", `{length: l2, ` + all + `, queues: {
			q: {rate: 10mbit, limit: 1001p, fair: flow, codel: {target: 5ms}, ecn: true}}}`, []string{"burst 1749 is left out: tbf sends as much at once", "flows 1024"}, ""},
		{"simplest_tbf", "ifb4eth0", `{length: l2, ` + all + `, queues: {
			q: {rate: 20mbit, limit: 1001p, fair: flow, codel: {target: 5ms}}}}`, []string{"burst 2500 is left out", "flows 1024"}, ""},
		{"piece_of_cake", "eth0", `{length: {base: l3, overhead: 22}, ` + all + `, queues: {
			q: {rate: 10mbit, limit: 4MiB, fair: [dst, flow], codel: {target: 5ms}, ecn: true}}}`, []string{"triple-isolate"}, ""},
		{"layer_cake", "eth0", `{length: l2, ` + all + `, queues: {
			q: {rate: 10mbit, limit: 4MiB, fair: [src, flow], codel: {target: 5ms}, ecn: true}}}`, []string{"diffserv3", "nat"}, ""},
		{"layer_cake", "ifb4eth0", `{length: l2, classes: [{name: a, match: {length: 0-4294967295}, green: {queue: q, dscp: 0}}],
			queues: {q: {rate: 20mbit, limit: 4MiB, fair: [dst, flow], codel: {target: 5ms}, ecn: true}}}`, []string{"nat"}, ""},
		{"site", "rb", `{length: l2, classes: [
			{name: a, match: {dst: 10.0.0.1}, green: {queue: a}}, {name: b, match: {dst: 10.0.0.2}, green: {queue: b}},
			{name: c, match: {dst: 10.0.1.1}, green: {queue: c}}, {name: d, match: {dst: 10.0.1.2}, green: {queue: d}},
			{name: e, match: {length: 0-4294967295}, green: {queue: e}}],
			links: {
			site: {rate: 8mbit},
			ap0: {link: site, rate: 5mbit, guarantee: 4mbit},
			ap1: {link: site, rate: 5mbit, guarantee: 4mbit}},
			queues: {
			a: {link: ap0, rate: 4mbit, guarantee: 2mbit, limit: 20p},
			b: {link: ap0, rate: 4mbit, guarantee: 2mbit, limit: 20p},
			c: {link: ap1, rate: 4mbit, guarantee: 2mbit, limit: 15503360, fair: [dst, flow], codel: {target: 5ms}, ecn: true},
			d: {link: ap1, rate: 4mbit, guarantee: 2mbit, limit: 10240p, fair: flow, codel: {target: 5ms}, ecn: true},
			e: {rate: 100mbit, limit: 1000p, fair: false}}}`, []string{"htb shares the excess", "diffserv3", "triple-isolate", "the limit of a queue"}, ""},
	} {
		t.Run(c.file+" "+c.device, func(t *testing.T) {
			t.Parallel()
			text, err := os.ReadFile(filepath.Join("testdata", c.file+".tc"))
			if err != nil {
				t.Fatal(err)
			}
			in, err := Dialect{}.Import(routers.Source{Name: c.file, Text: string(text)})
			if err != nil {
				t.Fatal(err)
			}
			d, problems, err := in.Pick(c.device)
			if err != nil {
				t.Fatal(err)
			}
			if c.refused == "" && problems != nil ||
				c.refused != "" && (len(problems) != 1 || !strings.Contains(problems[0].Reason, c.refused)) {
				t.Errorf("problems %v, want %q", problems, c.refused)
			}
			compareImport(t, d, c.policy)
			var notes []string
			for _, n := range d.Notes {
				notes = append(notes, n.Reason)
			}
			if !slices.EqualFunc(notes, c.notes, strings.HasPrefix) {
				t.Errorf("notes %q, want %q", notes, c.notes)
			}
		})
	}
}

// compileText returns the canonical text of a policy file, without names.
func compileText(t *testing.T, text string) string {
	t.Helper()
	p, err := policyfile.Source{Name: "p", Text: text}.Compile()
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return withoutNames(canonical(p.Policy))
}
