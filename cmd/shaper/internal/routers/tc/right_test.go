package tc

import (
	"strings"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/routers"
)

// TestTCRight checks scripts against policies that were found out by hand, with tc in a namespace, from the
// kernel's source or with packets.
func TestTCRight(t *testing.T) {
	t.Parallel()
	const (
		htb = "tc qdisc add dev eth0 root handle 1: htb default 10\ntc class add dev eth0 parent 1: classid 1:10 htb rate 5mbit\n" +
			"tc class add dev eth0 parent 1: classid 1:20 htb rate 1mbit\n"
		filter = "tc filter add dev eth0 parent 1: protocol ip "
		rest   = "{name: rest, match: {length: 0-4294967295}, green: {queue: q10}}]\nqueues: {q10: {rate: 5mbit, limit: 1000p, fair: false}, q20: {rate: 1mbit, limit: 1000p, fair: false}}\nlength: l2"
		one    = "classes: [{name: all, match: {length: 0-4294967295}, green: {queue: q}}]\nlength: l2\n"
	)
	to20 := func(match string) string {
		return "classes: [{name: a, match: {" + match + "}, green: {queue: q20}}, " + rest
	}
	rate := func(rate string) string { return one + "queues: {q: {rate: " + rate + ", limit: 20000, fair: false}}" }
	const tbf = "tc qdisc add dev eth0 root tbf rate "
	for name, c := range map[string]struct{ script, policy string }{
		"a filter without pref is behind one with": {
			htb + filter + "pref 10 u32 match ip dst 10.0.0.0/8 flowid 1:20\n" + filter + "u32 match ip dst 10.1.0.0/16 flowid 1:10\n",
			"classes: [{name: a, match: {dst: 10.0.0.0/8}, green: {queue: q20}}, {name: b, match: {dst: 10.1.0.0/16}, green: {queue: q10}}, " + rest,
		},
		"types of ICMP":              {htb + filter + "u32 match ip protocol 1 0xff match ip icmp_type 8 0xff flowid 1:20\n", to20("proto: icmp, ethertype: ipv4, icmp-type: [icmp:8]")},
		"a filter without an effect": {htb + filter + "pref 1 u32 match ip dst 192.0.2.2\n" + filter + "pref 2 u32 match ip dst 192.0.2.0/24 flowid 1:20\n", to20("dst: 192.0.2.0/24")},
		"ports of any header":        {htb + filter + "u32 match tcp dst 80 0xffff flowid 1:20\n", to20("ethertype: ipv4, length: 94")},
		"a function without a blank": {"start(){\n:\n}\n" + tbf + "1mbit burst 10k limit 20000\n", rate("1mbit")},
		"a comment is not continued": {htb + "# customers \\\n" + filter + "u32 match ip dst 10.0.0.0/8 flowid 1:20\n", to20("dst: 10.0.0.0/8")},
		"an unset variable":          {"R=1mbit\nunset R\n" + tbf + "${R:-2mbit} burst 10k limit 20000\n", rate("2mbit")},
		"an empty variable":          {"R=\"\"\n" + tbf + "${R:-2mbit} burst 10k limit 20000\n", rate("2mbit")},
		"an expression in a variable": {
			"A=5+3\n" + tbf + "$((A*100))kbit burst 10k limit $((047040))\n", rate("800kbit"),
		},
		"the mark of a here document": {"cat <<'END-X'\n" + tbf + "9mbit burst 10k limit 20000\nEND-X\n" + tbf + "1mbit burst 10k limit 20000\n", rate("1mbit")},
		"a unit of systemd":           {"ExecStart=/sbin/" + tbf + "5mbit burst 10k limit 20000\nExecReload=/sbin/tc qdisc replace dev eth0 root tbf rate 1mbit burst 10k limit 9000\nExecStop=/sbin/tc qdisc del dev eth0 root\n", rate("5mbit")},
		"a changed class keeps its parent": {
			"tc qdisc add dev eth0 root handle 1: htb default 10\ntc class add dev eth0 parent 1: classid 1:1 htb rate 10mbit\ntc class add dev eth0 parent 1:1 classid 1:10 htb rate 2mbit ceil 10mbit\ntc class change dev eth0 classid 1:10 htb rate 3mbit ceil 10mbit\n",
			one + "queues: {q: {link: l, guarantee: 3mbit, limit: 1000p, fair: false}}\nlinks: {l: {rate: 10mbit}}",
		},
		"numbers without a colon": {
			"tc qdisc add dev eth0 root handle 1: htb default 10\ntc class add dev eth0 parent 1: classid 1 htb rate 10mbit\ntc class add dev eth0 parent 1 classid :10 htb rate 2mbit ceil 10mbit\n",
			one + "queues: {q: {link: l, guarantee: 2mbit, limit: 1000p, fair: false}}\nlinks: {l: {rate: 10mbit}}",
		},
		"cake below a class": {
			"tc qdisc add dev eth0 root handle 1: htb default 20\ntc class add dev eth0 parent 1: classid 1:20 htb rate 5mbit\ntc qdisc add dev eth0 parent 1:20 handle 20: cake bandwidth 1mbit besteffort flowblind memlimit 20000\n",
			one + "queues: {q: {rate: 1mbit, limit: 20000, codel: {target: 18168us, interval: 113168us}, ecn: true, fair: false}}",
		},
		"deletion of all filters":   {htb + filter + "u32 match ip dst 10.0.0.0/8 flowid 1:20\ntc filter del dev eth0\n", "classes: [" + strings.Replace(rest, ", q20: {rate: 1mbit, limit: 1000p, fair: false}", "", 1)},
		"a filter without a parent": {htb + "tc filter add dev eth0 protocol ip u32 match ip dst 10.0.0.0/8 flowid 1:20\n", to20("dst: 10.0.0.0/8")},
		"masks of flower": {
			htb + filter + "pref 1 flower dst_ip 10.0.0.0/24 flowid 1:20\n" +
				filter + "pref 1 flower ip_proto tcp dst_port 80 flowid 1:10\n" +
				filter + "pref 1 flower dst_ip 10.0.1.0/24 flowid 1:20\n",
			"classes: [{name: a, match: {dst: [10.0.0.0/24, 10.0.1.0/24]}, green: {queue: q20}}, {name: b, match: {ethertype: ipv4, proto: tcp, dport: 80}, green: {queue: q10}}, " + rest,
		},
		"a replaced root": {
			htb + "tc qdisc replace dev eth0 root handle 2: tbf rate 3mbit burst 10k limit 20000\n", rate("3mbit"),
		},
		"a fresh qdisc has defaults": {
			"tc qdisc add dev eth0 root handle 1: htb default 10\ntc class add dev eth0 parent 1: classid 1:10 htb rate 5mbit\ntc qdisc add dev eth0 parent 1:10 handle 10: codel limit 100\ntc qdisc replace dev eth0 parent 1:10 handle 11: codel\n",
			one + "queues: {q: {rate: 5mbit, limit: 1000p, codel: {target: 5ms, interval: 100ms}, fair: false}}",
		},
		"bfifo without a limit": {
			"tc qdisc add dev eth0 root handle 1: htb default 10\ntc class add dev eth0 parent 1: classid 1:10 htb rate 5mbit\ntc qdisc add dev eth0 parent 1:10 bfifo\nip link set dev eth0 qlen 77\n",
			one + "queues: {q: {rate: 5mbit, limit: 116578, fair: false}}",
		},
		"a shell's arithmetic":              {"A=\"5+5\"\n" + tbf + "$(( $A * 2 ))mbit burst 10k limit 20000\n", rate("15mbit")},
		"words of printf":                   {"R=1mbit\nprintf \"R: %s\\n\" \"$R\"\nread -p \"R?\" X\n" + tbf + "$R burst 10k limit 20000\n", rate("1mbit")},
		"a local variable":                  {"info() { local R=$1; echo $R; }\nR=1mbit\n" + tbf + "$R burst 10k limit 20000\n", rate("1mbit")},
		"unset in a function":               {"R=1mbit\ncleanup() { unset R; }\nR=1mbit\n" + tbf + "1mbit burst 10k limit 20000\n", rate("1mbit")},
		"parameters after a source":         {". /lib/functions.sh\n" + tbf + "${1:-1mbit} burst 10k limit 20000\n", rate("1mbit")},
		"a closing word with a redirection": {"while :; do :; done</dev/null\n" + tbf + "1mbit burst 10k limit 20000\n", rate("1mbit")},
		"a brief command":                   {"tc -br qdisc show\n" + tbf + "1mbit burst 10k limit 20000\n", rate("1mbit")},
		"a deleted class of an earlier filter": {
			"tc qdisc add dev eth0 root handle 1: htb default 10\n" + filter + "u32 match ip dst 10.0.0.1 flowid 1:20\ntc class add dev eth0 parent 1: classid 1:10 htb rate 5mbit\ntc class add dev eth0 parent 1: classid 1:20 htb rate 1mbit\ntc class del dev eth0 classid 1:20\n",
			"classes: [{name: a, match: {dst: 10.0.0.1}, green: {queue: q}}, {name: all, match: {length: 0-4294967295}, green: {queue: q}}]\nlength: l2\nqueues: {q: {rate: 5mbit, limit: 1000p, fair: false}}",
		},
		"a replaced qdisc keeps its handle": {
			"tc qdisc add dev eth0 root handle 5: tbf rate 10mbit burst 16k limit 20k\ntc qdisc replace dev eth0 root tbf rate 3mbit burst 16k limit 20k\ntc qdisc add dev eth0 parent 5:1 handle 50: pfifo limit 7\n",
			one + "queues: {q: {rate: 3mbit, limit: 7p, fair: false}}",
		},
		"ports of UDP-Lite": {htb + filter + "u32 match ip protocol 136 0xff match ip dport 53 0xffff flowid 1:20\n", to20("proto: 136, ethertype: ipv4, dport: 53")},
		"the IFB idiom": {
			"tc qdisc add dev eth0 handle ffff: ingress\ntc filter add dev eth0 parent ffff: protocol ip u32 match u32 0 0 action mirred egress redirect dev ifb0\ntc qdisc add dev ifb0 root tbf rate 1mbit burst 10k limit 20000\n", rate("1mbit"),
		},
		"a tunnel's burst": {"tc qdisc add dev tun0 root tbf rate 1mbit burst 1500 limit 20000\n", strings.Replace(rate("1mbit"), "length: l2", "length: l3", 1)},
		"functions beside an unknown interface": {
			"IF=$1\nlog() { echo \"$@\"; }\nstop() { tc qdisc del dev $IF root; }\nstop\ntc qdisc add dev $IF root handle 1: htb default 10\nlog x\nfor u in 1 2; do echo $u; done\nread -p \"go?\" ok\ntc class add dev $IF parent 1: classid 1:10 htb rate 10mbit\n",
			one + "queues: {q: {rate: 10mbit, limit: 1000p, fair: false}}",
		},
		"a change to another kind": {
			"tc qdisc add dev eth0 root handle 1: htb default 10\ntc class add dev eth0 parent 1: classid 1:10 htb rate 5mbit\ntc qdisc add dev eth0 parent 1:10 handle 10: pfifo limit 10\ntc qdisc change dev eth0 parent 1:10 bfifo limit 7000\n",
			one + "queues: {q: {rate: 5mbit, limit: 7000, fair: false}}",
		},
		"a text in a file": {"cat <<-EOF > /tmp/bash.sh\n\ttc qdisc add dev eth9 root pfifo\n\tEOF\n" + tbf + "1mbit burst 10k limit 20000\n", rate("1mbit")},
		"the path of tc":   {"TC=$(which tc)\n$TC qdisc add dev eth0 root tbf rate 9mbit burst 10k limit 9000\n`command -v tc` qdisc replace dev eth0 root tbf rate 1mbit burst 10k limit 20000\n", rate("1mbit")},
		"short prefixes":   {htb + filter + "u32 match ip dst 10/8 match ip src 0/0 flowid 1:20\n", to20("dst: 10.0.0.0/8")},
		"another program's comment": {
			"tc qdisc add dev eth0 root handle 1: htb default 10\ntc class add dev eth0 parent 1: classid 1:1 htb rate 10mbit\n# guarantee: 5mbit\ntc class add dev eth0 parent 1:1 classid 1:10 htb rate 2mbit ceil 10mbit\n",
			one + "queues: {q: {link: l, guarantee: 2mbit, limit: 1000p, fair: false}}\nlinks: {l: {rate: 10mbit}}",
		},
		"options of cake that are switched off": {
			"tc qdisc add dev eth0 root cake bandwidth 1mbit besteffort flowblind memlimit 20000 wash ack-filter overhead 18\ntc qdisc change dev eth0 root cake nowash no-ack-filter mpu 64\n",
			strings.Replace(one, "length: l2", "length: {base: l3, overhead: 18, mpu: 64}", 1) + "queues: {q: {rate: 1mbit, limit: 20000, codel: {target: 18168us, interval: 113168us}, ecn: true, fair: false}}",
		},
	} {
		in, err := Dialect{}.Import(routers.Source{Name: "script", Text: c.script})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		d, problems, err := in.Pick("")
		if err != nil || problems != nil {
			t.Errorf("%s: %v %v", name, err, problems)
			continue
		}
		text := rendered(t, d)
		if got, want := compileText(t, text), compileText(t, c.policy); got != want {
			t.Errorf("%s: got other lines: %s\n%s", name, otherLines(want, got), text)
		}
	}
}
