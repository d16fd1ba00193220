package tc

import (
	"fmt"
	"strings"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/routers"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// TestTCProblems checks that statements that a policy cannot express are named, with their lines.
func TestTCProblems(t *testing.T) {
	t.Parallel()
	const (
		htb    = "tc qdisc add dev eth0 root handle 1: htb\ntc class add dev eth0 parent 1: classid 1:1 htb rate 1mbit\n"
		filter = htb + "tc filter add dev eth0 parent 1: protocol ip "
	)
	for _, c := range []struct {
		script string
		line   int
		reason string // a part of it
	}{
		{filter + "u32 match ip src 10.0.0.0/8 police rate 1mbit burst 10k peakrate 2mbit mtu 1500 drop flowid 1:1", 3, "peakrate 2mbit"},
		{filter + "u32 match ip src 10.0.0.0/8 police avrate 1mbit drop flowid 1:1", 3, "avrate 1mbit"},
		{filter + "u32 match ip src 10.0.0.0/8 police rate 1mbit burst 10k linklayer atm drop", 3, "linklayer atm"},
		{htb + "tc -b /etc/tc/rules", 3, "another file"},
		{htb + "tc -force -batch rules", 3, "another file"},
		{"tc qdisc add dev eth0 clsact\ntc filter add dev eth0 egress protocol ip pref 1 u32 match ip dst 10.0.0.0/8 action skbedit mark 5 priority 3", 2, "priority of an action"},
		{"tc qdisc add dev eth0 root tbf rate 1mbit burst 1000 limit 20000", 1, "drops all packets that are longer"},
		{filter + "u32 match ip src 10.0.0.0/8 police rate 1mbit drop flowid 1:1", 3, "without a burst"},
		{filter + "handle 0x106/0xff fw flowid 1:1", 3, "matches nothing"},
		{htb + "tc class change dev eth0 classid 1:5 htb rate 1mbit", 3, "no such class to change"},
		{htb + "tc qdisc add dev eth0 parent 1:1 cake bandwidth 500kbit overhead 38", 3, "one length rule"},
		{filter + "u32 match ip protocol 47 0xff match ip dport 80 0xffff flowid 1:1", 3, "match of byte 22"},
		{"R=1mbit\n. /etc/default/x\ntc qdisc add dev eth0 root tbf rate ${R:-2mbit} burst 10k limit 20000", 3, "is not known"},
		{"R=1mbit\nfor R in 2mbit 3mbit; do :; done\ntc qdisc add dev eth0 root tbf rate $R burst 10k limit 20000", 3, "is not known"},
		{"R=1mbit\nR+=0\ntc qdisc add dev eth0 root tbf rate $R burst 10k limit 20000", 3, "is not known"},
		{"set_r() { R=5mbit; }\nR=1mbit\nset_r\ntc qdisc add dev eth0 root tbf rate $R burst 10k limit 20000", 4, "is not known"},
		{"tc filter add dev eth0 ingress protocol ip u32 match ip src 10.0.0.0/8 action mirred egress redirect dev ifb0\ntc qdisc add dev ifb0 root tbf rate 1mbit burst 10k limit 20000", 1, "these packets only"},
		{htb + "nft add rule ip x y meta priority set 1:1", 3, "outside of tc"},
		{"R=10\nR=$(cat /etc/rate)\ntc qdisc add dev eth0 root tbf rate ${R}mbit burst 10k limit 20000", 3, "is not known"},
		{"R=$(uci -q get x)\nR=${R:-20}\ntc qdisc add dev eth0 root tbf rate ${R}mbit burst 10k limit 20000", 3, "is not known"},
		{"R=10\nwhile read -r R; do :; done < x\ntc qdisc add dev eth0 root tbf rate ${R}mbit burst 10k limit 20000", 3, "is not known"},
		{"R=10\nIFS=, read -r R B < x\ntc qdisc add dev eth0 root tbf rate ${R}mbit burst 10k limit 20000", 3, "is not known"},
		{"R=10\nX=$((R++))\ntc qdisc add dev eth0 root tbf rate ${R}mbit burst 10k limit 20000", 3, "is not known"},
		{"R=1000\n((R*=2))\ntc qdisc add dev eth0 root tbf rate ${R}kbit burst 10k limit 20000", 3, "is not known"},
		{"tc qdisc add dev eth0 root handle 1: htb default 10\ntc class add dev eth0 parent 1: classid 1:1 htb rate $UNKNOWN\ntc class add dev eth0 parent 1:1 classid 1:10 htb rate 10mbit", 3, "parent 1:1 was refused"},
		{"R=10\ncase $1 in fast) R=50 ;; esac\ntc qdisc add dev eth0 root tbf rate ${R}mbit burst 10k limit 20000", 3, "is not known"},
		{"set -- $(cat x)\ntc qdisc add dev eth0 root tbf rate ${1:-5}mbit burst 10k limit 20000", 2, "is not known"},
		{"setdev() { DEV=$1; }\nsetdev eth0\ntc qdisc replace dev $DEV root tbf rate 10mbit burst 10k limit 20000\nsetdev eth1\ntc qdisc replace dev $DEV root tbf rate 20mbit burst 10k limit 20000", 5, "another interface than in line 3"},
		{"bash <<S\ntc qdisc add dev eth0 root tbf rate 10mbit burst 10k limit 20000\nS\ntc qdisc add dev eth0 root tbf rate 5mbit burst 10k limit 20000", 2, "not evaluated"},
		{"function slow(){\ntc qdisc add dev eth0 root tbf rate 1mbit burst 10k limit 20000\n}", 2, "not evaluated"},
		{filter + "u32 match ip tos 0x11 0xff flowid 1:1", 3, "ECN"},
		{filter + "u32 match ip tos 0x10 0x1c flowid 1:1", 3, "not a range"},
		{filter + "u32 match u8 0x10 0xff at 33 flowid 1:1", 3, "byte 33"},
		{filter + "u32 match u16 0 0xffc0 at 4 flowid 1:1", 3, "byte 4"},
		{filter + "u32 ht 1: match u32 0 0 flowid 1:1", 3, "hash tables"},
		{filter + "u32 match ip6 dst 2001:db8::/32 flowid 1:1", 3, "another protocol"},
		{filter + "u32 match ip src 10.0.0.1 match ip src 10.0.0.2 flowid 1:1", 3, "contradicts"},
		{filter + "u32 flowid 1:1", 3, "matches nothing"},
		{filter + "bpf obj x.o", 3, "filter bpf"},
		{filter + "flower src_mac 02:00:00:00:00:01 flowid 1:1", 3, `"src_mac"`},
		{filter + "flower ip_tos 0x11 flowid 1:1", 3, "ECN"},
		{filter + "chain 3 matchall flowid 1:1", 3, "chain 3"},
		{filter + "matchall action goto chain 1", 3, "goto"},
		{filter + "matchall action mirred egress mirror dev eth1", 3, "mirror"},
		{filter + "matchall action mirred egress redirect dev eth1", 3, "redirection to eth1"},
		{filter + "matchall action vlan pop", 3, "action vlan"},
		{filter + "matchall action police rate 1mbit burst 9k conform-exceed pipe/pipe action police rate 1mbit burst 9k", 3, "same second police"},
		{filter + "matchall action police rate 1mbit", 3, "burst"},
		{filter + "matchall action police rate $RATE burst 10k", 3, "$RATE is not known"},
		{filter + "matchall action police rate 10% burst 10k", 3, "--link"},
		{filter + "matchall action police rate 1mbitt burst 10k", 3, `"1mbitt"`},
		{filter + "matchall action police rate 7bit burst 10k", 3, "less than a byte"},
		{filter + "matchall action police rate 1mbit burst", 3, "not complete"},
		{filter + "pref 1 matchall action police rate 1mbit burst 9k conform-exceed continue\n" +
			"tc filter add dev eth0 parent 1: protocol ip pref 2 matchall action police rate 2mbit burst 9k", 3, "continue"},
		{htb + "tc filter add dev eth0 parent 1:1 matchall flowid 1:2", 3, "filters of 1:1"},
		{htb + "tc class add dev eth0 parent 1: classid 1:1 htb rate 1mbit", 3, "from line 2"},
		{htb + "tc class add dev eth0 parent 1: classid 1:2 htb ceil 1mbit", 3, "rate is missing"},
		{htb + "tc class add dev eth0 parent 1: classid 1:2 hfsc ls rate 1mbit", 3, `kind "hfsc"`},
		{htb + "tc qdisc add dev eth0 parent 1:1 netem delay 10ms\ntc filter add dev eth0 parent 1: matchall flowid 1:1", 3, "qdisc netem"},
		{htb + "tc qdisc add dev eth0 parent 1:1 tbf rate 1mbit burst 10k limit 10k\ntc filter add dev eth0 parent 1: matchall flowid 1:1", 3, "tbf below a class"},
		{"tc qdisc add dev eth0 root handle 1: stab linklayer atm htb", 1, "linklayer atm"},
		{"tc qdisc add dev eth0 root fq_codel", 1, "--link"},
		{"tc qdisc add dev eth0 root cake bandwidth 1mbit besteffort flows ingress", 1, "ingress"},
		{htb + "tc qdisc add dev eth0 parent 1:1 cake wash\ntc filter add dev eth0 parent 1: matchall flowid 1:1", 3, "wash"},
		{"tc qdisc add dev eth0 root tbf burst 10k limit 10k", 1, "rate is missing"},
		{"tc qdisc add dev eth0 root tbf rate 1mbit burst 10k", 1, "limit or latency"},
		{"tc qdisc add root tbf rate 1mbit burst 10k limit 1k", 1, "dev is missing"},
		{"[ \"$1\" = fast ] && tc qdisc add dev eth0 root tbf rate 1mbit burst 10k limit 1k", 1, "begins in line 1"},
		{"false || tc qdisc add dev eth0 root tbf rate 1mbit burst 10k limit 1k", 1, "begins in line 1"},
		{"grep x y && echo && tc qdisc add dev eth0 root tbf rate 1mbit burst 10k limit 1k", 1, "begins in line 1"},
		{"exit 0\ntc qdisc add dev eth0 root tbf rate 1mbit burst 10k limit 1k", 2, "begins in line 1"},
		{"tc qdisc add dev eth0 root tbf rate 1mbit burst 10k limit 1k\nif true; then\ntc qdisc del dev eth0 root\nfi", 3, "begins in line 2"},
		{"tc qdisc change dev eth0 root tbf rate 1mbit burst 10k limit 1k", 1, "no qdisc there"},
		{"tc filter change dev eth0 ingress pref 1 matchall action drop", 1, "handle is missing"},
		{"tc filter change dev eth0 ingress pref 1 handle 1 matchall action drop", 1, "no such filter"},
		{"tc qdisc add dev eth0 root handle 1: htb default 1\ntc class add dev eth0 parent 1: classid 1:1 htb rate 9mbit\ntc qdisc add dev eth0 parent 1:1 pfifo_fast", 3, "three bands"},
		{"if true; then\n\ttc qdisc add dev eth0 root tbf rate 1mbit burst 10k limit 1k\nfi", 2, "begins in line 1"},
		{chain(9), 10, "class 1:9 is at level 9: htb has at most 8"},
		{
			"tc filter add dev eth0 ingress pref 1 protocol ip matchall action police rate 1mbit burst 9k overhead 4\n" +
				"tc filter add dev eth0 ingress pref 2 protocol ipv6 matchall action police rate 1mbit burst 9k", 2, "a policy has one",
		},
	} {
		in, err := Dialect{}.Import(routers.Source{Name: "script", Text: c.script})
		if err != nil {
			t.Errorf("%q: %v", c.script, err)
			continue
		}
		var all []string
		for _, p := range in.Problems {
			all = append(all, fmt.Sprintf("line %d: %s", p.Line, p.Reason))
		}
		for _, d := range in.Drafts {
			for _, p := range d.Problems {
				all = append(all, fmt.Sprintf("line %d: %s", p.Line, p.Reason))
			}
			if len(d.Classes) > 0 {
				if _, err := (policyfile.Source{
					Name: "p", Text: rendered(t, d),
				}).Compile(); err != nil {
					all = append(all, fmt.Sprintf("line %d: %v", strings.Count(c.script, "\n")+1, err))
				}
			}
		}
		found := false
		for _, p := range all {
			found = found || strings.HasPrefix(p, fmt.Sprintf("line %d: ", c.line)) &&
				strings.Contains(p, c.reason)
		}
		if !found {
			t.Errorf("%s\nproblems %q, want one with %q in line %d", c.script, all, c.reason, c.line)
		}
	}
}

// chain returns a script with a chain of classes of htb.
func chain(levels int) string {
	s := fmt.Sprintf("tc qdisc add dev eth0 root handle 1: htb default %x\n", levels)
	for i := range levels {
		s += fmt.Sprintf("tc class add dev eth0 parent 1:%x classid 1:%x htb rate 1mbit\n", i, i+1)
	}
	return s
}

// TestTCNotes checks that differences which remain are named, with their lines.
func TestTCNotes(t *testing.T) {
	t.Parallel()
	const (
		htb   = "tc qdisc add dev eth0 root handle 1: htb default 3\ntc class add dev eth0 parent 1: classid 1:1 htb rate 9mbit\n"
		two   = "tc class add dev eth0 parent 1:1 classid 1:2 htb rate 4mbit ceil 8mbit\n"
		three = "tc class add dev eth0 parent 1:1 classid 1:3 htb rate 4mbit ceil 8mbit"
		mark  = "\ntc filter add dev eth0 parent 1: protocol ip prio 1 handle 1 fw flowid 1:"
		to2   = "\ntc filter add dev eth0 parent 1: protocol ip prio 1 u32 match ip src 10.0.0.0/8 flowid 1:2"
	)
	for _, c := range []struct {
		script string
		line   int    // 0: no note
		reason string // a part of it
	}{
		{htb + two + three + mark + "2\ntc filter add dev eth0 parent 1: protocol ip prio 1 matchall flowid 1:3", 6, "protocol or kind, from line 5"},
		{htb + two + three + mark + "2" + mark + "3", 6, "line 5 has a filter with its handle"},
		{htb + two + three + to2, 0, ""},
		{htb + two + three + " burst 15k cburst 4k" + to2, 4, "burst and cburst"},
		{htb + two + three + " quantum 2999" + to2, 2, "rounded to weights"},
		{htb + two + "tc class add dev eth0 parent 1:1 classid 1:3 htb rate 6mbit" + to2, 2, "add up to 10mbit, above its 9mbit: htb sends them all, and here guarantees share the link's rate; those of the queues are reduced to fit"},
		{htb + two + "tc class add dev eth0 parent 1:2 classid 1:3 htb rate 4mbit", 1, "shares the excess among all classes"},
		{htb + three + "\ntc filter add dev eth0 parent 1: protocol ip prio 1 u32 match ip tos 0x10 0xff flowid 1:3", 4, "ECN bits"},
		{htb + three + "\ntc filter add dev eth0 parent 1: protocol ip flower ip_tos 0x10 flowid 1:3", 4, "ECN bits"},
		{htb + three + "\ntc filter add dev eth0 parent 1: protocol ip handle 1/0xff fw flowid 1:3", 4, "other bits of the mark"},
		{htb + three + "\ntc filter add dev eth0 parent 1: protocol ip u32 match u16 0 0xffc0 at 2 flowid 1:3", 4, "total length"},
		{htb + two + three + to2 + "\ntc filter add dev eth0 parent 1: protocol ipv6 prio 1 u32 match ip6 src ::/0 flowid 1:2", 6, "another protocol or kind, from line 5"},
		{"tc qdisc add dev eth0 root tbf rate 10mbit burst 256m latency 25ms", 1, "burst 256m is left out: tbf sends as much at once"},
		{"tc qdisc add dev eth0 root tbf rate 10mbit burst 10k latency 25ms mtu 1600 peakrate 20mbit", 1, "peakrate 20mbit is left out"},
		{htb + three + " burst 1600", 3, "are left out"},
		{htb + two + three + to2 + "\ntc qdisc add dev eth0 parent 1:2 fq_codel memory_limit 4mb", 6, "memory_limit 4mb is left out"},
		{"tc qdisc add dev eth0 root cake bandwidth 1mbit flows", 1, "diffserv3, the default of cake: the tins"},
		{"tc qdisc add dev eth0 root cake bandwidth 1mbit diffserv4 besteffort flows", 0, ""},
		{"tc qdisc add dev eth0 root cake bandwidth 1mbit besteffort dual-dsthost", 0, ""},
		{"tc qdisc add dev eth0 root cake bandwidth 1mbit besteffort", 1, "triple-isolate, the default of cake: the destinations"},
		{"tc qdisc add dev eth0 root cake bandwidth 1mbit besteffort dual-srchost nat", 1, "nat"},
		{htb + three + "\ntc qdisc replace dev eth0 root handle 1: htb default 1", 4, "tc rejects it"},
		{htb + three + "\ntc qdisc replace dev eth0 root handle 1: tbf rate 1mbit burst 10k limit 20000", 4, "tc rejects it"},
		{htb + three + "\ntc class del dev eth0 classid 1:1", 4, "tc rejects it"},
		{htb + three + "\ntc class add dev eth0 parent 1:7 classid 1:9 htb rate 1mbit", 4, "no class 1:7 yet"},
		{htb + three + "\ntc filter del dev eth0 parent 1: protocol ip", 4, "tc rejects it"},
		{htb + three + "\ntc qdisc add dev eth0 parent 1:3 handle 2: pfifo limit 7\ntc qdisc replace dev eth0 parent 1:9 handle 2: pfifo limit 8", 5, "its handle is that of the qdisc in line 4"},
		{"tc qdisc add dev eth0 root handle 1: htb default 10\ntc class add dev eth0 parent 1: classid 1:1 htb rate 100mbit ceil 1mbit\ntc class add dev eth0 parent 1:1 classid 1:10 htb rate 10mbit ceil 10mbit", 2, "above its 1mbit"},
	} {
		in, err := Dialect{}.Import(routers.Source{Name: "script", Text: c.script + "\nip link set dev eth0 txqueuelen 1000\n"})
		if err != nil {
			t.Fatal(err)
		}
		d, problems, err := in.Pick("eth0")
		if err != nil || problems != nil {
			t.Errorf("%s\n%v, %v", c.script, problems, err)
			continue
		}
		text := rendered(t, d)
		compileText(t, text)
		if len(d.Notes) > 1 || (len(d.Notes) == 0) != (c.line == 0) {
			t.Errorf("%s\nnotes %q, want one with %q", c.script, d.Notes, c.reason)
			continue
		}
		if c.line > 0 && (d.Notes[0].Line != c.line || !strings.Contains(d.Notes[0].Reason, c.reason) ||
			!strings.Contains(text, c.reason)) {
			t.Errorf("%s\nnote %+v, want %q in line %d\n%s", c.script, d.Notes[0], c.reason, c.line, text)
		}
	}
}

// TestTCOtherFiles checks errors for files that have no tc commands.
func TestTCOtherFiles(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"": "no tc command",
		"policy-map P\n class C\n  police 8000 1500 conform-action transmit\n": "no tc command",
		"qdisc htb 1: root refcnt 2 r2q 10 default 0x30\n":                     "it is what tc prints",
		"tc qdisc\x00": "not text",
		"\xff\xfe":     "not text",
	} {
		if _, err := (Dialect{}).Import(routers.Source{Text: text}); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want one with %q", text, err, want)
		}
	}
}

// TestTCSkipped checks that other commands are counted.
func TestTCSkipped(t *testing.T) {
	t.Parallel()
	in, err := Dialect{}.Import(routers.Source{Text: `modprobe ifb
iptables -t mangle -A POSTROUTING -p tcp -j MARK --set-mark 1 # tc
tc qdisc show dev eth0
tc filter add dev eth0 ingress matchall action mirred egress redirect dev ifb0
tc qdisc add dev ifb0 root tbf rate 1mbit burst 10k limit 10k
`})
	if err != nil {
		t.Fatal(err)
	}
	if len(in.Skipped) != 4 || len(in.Drafts) != 1 || in.Drafts[0].Name != "ifb0" ||
		len(in.Drafts[0].Problems) > 0 {
		t.Errorf("skipped %v, drafts %+v", in.Skipped, in.Drafts)
	}
}

// FuzzTC imports any text: it never panics, and a policy without problems compiles, or its errors
// have lines.
func FuzzTC(f *testing.F) {
	for _, c := range tcCases {
		f.Add(c.script)
	}
	f.Add("A=$A$A; tc qdisc add dev $A${A:-$B} root `x` \"y\n'\\")
	f.Fuzz(func(t *testing.T, text string) {
		in, err := Dialect{}.Import(
			routers.Source{Text: text, Options: routers.Options{Link: meter.BitRate(1e9)}})
		if err != nil {
			return
		}
		lines := strings.Count(text, "\n") + 1
		for _, d := range in.Drafts {
			r := rendered(t, d)
			for _, p := range d.Problems {
				if p.Line < 1 || p.Line > lines {
					t.Errorf("line %d of %d: %v", p.Line, lines, p)
				}
			}
			if len(d.Classes) == 0 {
				continue
			}
			if _, err := (policyfile.Source{Name: "p", Text: r}).Compile(); err != nil &&
				strings.Contains(err.Error(), "yaml") {
				t.Errorf("%v\n%s", err, r)
			}
		}
	})
}
