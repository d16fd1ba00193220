package lint

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// ample is a meter whose bursts cause no findings at an RTT of 50 ms.
const ample = "{type: srtcm, cir: 1mbit, cbs: 64KiB, ebs: 64KiB}"

func findings(t *testing.T, text string, o Options) []Finding {
	t.Helper()
	f, err := policyfile.Load("p.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	p, err := f.Compile()
	if err != nil {
		t.Fatal(err)
	}
	return Policy(f, p, o)
}

// TestFindings checks each lint on policies with and without its mistake. A finding is
// written as place, level and a part of its text.
func TestFindings(t *testing.T) {
	const (
		udp  = "match: {proto: udp, dport: 5000}, "
		mild = ", yellow: {dscp: af12}, red: {dscp: af13}"
	)
	class := func(keys string) string { return "classes: [{name: a, " + keys + "}]\n" }
	// A queue q that only green packets enter, one that all colors enter, and two queues of
	// a link.
	const wan = "links: {wan: {rate: 12mbit}}\n"
	queued := func(keys string) string {
		return class(udp+"green: {queue: q}") + "queues: {q: {" + keys + "}}\n"
	}
	colored := func(wred string) string {
		return class(udp+"meter: "+ample+", green: {queue: q}, yellow: {queue: q}, red: {queue: q}") +
			"queues: {q: {rate: 12mbit, limit: 1s, wred: {" + wred + "}}}\n"
	}
	shared := func(first, a, b string) string {
		return "classes: [{name: a, " + udp + first +
			"}, {name: b, match: {proto: esp}, green: {queue: b}}]\n" +
			"queues: {a: {" + strings.TrimPrefix(a+", link: wan, limit: 1s}", ", ") + ", b: {" + strings.TrimPrefix(b+", link: wan, limit: 1s}}\n", ", ") + wan
	}
	// Links first and second below wan, and queues q0, q1 and so on.
	tree := func(first, second string, queues ...string) string {
		classes, list := "", ""
		for i, q := range queues {
			classes += fmt.Sprintf("{name: %c, match: {proto: %s}, green: {queue: q%d}}, ", 'a'+i,
				[]string{"gre", "esp", "253"}[i], i)
			list += fmt.Sprintf("q%d: {%s, limit: 1s}, ", i, q)
		}
		link := func(name, keys string) string {
			return name + ": {" + strings.TrimPrefix(keys+", link: wan}", ", ")
		}
		return "classes: [" + classes + "]\nqueues: {" + list + "}\nlinks:\n  wan: {rate: 12mbit}\n  " +
			link("first", first) + "\n  " + link("second", second) + "\n"
	}
	// Two flows of one envelope; the class of the lower one comes first.
	flow := func(cir, rank string) string {
		return "meter: {type: trtcm4115, cir: " + cir +
			", cbs: 64KiB, eir: 1mbit, ebs: 64KiB, envelope: e, rank: " + rank + "}, "
	}
	lent := func(high, low string) string {
		return "classes: [{name: a, " + udp + flow(low, "1") +
			"yellow: {dscp: 0}, green: {queue: a}}, {name: b, match: {proto: esp}, " + flow(high, "2") +
			"yellow: {dscp: 0}, green: {queue: b}}]\n" +
			"queues: {a: {link: wan, limit: 1s}, b: {link: wan, limit: 1s, priority: 1}}\nenvelopes: {e: {}}\n" + wan
	}
	// The same with the higher one first, and an action for yellow.
	lentBack := func(low, yellow, flags string) string {
		return "classes: [{name: a, " + udp + flow("5mbit", "2") + "green: {queue: a}, yellow: " + yellow +
			"}, {name: b, match: {proto: esp}, " + flow(low, "1") +
			"yellow: {dscp: 0}, green: {queue: b}}]\n" +
			"queues: {a: {link: wan, limit: 1s}, b: {link: wan, limit: 1s, priority: 1}}\nenvelopes: {e: {" + flags + "}}\n" + wan
	}
	for _, test := range []struct {
		name, text string
		want       []string
	}{
		// Bursts.
		{"bursts are fine", class(udp + "meter: " + ample + mild), nil},
		{"CBS a byte below the MTU", class(udp + "meter: {type: srtcm, cir: 1mbit, cbs: 1499, ebs: 64KiB}" + mild), []string{"p.yaml:1:93 warning CBS of 1499 B is below the MTU"}},
		{"CBS at the MTU", class(udp + "meter: {type: srtcm, cir: 1mbit, cbs: 1500, ebs: 64KiB}" + mild), []string{"p.yaml:1:93 note smaller than a GSO packet"}},
		{"CBS a byte below GSO", class(udp + "meter: {type: srtcm, cir: 1mbit, cbs: 65535, ebs: 64KiB}" + mild), []string{"p.yaml:1:93 note smaller than a GSO packet"}},
		{"EBS below the MTU", class(udp + "meter: {type: srtcm, cir: 1mbit, cbs: 64KiB, ebs: 1}" + mild), []string{"p.yaml:1:105 warning EBS of 1 B"}},
		{"EBS zero", class(udp + "meter: {type: srtcm, cir: 1mbit, cbs: 64KiB, ebs: 0}" + mild), nil},
		{"PBS", class(udp + "meter: {type: trtcm, cir: 1mbit, cbs: 64KiB, pir: 1mbit, pbs: 9}" + mild), []string{"p.yaml:1:117 warning PBS of 9 B"}},
		{"burst of a token bucket", class(udp + "meter: {type: token-bucket, rate: 1mbit, burst: 9}" + mild), []string{"warning burst of 9 B"}},
		{"packets are not bytes", class(udp + "meter: {type: token-bucket, rate: 1p/1s, burst: 9, count: packets}" + mild), nil},
		{"a meter of two classes, once", "classes: [{name: a, " + udp + "meter: m" + mild + "}, {name: b, match: {proto: esp}, meter: m" + mild + "}]\nmeters: {m: {type: token-bucket, rate: 1mbit, burst: 9}}\n", []string{"p.yaml:2:54 warning burst of 9 B"}},
		{"a meter of a chain", class(udp+"meter: {type: srtcm, cir: 1mbit, cbs: 64KiB, ebs: 64KiB, then: m}"+mild) + "meters: {m: {type: token-bucket, rate: 1mbit, burst: 9, color: aware}}\n", []string{"p.yaml:2:54 warning burst of 9 B"}},
		// Bursts and backlogs of many seconds.
		{"10 s of the rate", class(udp + "meter: {type: token-bucket, rate: 10mbit, burst: 12500000}"), nil},
		{"a byte more than 10 s", class(udp + "meter: {type: token-bucket, rate: 10mbit, burst: 12500001}"), []string{"p.yaml:1:104 warning a: burst of 12,500,001 bytes is 10 s of its rate"}},
		{"215 s of the rate", class(udp + "meter: {type: gcra, rate: 10mbit, burst: 268435456}"), []string{"warning a: burst of 268,435,456 bytes is 215 s of its rate: after a pause it passes at once, so for that long the limit does not hold"}},
		{"a GSO packet at a slow rate", class(udp + "meter: {type: token-bucket, rate: 16kbit, burst: 64KiB}"), nil},
		{"more than a GSO packet at a slow rate", class(udp + "meter: {type: token-bucket, rate: 16kbit, burst: 65537}"), []string{"warning burst of 65,537 bytes is 32.8 s"}},
		{"EBS of minutes", class(udp + "meter: {type: srtcm, cir: 1mbit, cbs: 64KiB, ebs: 64MiB}" + mild), []string{"warning a: EBS of 67,108,864 bytes is 537 s"}},
		{"CBS of minutes", class(udp + "meter: {type: trtcm4115, cir: 1mbit, cbs: 64MiB, eir: 1mbit, ebs: 64KiB}" + mild), []string{"warning a: CBS of"}},
		{"PBS of minutes", class(udp + "meter: {type: trtcm, cir: 1mbit, cbs: 64KiB, pir: 1mbit, pbs: 64MiB}" + mild), []string{"warning a: PBS of"}},
		{"no rate, no time", class(udp + "meter: {type: trtcm4115, cir: 1mbit, cbs: 64KiB, eir: 0bit, ebs: 64MiB}" + mild), nil},
		{"a long burst for each key", class(udp + "meter: {type: token-bucket, rate: 1mbit, burst: 64MiB, per: src, evict: idle}"), []string{"warning a: burst of"}},
		{"a long burst of a budget", class(udp + "meter: {type: token-bucket, rate: 1mbit, burst: 64MiB, share: {budget: b, store: host}}"), []string{"warning a: burst of", "note budget b charges a packet in each of its shapers"}},
		{"a budget that charges once", class(udp + "meter: {type: token-bucket, rate: 1mbit, burst: 64KiB, share: {budget: b, store: host, count: once}}"), nil},
		{"a budget on a server", class(udp + "meter: {type: token-bucket, rate: 80mbit, burst: 1MiB, share: {budget: b, store: 'redis://h'}}"), nil},
		{"a long burst behind a meter", class(udp+"meter: {type: srtcm, cir: 1mbit, cbs: 64KiB, ebs: 64KiB, then: m}"+mild) + "meters: {m: {type: token-bucket, rate: 1mbit, burst: 64MiB, color: aware}}\n", []string{"p.yaml:2:54 warning m: burst of"}},
		{"a few packets at a slow rate", class(udp + "meter: {type: token-bucket, rate: 1p/1s, burst: 43, count: packets}"), nil},
		{"many packets at a slow rate", class(udp + "meter: {type: token-bucket, rate: 1p/1s, burst: 44, count: packets}"), []string{"warning a: burst of 44 packets is 44 s of its rate"}},
		{"many packets at a fast rate", class(udp + "meter: {type: token-bucket, rate: 1000p/1s, burst: 10000, count: packets}"), nil},
		{"a window of a month", class(udp + "meter: {type: sliding-counter, limit: 500GB, window: 30d}"), nil},
		{"a backlog of 10 s", queued("rate: 12mbit, limit: 10s, fair: false"), nil},
		{"a backlog of more than 10 s", queued("rate: 12mbit, limit: 10001ms, fair: false"), []string{"p.yaml:2:35 warning queue q: a full queue delays each packet by 10 s"}},
		{"a backlog of minutes in bytes", queued("rate: 12mbit, limit: 1GB, fair: false"), []string{"warning queue q: a full queue delays each packet by 667 s"}},
		{"a backlog of seconds in packets", queued("rate: 1mbit, limit: 1000p, fair: false"), []string{"warning queue q: a full queue delays each packet by 12 s"}},
		{"a backlog of minutes with codel", queued("rate: 12mbit, limit: 1min"), nil},
		{"a backlog of minutes with wred", queued("rate: 12mbit, limit: 1min, wred: {green: {min: 1s, max: 2s, probability: 1}}"), nil},
		// Speed boosts.
		{"a speed boost", class(udp + "meter: {type: trtcm, cir: 100mbit, cbs: 187500000, pir: 400mbit, pbs: 2500000}, yellow: drop"), nil},
		{"no boost: the first bucket is the stricter one", class(udp + "meter: {type: trtcm, cir: 100mbit, cbs: 2500000, pir: 400mbit, pbs: 2500000}, yellow: drop"), []string{"note class a treats yellow and red alike"}},
		{"no boost: yellow passes", class(udp + "meter: {type: trtcm, cir: 100mbit, cbs: 125000000, pir: 400mbit, pbs: 2500000}"), []string{"note class a treats green and yellow alike"}},
		{"no boost: both are marked", class(udp + "meter: {type: trtcm, cir: 100mbit, cbs: 125000000, pir: 400mbit, pbs: 2500000}, yellow: {dscp: 0}, red: {dscp: 0}"), []string{"note class a treats yellow and red alike"}},
		{"no boost: an average", class(udp + "meter: {type: tswtcm, cir: 1mbit, pir: 2mbit, window: 1s}, yellow: drop"), []string{"note class a treats yellow and red alike"}},
		// Matches that contradict themselves.
		{"IPv4 and IPv6", class("match: {src: 10.0.0.0/8, dst: 2001:db8::/32}"), []string{"p.yaml:1:51 warning class a matches no packet: src and dst have different IP versions"}},
		{"IPv4 and both", class("match: {src: 10.0.0.0/8, dst: [10.0.0.1, 2001:db8::/32]}"), nil},
		{"icmpv6 with IPv4", class("match: {src: 10.0.0.0/8, proto: icmpv6}"), []string{"p.yaml:1:53 warning class a matches no packet: IPv4 packets do not have the protocol icmpv6, but icmp"}},
		{"icmpv6 and icmp with IPv4", class("match: {src: 10.0.0.0/8, proto: [icmpv6, icmp]}"), nil},
		{"icmp with IPv6", class("match: {dst: 2001:db8::/32, proto: [icmp, igmp]}"), []string{"warning IPv6 packets do not have the protocols icmp and igmp, but icmpv6"}},
		{"icmpv6 with IPv6", class("match: {dst: 2001:db8::/32, proto: icmpv6}"), nil},
		{"icmpv6 in the EtherType of IPv4", class("match: {ethertype: ipv4, proto: icmpv6}"), []string{"warning but icmp"}},
		{"ports of protocols without ports", class("match: {proto: [icmp, gre], dport: 80}"), []string{"warning class a matches no packet: ports are only those of tcp, udp, dccp, sctp and udplite"}},
		{"ports of some protocols", class("match: {proto: [gre, sctp], dport: 80}"), nil},
		{"ports of a range of protocols", class("match: {proto: 0-20, dport: 80}"), nil},
		{"IP in ARP", class("match: {ethertype: arp, src: 10.0.0.0/8}"), []string{"warning class a matches no packet: the other keys are those of IP packets, which have none of these EtherTypes"}},
		{"DSCP of ARP", class("match: {ethertype: arp, dscp: ef}"), []string{"warning none of these EtherTypes"}},
		{"IPv6 addresses in the EtherType of IPv4", class("match: {ethertype: ipv4, src: 2001:db8::/32}"), []string{"warning none of these EtherTypes"}},
		{"IPv6 addresses in labels", class("match: {ethertype: mpls, src: 2001:db8::/32}"), nil},
		{"ports in PPPoE", class("match: {ethertype: pppoe, dport: 80}"), nil},
		{"ARP with a priority", class("match: {ethertype: arp, pcp: 3, vlan: 7, length: 0-100}"), nil},
		{"lengths as EtherTypes", class("match: {ethertype: 0-0x5ff}"), nil},
		{"all EtherTypes", class("match: {ethertype: 0-0xffff}"), nil},
		{"a mapped address", class("match: {src: \"::ffff:10.0.0.1\"}"), []string{"warning class a matches no packet: packets on the wire do not have IPv4-mapped addresses: write 10.0.0.1"}},
		// Classes that are never reached.
		{"never reached", "classes: [{name: a, match: {proto: udp}}, {name: b, match: {proto: udp, dport: 53}}]", []string{"p.yaml:1:60 warning class b is never reached: class a"}},
		{"never reached behind all", "classes: [{name: a}, {name: b, match: {src: 10.0.0.0/8}}]", []string{"p.yaml:1:39 warning class b is never reached"}},
		{"never reached, no match", "classes: [{name: a}, {name: b}]", []string{"p.yaml:1:22 warning class b is never reached"}},
		{"reached, in part", "classes: [{name: a, match: {proto: udp, dport: 53}}, {name: b, match: {proto: udp}}]", nil},
		{"reached, other prefix", "classes: [{name: a, match: {src: 10.0.0.0/8}}, {name: b, match: {src: 11.0.0.0/8}}]", nil},
		{"reached, non-IP", "classes: [{name: a}, {name: b, match: {ethertype: arp}}]", nil},
		// Colors that are treated alike.
		{"yellow as green", class(udp + "meter: " + ample), []string{"p.yaml:1:11 note class a treats green and yellow alike"}},
		{"red as yellow", class(udp + "meter: " + ample + ", yellow: drop, red: drop"), []string{"note class a treats yellow and red alike"}},
		{"all alike", class(udp + "meter: " + ample + ", red: pass"), []string{"note green and yellow", "note yellow and red"}},
		{"marked alike", class(udp + "meter: " + ample + ", green: {dscp: ef}, yellow: {dscp: ef}, red: {dscp: 0}"), []string{"note green and yellow"}},
		{"a token bucket has no yellow", class(udp + "meter: {type: token-bucket, rate: 1mbit, burst: 64KiB}, red: {dscp: 0}"), nil},
		{"a token bucket, red as green", class(udp + "meter: {type: token-bucket, rate: 1mbit, burst: 64KiB}, red: pass"), []string{"note green and red"}},
		{"an aware token bucket has yellow", class(udp + "meter: {type: token-bucket, rate: 1mbit, burst: 64KiB, color: aware}, red: {dscp: 0}"), []string{"note green and yellow"}},
		{"no meter, no colors", class(udp + "green: pass"), nil},
		// TCP.
		{"TCP fills what it needs", class("match: {proto: tcp, dport: 80}, meter: {type: token-bucket, rate: 100mbit, burst: 625000}"), nil},
		{"TCP lacks a byte", class("match: {proto: tcp, dport: 80}, meter: {type: token-bucket, rate: 100mbit, burst: 624999}"), []string{"warning class a has a burst of 624,999 bytes; a TCP flow needs 625,000 bytes in flight to fill 100mbit at a 50ms RTT and will fall short"}},
		{"TCP within a range", class("match: {proto: 1-6, dport: 80}, meter: {type: token-bucket, rate: 100mbit, burst: 70000}"), []string{"warning TCP flow"}},
		{"both bursts of srTCM count", class("match: {proto: tcp, dport: 80}, meter: {type: srtcm, cir: 100mbit, cbs: 312500, ebs: 312500}, yellow: {dscp: af12}"), nil},
		{"the peak of trTCM counts", class("match: {proto: tcp, dport: 80}, meter: {type: trtcm, cir: 1mbit, cbs: 64KiB, pir: 100mbit, pbs: 64KiB}, yellow: {dscp: af12}"), []string{"warning to fill 100mbit"}},
		{"no TCP", class(udp + "meter: {type: token-bucket, rate: 100mbit, burst: 70000}"), nil},
		{"red is not dropped", class("match: {proto: tcp, dport: 80}, meter: {type: token-bucket, rate: 100mbit, burst: 70000}, red: {dscp: 0}"), nil},
		// Control traffic.
		{"routing in a class that drops", class("meter: {type: token-bucket, rate: 1mbit, burst: 64KiB}"), []string{"p.yaml:1:18 warning class a can drop IPv6 neighbor discovery, OSPF, BGP"}},
		{"routing in a class that queues", class("green: {queue: q}") + "queues: {q: {rate: 1mbit, limit: 1s}}\n", []string{"p.yaml:1:18 warning can drop IPv6 neighbor discovery"}},
		{"routing in a class that drops what has no ECN", class("green: {ecn: ce, else: drop}"), []string{"warning OSPF"}},
		{"routing that passes", class("green: {dscp: 0}"), nil},
		{"routing in a class before", "classes: [{name: control, match: {dscp: cs6}}, {name: a, meter: {type: token-bucket, rate: 1mbit, burst: 64KiB}}]", nil},
		{"routing in a class of its own that queues the excess", class("match: {dscp: cs6}, meter: {type: token-bucket, rate: 1mbit, burst: 64KiB}, red: {queue: q}") + "queues: {q: {rate: 1mbit, limit: 1s}}\n", nil},
		{"routing in a class of its own that drops the excess", class("match: {dscp: cs6}, meter: {type: token-bucket, rate: 1gbit, burst: 64MiB}, red: drop"), []string{"warning can drop IPv6 neighbor discovery"}},
		{"routing in a class of its own that queues all", class("match: {dscp: cs6}, green: {queue: q}") + "queues: {q: {rate: 1mbit, limit: 1s}}\n", []string{"warning can drop IPv6 neighbor discovery"}},
		{"routing with TCP in a class that queues the excess", class("match: {proto: tcp}, meter: {type: token-bucket, rate: 1mbit, burst: 64KiB}, red: {queue: q}") + "queues: {q: {rate: 1mbit, limit: 1s}}\n", []string{"warning can drop BGP:"}},
		{"ARP", class("match: {ethertype: arp}, green: drop"), []string{"warning can drop ARP:"}},
		{"BGP", class("match: {dport: 179}, green: drop"), []string{"warning can drop BGP:"}},
		{"BFD and LDP", class("match: {proto: udp}, green: drop"), []string{"warning can drop BFD, LDP:"}},
		{"IS-IS", class("match: {length: 0-1500}, green: drop"), []string{"warning IS-IS"}},
		{"none of it", class("match: {src: 10.0.0.0/8}, green: drop"), nil},
		// Unused parts.
		{"meter not used", class("green: pass") + "meters: {m: " + ample + "}\n", []string{"p.yaml:2:13 note no class uses meter m"}},
		{"meter used in a chain", class(udp+"meter: {type: srtcm, cir: 1mbit, cbs: 64KiB, ebs: 64KiB, then: m}"+mild) + "meters: {m: {type: srtcm, cir: 1mbit, cbs: 64KiB, ebs: 64KiB, color: aware}}\n", nil},
		{"queue not used", class("green: pass") + "queues: {q: {rate: 1mbit, limit: 1s}}\n", []string{"p.yaml:2:13 note no action uses queue q"}},
		{"link not shared", class("green: pass") + "links: {wan: {rate: 1mbit}}\n", []string{"p.yaml:2:14 note no queue uses link wan"}},
		// Queues. 12 Mbit/s is one packet of 1500 bytes per millisecond.
		{"ecn without early drops", queued("rate: 12mbit, limit: 1s, fair: false, ecn: true"), []string{"warning ecn of queue q has no effect: without wred or codel it drops no packet early"}},
		{"ecn without early drops in a fair queue", queued("rate: 12mbit, limit: 1s, codel: false, ecn: true"), []string{"warning ecn of queue q has no effect"}},
		{"ecn with codel", queued("rate: 12mbit, limit: 1s, fair: false, codel: true, ecn: true"), nil},
		{"ecn with wred", queued("rate: 12mbit, limit: 1s, ecn: true, wred: {green: {min: 1ms, max: 500ms, probability: 1}}"), nil},
		{"ecn off", queued("rate: 12mbit, limit: 1s, fair: false, ecn: false"), nil},
		{"seed without dice", queued("rate: 12mbit, limit: 1s, fair: false, seed: 7"), []string{"note seed of queue q has no effect: only wred and fair use it"}},
		{"seed of a fair queue", queued("rate: 12mbit, limit: 1s, seed: 7"), nil},
		{"limit at the MTU", queued("rate: 12mbit, limit: 1500"), nil},
		{"limit a byte below the MTU", queued("rate: 12mbit, limit: 1499"), []string{"p.yaml:2:35 warning limit of 1499 B is below the MTU: a packet of 1500 bytes never enters queue q"}},
		{"limit of a packet's time", queued("rate: 12mbit, limit: 1ms, fair: false"), nil},
		{"limit a ns below a packet's time", queued("rate: 12mbit, limit: 999999ns, fair: false"), []string{"p.yaml:2:35 warning limit of 999.999µs is below the 1ms that a packet of 1500 bytes takes at 12mbit"}},
		{"a packet's time is rounded up", queued("rate: 12345678bit, limit: 972000ns, fair: false"), []string{"warning 972.001µs"}},
		{"limit of one packet", queued("rate: 1bit, limit: 1p, fair: false"), nil},
		{"limit of a link at the MTU", queued("link: wan, limit: 1ms") + wan, nil},
		{"limit of a link below the MTU", queued("link: wan, limit: 999us") + wan, []string{"p.yaml:2:32 warning limit of 999µs is 1498 B at 12mbit, below the MTU"}},
		{"limit of a fair queue at the MTU", queued("rate: 12mbit, limit: 1ms"), nil},
		{"limit of a fair queue below the MTU", queued("rate: 12mbit, limit: 999us"), []string{"p.yaml:2:35 warning limit of 999µs is 1498 B at 12mbit, below the MTU: a packet of 1500 bytes never enters queue q"}},
		{"default codel of a fair queue", queued("rate: 8kbit, limit: 1min"), nil},
		{"default codel of a fair queue with a packet time above its maximum", queued("rate: 7999bit, limit: 1min"), []string{"p.yaml:2:13 warning codel's target of 1.5s is below the 1.500187524s"}},
		{"codel target of a packet's time", queued("rate: 12mbit, limit: 1s, codel: {target: 1ms}"), nil},
		{"codel target below a packet's time", queued("rate: 12mbit, limit: 1s, codel: {target: 999us}"), []string{"p.yaml:2:46 warning codel's target of 999µs is below the 1ms that a packet of 1500 bytes takes at 12mbit"}},
		{"codel on a slow link", queued("link: wan, limit: 1s, codel: {target: 5ms}") + "links: {wan: {rate: 1mbit}}\n", []string{"p.yaml:2:43 warning codel's target of 5ms is below the 12ms that a packet of 1500 bytes takes at 1mbit"}},
		{"no codel on a slow queue", queued("rate: 1kbit, limit: 1min, fair: false"), nil},
		{"wred by color", colored("green: {min: 40ms, max: 80ms, probability: 0.1}, yellow: {min: 20ms, max: 40ms, probability: 0.2}, red: {min: 0, max: 20ms, probability: 1}"), nil},
		{"wred alike", colored("green: {min: 4ms, max: 8ms, probability: 1}, yellow: {min: 4ms, max: 8ms, probability: 1}, red: {min: 4ms, max: 8ms, probability: 1}"), []string{"note green and yellow alike", "note yellow and red alike"}},
		{"wred of the worst", colored("red: {min: 0, max: 20ms, probability: 1}"), []string{"note green and yellow alike"}},
		{"wred of green alone", colored("green: {min: 0, max: 20ms, probability: 1}"), []string{"note yellow and red alike", "p.yaml:2:45 warning wred drops green before yellow in queue q"}},
		{"wred begins early for green", colored("green: {min: 3ms, max: 8ms, probability: 1}, yellow: {min: 4ms, max: 8ms, probability: 1}, red: {min: 4ms, max: 8ms, probability: 1}"), []string{"note yellow and red alike", "warning wred drops green before yellow"}},
		{"wred ends early for yellow", colored("yellow: {min: 4ms, max: 7ms, probability: 1}, red: {min: 4ms, max: 8ms, probability: 1}"), []string{"warning wred drops yellow before red"}},
		{"wred drops more of yellow", colored("yellow: {min: 4ms, max: 8ms, probability: 0.2}, red: {min: 4ms, max: 8ms, probability: 0.1}"), []string{"warning wred drops yellow before red"}},
		{"wred of a color that never comes", queued("rate: 12mbit, limit: 1s, wred: {red: {min: 0, max: 20ms, probability: 1}}"), []string{"p.yaml:2:45 note wred of red has no effect: no red packet enters queue q"}},
		{"wred of the color that comes", queued("rate: 12mbit, limit: 1s, wred: {green: {min: 0, max: 20ms, probability: 1}}"), nil},
		// Links.
		{"one priority starves nobody", shared("green: {queue: a}", "weight: 9", ""), nil},
		{"first with a rate", shared("green: {queue: a}", "rate: 11mbit", "priority: 1"), nil},
		{"first with the whole rate", shared("green: {queue: a}", "rate: 12mbit", "priority: 1"), []string{"p.yaml:2:13 warning queue a is served before b, and the meters"}},
		{"last with a guarantee", shared("green: {queue: a}", "", "priority: 1, guarantee: 1mbit"), nil},
		{"first link without a meter", tree("", "priority: 1", "link: first", "link: second"), []string{"p.yaml:5:10 warning link first is served before link second, and no meter limits the packets of class a in it: it can starve the other queues of link wan"}},
		{"first link with a rate", tree("rate: 11mbit", "priority: 1", "link: first", "link: second"), nil},
		{"first link with a queue's rate", tree("", "priority: 1", "link: first, rate: 1mbit", "link: second"), nil},
		{"first below a link", tree("", "", "link: first", "link: first, priority: 1", "link: second"), []string{"warning queue q0 is served before q1, and no meter limits the packets of class a in it: it can starve the other queues of link first"}},
		{"guarantees of links above the rate", tree("guarantee: 10mbit", "guarantee: 8mbit", "link: first", "link: second"), []string{"p.yaml:4:15 warning the guarantees of the links and queues of link wan add up to 1.5 times its rate of 12mbit: while all are busy, link first can count on 6666kbit of its guarantee of 10mbit, and 1 other of link wan on less than theirs"}},
		{"guarantees of links at the rate", tree("guarantee: 4mbit", "guarantee: 8mbit", "link: first", "link: second"), nil},
		{"guarantee above the rates of the queues", tree("guarantee: 4mbit", "guarantee: 8mbit", "link: first, rate: 3mbit", "link: second"), []string{"p.yaml:5:22 warning while all queues are busy, link first can count on 3mbit of its guarantee of 4mbit"}},
		{"guarantee in a link that gets less", tree("guarantee: 1mbit", "guarantee: 9mbit, weight: 3", "link: first, guarantee: 2mbit", "link: second"), []string{"p.yaml:2:39 warning while all queues are busy, queue q0 can count on 1500kbit of its guarantee of 2mbit"}},
		{"first without a meter", shared("green: {queue: a}", "", "priority: 1"), []string{"p.yaml:2:13 warning queue a is served before b, and no meter limits the packets of class a in it"}},
		{"first by number", shared("green: {queue: a}", "priority: 3", "priority: 7"), []string{"p.yaml:2:24 warning queue a is served before b"}},
		{"last without a meter", shared("green: {queue: a}", "priority: 1", "priority: 0"), []string{"p.yaml:2:64 warning queue b is served before a, and no meter limits the packets of class b in it"}},
		{"first metered", shared("meter: {type: token-bucket, rate: 11999999bit, burst: 64KiB}, green: {queue: a}", "", "priority: 1"), nil},
		{"first metered to the whole", shared("meter: {type: token-bucket, rate: 12mbit, burst: 64KiB}, green: {queue: a}", "", "priority: 1"), []string{"p.yaml:2:13 warning pass the whole 12mbit of link wan"}},
		{"first takes red", shared("meter: {type: token-bucket, rate: 1mbit, burst: 64KiB}, green: pass, red: {queue: a}", "", "priority: 1"), []string{"warning no meter limits"}},
		{"first takes green of trTCM", shared("meter: {type: trtcm, cir: 11mbit, cbs: 64KiB, pir: 13mbit, pbs: 64KiB}, green: {queue: a}, yellow: {dscp: 0}", "", "priority: 1"), nil},
		{"first takes yellow of trTCM", shared("meter: {type: trtcm, cir: 11mbit, cbs: 64KiB, pir: 13mbit, pbs: 64KiB}, green: {dscp: 0, queue: a}, yellow: {queue: a}", "", "priority: 1"), []string{"warning the whole 12mbit"}},
		{"first takes both of RFC 4115", shared("meter: {type: trtcm4115, cir: 6mbit, cbs: 64KiB, eir: 6mbit, ebs: 64KiB}, green: {dscp: 0, queue: a}, yellow: {queue: a}", "", "priority: 1"), []string{"warning the whole 12mbit"}},
		{"first behind a chain", shared("meter: {type: srtcm, cir: 100mbit, cbs: 625kB, ebs: 64KiB, then: m}, green: {queue: a}, yellow: {dscp: 0}", "", "priority: 1") + "meters: {m: {type: token-bucket, rate: 1mbit, burst: 64KiB, color: aware}}\n", nil},
		{"first in packets", shared("meter: {type: token-bucket, rate: 1000p/1s, burst: 9, count: packets}, green: {queue: a}", "", "priority: 1"), []string{"warning the whole 12mbit"}},
		{"first in fewer packets", shared("meter: {type: token-bucket, rate: 999p/1s, burst: 9, count: packets}, green: {queue: a}", "", "priority: 1"), nil},
		{"first of GCRA", shared("meter: {type: gcra, rate: 12mbit, burst: 64KiB}, green: {queue: a}", "", "priority: 1"), []string{"warning the whole 12mbit"}},
		{"first of a window", shared("meter: {type: sliding-counter, limit: 150kB, window: 100ms}, green: {queue: a}", "", "priority: 1"), []string{"warning the whole 12mbit"}},
		{"first of a smaller window", shared("meter: {type: sliding-log, limit: 149999, window: 100ms}, green: {queue: a}", "", "priority: 1"), nil},
		{"first takes green of an average", shared("meter: {type: tswtcm, cir: 11mbit, pir: 13mbit, window: 1s}, green: {queue: a}, yellow: {dscp: 0}", "", "priority: 1"), nil},
		{"first takes yellow of an average", shared("meter: {type: tswtcm, cir: 11mbit, pir: 13mbit, window: 1s}, green: {dscp: 0, queue: a}, yellow: {queue: a}", "", "priority: 1"), []string{"warning the whole 12mbit"}},
		{"first with a meter for each key", shared("meter: {type: gcra, rate: 1mbit, burst: 64KiB, per: src, evict: idle}, green: {queue: a}", "", "priority: 1"), []string{"warning no meter limits the packets of class a in it"}},
		{"first with a meter for the sum", shared("meter: {type: gcra, rate: 20mbit, burst: 125kB, per: src, new: empty, then: m}, green: {queue: a}", "", "priority: 1") + "meters: {m: {type: gcra, rate: 1mbit, burst: 64KiB, color: aware}}\n", nil},
		{"first lower in an envelope", lent("5mbit", "7mbit"), []string{"warning the whole 12mbit"}},
		{"first lower in a smaller envelope", lent("5mbit", "6mbit"), nil},
		{"first higher in a coupled envelope", lentBack("6mbit", "{queue: a, dscp: 0}", "coupling: true"), []string{"warning the whole 12mbit"}},
		{"first higher in a smaller coupled envelope", lentBack("5mbit", "{queue: a, dscp: 0}", "coupling: true"), nil},
		{"first higher in an envelope", lentBack("6mbit", "{queue: a, dscp: 0}", ""), nil},
		{"first higher in a coupled envelope, green", lentBack("6mbit", "{dscp: 0}", "coupling: true"), nil},
		{"coupled envelope of one flow", "classes: [{name: a, " + udp + flow("1mbit", "1") + "yellow: {dscp: 0}}]\nenvelopes: {e: {coupling: true}}\n", []string{"p.yaml:2:27 note MEF 10.3 [R142]"}},
		{"coupled envelope of two flows", "classes: [{name: a, " + udp + flow("1mbit", "1") + "yellow: {dscp: 0}}, {name: b, match: {proto: esp}, " + flow("1mbit", "2") + "yellow: {dscp: 0}}]\nenvelopes: {e: {coupling: true}}\n", nil},
		// Properties of meter types.
		{"fixed window", class(udp + "meter: {type: fixed-window, limit: 125kB, window: 1s}"), []string{"p.yaml:1:69 warning a fixed window can pass twice its limit, 250000 B, at once around a window boundary"}},
		{"fixed window in packets", class(udp + "meter: {type: fixed-window, limit: 100, window: 1s, count: packets}"), []string{"warning twice its limit, 200 packets, at once"}},
		{"other windows", class(udp+"meter: {type: sliding-window, limit: 125kB, window: 1s, then: m}"+mild) + "meters: {m: {type: sliding-counter, limit: 125kB, window: 1s, color: aware, then: n}, n: {type: sliding-log, limit: 125kB, window: 1s, color: aware}}\n", nil},
		{"limit below the MTU", class(udp + "meter: {type: sliding-counter, limit: 1499, window: 1s}"), []string{"p.yaml:1:93 warning limit of 1499 B is below the MTU: a packet of 1500 bytes never fits, even on an idle link"}},
		{"limit below GSO", class(udp + "meter: {type: sliding-window, limit: 65535, window: 1s}"), []string{"p.yaml:1:92 note smaller than a GSO packet: a.limit (65535 B)"}},
		{"limit in packets", class(udp + "meter: {type: sliding-counter, limit: 1, window: 1s, count: packets}"), nil},
		{"an average has no burst", class(udp + "meter: {type: tswtcm, cir: 8bit, pir: 16bit, window: 1s}" + mild), nil},
		{"TCP in a window", class("match: {proto: tcp, dport: 80}, meter: {type: sliding-counter, limit: 125kB, window: 10ms}"), []string{"warning class a has a burst of 125,000 bytes; a TCP flow needs 625,000 bytes in flight to fill 100mbit at a 50ms RTT"}},
		{"TCP in a window of an RTT", class("match: {proto: tcp, dport: 80}, meter: {type: sliding-counter, limit: 625kB, window: 50ms}"), nil},
		{"TCP and GCRA", class("match: {proto: tcp, dport: 80}, meter: {type: gcra, rate: 100mbit, burst: 624999}"), []string{"warning 625,000"}},
		{"TCP and an average", class("match: {proto: tcp, dport: 80}, meter: {type: tswtcm, cir: 100mbit, pir: 200mbit, window: 1ms}, yellow: {dscp: af12}"), nil},
		{"entries run out", class(udp + "meter: {type: sliding-log, limit: 125kB, window: 1s, entries: 1953}"), []string{"p.yaml:1:117 warning the entries of meter a are full after 124992 B in packets of 64 bytes: further packets are red although the limit is 125000 B"}},
		{"entries suffice", class(udp + "meter: {type: sliding-log, limit: 125kB, window: 1s, entries: 1954}"), nil},
		{"entries run out in packets", class(udp + "meter: {type: sliding-log, limit: 100, window: 1s, entries: 99, count: packets}"), []string{"warning the entries of meter a are full after 99 packets: further packets are red although the limit is 100 packets"}},
		{"entries suffice in packets", class(udp + "meter: {type: sliding-log, limit: 100, window: 1s, entries: 100, count: packets}"), nil},
		{"entries of many keys", class(udp + "meter: {type: sliding-log, limit: 125kB, window: 1s, entries: 2048, per: src, keys: 2049, evict: idle}"), []string{"p.yaml:1:139 warning the entries of meter a take 64 MiB of memory"}},
		{"entries of fewer keys", class(udp + "meter: {type: sliding-log, limit: 125kB, window: 1s, entries: 2048, per: src, keys: 2048, evict: idle}"), nil},
		{"slots of many keys", class(udp + "meter: {type: sliding-window, limit: 125kB, window: 1s, slots: 100, per: src, evict: idle}"), []string{"warning the slots of meter a take 100 MiB"}},
		{"a third below the MTU", class(udp + "meter: {type: token-bucket, rate: 1mbit, burst: 4499, warmup: 10s}"), []string{"note GSO", "p.yaml:1:103 warning after a pause of 10s the bucket holds only a third of its burst, 1499 B, below the MTU"}},
		{"a third at the MTU", class(udp + "meter: {type: token-bucket, rate: 1mbit, burst: 4500, warmup: 10s}"), []string{"note GSO"}},
		{"all of it below the MTU", class(udp + "meter: {type: token-bucket, rate: 1mbit, burst: 9, warmup: 10s}"), []string{"warning burst of 9 B"}},
		{"a third in packets", class(udp + "meter: {type: token-bucket, rate: 10p/1s, burst: 9, warmup: 10s, count: packets}"), nil},
		{"keys sprayed", class(udp + "meter: {type: gcra, rate: 1mbit, burst: 64KiB, per: src/24}"), []string{"p.yaml:1:107 warning a sender that sprays keys (per src/24) gets a full burst with each new key: start new keys empty (new: empty), and chain an aggregate meter behind it (then:)"}},
		{"keys sprayed, empty", class(udp + "meter: {type: gcra, rate: 1mbit, burst: 64KiB, per: src, new: empty}"), nil},
		{"keys sprayed, idle", class(udp + "meter: {type: gcra, rate: 1mbit, burst: 64KiB, per: src, evict: idle}"), nil},
		{"keys sprayed, a sum behind", class(udp+"meter: {type: gcra, rate: 1mbit, burst: 64KiB, per: src, then: m}"+mild) + "meters: {m: {type: gcra, rate: 1mbit, burst: 64KiB, color: aware}}\n", []string{"p.yaml:1:107 note a sender that sprays keys (per src) gets a full burst with each new key, and so uses up the tokens of meter m that known keys need: start new keys empty (new: empty)"}},
		{"keys sprayed, empty, a sum behind", class(udp+"meter: {type: gcra, rate: 1mbit, burst: 64KiB, per: src, new: empty, then: m}"+mild) + "meters: {m: {type: gcra, rate: 1mbit, burst: 64KiB, color: aware}}\n", nil},
		{"keys sprayed at the end of a chain", class(udp+"meter: {type: gcra, rate: 1mbit, burst: 64KiB, then: m}"+mild) + "meters: {m: {type: gcra, rate: 1mbit, burst: 64KiB, color: aware, per: src}}\n", []string{"p.yaml:2:72 warning sprays"}},
		{"an envelope without flows", class("green: pass") + "envelopes: {e: {cirmax: 1mbit}}\n", []string{"p.yaml:2:16 note envelope e has no flow"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			found := findings(t, test.text, Options{MTU: 1500, RTT: 50 * time.Millisecond})
			if !slices.EqualFunc(found, test.want, func(f Finding, want string) bool {
				head, part, _ := strings.Cut(want, " ")
				if strings.HasPrefix(head, "p.yaml:") {
					if head != f.Place {
						return false
					}
					head, part, _ = strings.Cut(part, " ")
				}
				return string(f.Level) == head && strings.Contains(f.Text, part) &&
					!strings.Contains(f.Text, "\n")
			}) {
				t.Errorf("found %q\nwant %q", found, test.want)
			}
		})
	}
}

// TestComparisonIsLimited checks that the comparison of long lists is limited, and that a note
// names the first class that was not checked.
func TestComparisonIsLimited(t *testing.T) {
	policy := func(classes, values int, last func(class int) string) string {
		var b strings.Builder
		b.WriteString("classes:\n")
		for i := range classes {
			fmt.Fprintf(&b, "- {name: c%d, match: {sport: [%s%s]}, green: pass}\n", i,
				strings.Repeat("1,", values-1), last(i))
		}
		return b.String()
	}
	o := Options{MTU: 1500, RTT: 50 * time.Millisecond}
	found := findings(t, policy(20, 3000, func(i int) string { return strconv.Itoa(i + 2) }), o)
	if len(found) != 1 || found[0].Level != Note ||
		!strings.Contains(found[0].Text, "not checked whether class c") {
		t.Errorf("long lists: got %q, want a note that not all classes were checked", found)
	}
	found = findings(t, policy(20, 300, func(i int) string { return strconv.Itoa(i + 2) }), o)
	if len(found) != 0 {
		t.Errorf("shorter lists: got %q, want nothing", found)
	}
	found = findings(t, policy(20, 300, func(i int) string { return strconv.Itoa(i/2 + 2) }), o)
	if len(found) != 10 {
		t.Errorf("pairs of equal classes: got %q, want that ten are never reached", found)
	}
}

// TestDropUnclassified checks the warnings about policies that drop unclassified packets,
// if the link would lose its neighbors. With the classes that the warnings suggest, there
// are none.
func TestDropUnclassified(t *testing.T) {
	const arp, nd = "{name: arp, match: {ethertype: arp}}", "{name: nd, match: {proto: icmpv6}}"
	const rest = "{name: web, match: {proto: tcp, dport: 443}}"
	for _, test := range []struct {
		classes, otherwise string
		arp, nd            bool // a warning is expected
	}{
		{rest, "pass", false, false},
		{rest, "drop", true, true},
		{arp + ", " + rest, "drop", false, true},
		{nd + ", " + rest, "drop", true, false},
		{arp + ", " + nd + ", " + rest, "drop", false, false},
		{"{name: all}", "drop", true, false}, // matches IP only
		{"{name: all, match: {ethertype: 0-0xffff}}", "drop", false, false},
	} {
		found := findings(t, "otherwise: "+test.otherwise+"\nclasses: ["+test.classes+"]",
			Options{MTU: 1500, RTT: time.Millisecond})
		for want, class := range map[bool]string{true: arp, false: nd} {
			warned := slices.ContainsFunc(found, func(f Finding) bool {
				return f.Level == Warning && f.Place == "p.yaml:1:12" && strings.Contains(f.Text, class)
			})
			if should := want && test.arp || !want && test.nd; warned != should {
				t.Errorf("%s, otherwise %s: warning to add %s is %v, want %v: %v", test.classes,
					test.otherwise, class, warned, should, found)
			}
		}
	}
}

// TestUnclassified checks the descriptions of unclassified packets.
func TestUnclassified(t *testing.T) {
	const hidden = ", IP behind more than 16 MPLS labels, IP in MPLS pseudowires, IP in SNAP frames, IP in MAC-in-MAC frames, MACsec frames"
	for classes, want := range map[string]string{
		"{name: a}":                    "non-IP packets such as ARP, malformed packets, packets with more than 3 VLAN tags" + hidden,
		"{name: a, match: {dscp: ef}}": "IP packets that no class matches, non-IP packets such as ARP, malformed packets, packets with more than 3 VLAN tags" + hidden,
		"{name: a}, {name: b, match: {ethertype: arp}}": "non-IP packets, malformed packets, packets with more than 3 VLAN tags" + hidden,
		"{name: a}, {name: b, match: {vlan: 0-4095}}":   "non-IP packets such as ARP, malformed packets" + hidden,
		"{name: a}, {name: b, match: {ethertype: [mpls, 0x88e5]}}": "non-IP packets such as ARP, malformed packets, packets with more than 3 VLAN tags" +
			", IP in SNAP frames, IP in MAC-in-MAC frames",
		"{name: a}, {name: b, match: {length: 0-65535}}": "",
	} {
		f, err := policyfile.Load("p.yaml", []byte("classes: ["+classes+"]"))
		if err != nil {
			t.Fatal(err)
		}
		plan, err := f.Compile()
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(Unclassified(plan), ", "); got != want {
			t.Errorf("%s: got %q, want %q", classes, got, want)
		}
	}
}

// TestOptions checks that findings depend on the caller's MTU and RTT.
func TestOptions(t *testing.T) {
	text := "classes: [{name: a, match: {proto: tcp, dport: 80}, meter: {type: token-bucket, rate: 100mbit, burst: 70000}}]"
	for _, test := range []struct {
		o    Options
		want int
	}{
		{Options{MTU: 1500, RTT: 5 * time.Millisecond}, 0},
		{Options{MTU: 1500, RTT: 6 * time.Millisecond}, 1},
		{Options{MTU: 70000, RTT: 5 * time.Millisecond}, 0},
		{Options{MTU: 70001, RTT: 5 * time.Millisecond}, 1},
	} {
		if found := findings(t, text, test.o); len(found) != test.want {
			t.Errorf("%+v: found %q, want %d", test.o, found, test.want)
		}
	}
}

// TestSpeedBoost meters a gigabit by the speed boost of docs/METERS.md: 400 Mbit/s pass until the boost is
// used up, and 100 Mbit/s from then on.
func TestSpeedBoost(t *testing.T) {
	const text = "classes: [{name: a, match: {proto: udp, dport: 5000}, meter: {type: trtcm, cir: 100mbit, cbs: 187500000, pir: 400mbit, pbs: 2500000}, yellow: drop}]"
	if found := findings(t, text, Options{MTU: 1500, RTT: 50 * time.Millisecond}); len(found) != 0 {
		t.Errorf("found %q", found)
	}
	f, err := policyfile.Load("p.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	p, err := f.Policy.Classes[0].Meter.Params.Profile()
	if err != nil {
		t.Fatal(err)
	}
	const packet, gap = 1500, 12_000 // bytes and ns: 1 Gbit/s
	m, passed := meter.New(p), int64(0)
	for now := int64(0); now < 10e9; now += gap {
		if m.Color(now, packet, meter.Green) == meter.Green {
			passed += packet
		}
		want := min(2_500_000+now/20, 187_500_000+now/80) // bytes
		if passed < want-2*packet && passed < (now/gap+1)*packet || passed > want {
			t.Fatalf("after %v: got %d bytes, want %d", time.Duration(now), passed, want)
		}
	}
}

// TestNoMarks checks the warnings about marks in planes whose packets have none.
func TestNoMarks(t *testing.T) {
	for text, want := range map[string]string{
		"classes: [{name: a, match: {mark: 7}}]":      "class a matches no packet here: the mark of every packet is 0 in a replay",
		"classes: [{name: a, match: {mark: [0, 7]}}]": "",
		"classes: [{name: a, match: {mark: 0-7}}]":    "",
		"classes: [{name: a, match: {dscp: ef}, meter: {type: token-bucket, rate: 1mbit, burst: 64KiB, color: aware, precolor: {from: mark, map: {1: red}}}, yellow: {dscp: 0}}]": "meter a reads input colors from the mark, which is 0 for every packet in a replay",
		"classes: [{name: a, match: {dscp: ef}, meter: {type: token-bucket, rate: 1mbit, burst: 64KiB, color: aware, precolor: {from: pcp, map: {1: red}}}, yellow: {dscp: 0}}]":  "",
	} {
		for _, plane := range []string{"", "a replay"} {
			found := findings(t, text, Options{MTU: 1500, RTT: time.Millisecond, NoMarks: plane})
			got := slices.ContainsFunc(found, func(f Finding) bool {
				return f.Level == Warning && strings.Contains(f.Text, "mark") &&
					strings.Contains(f.Text, want)
			})
			if got != (plane != "" && want != "") {
				t.Errorf("%s, plane %q: got %q, want %q", text, plane, found, want)
			}
		}
	}
}

// TestUnreadMarks checks the warnings about actions setting marks, in planes whose packets have none.
func TestUnreadMarks(t *testing.T) {
	const place = "warning, class a sets the mark of packets, which nothing reads in shaper tap"
	for text, want := range map[string][]string{
		"classes: [{name: a, match: {dscp: ef}, green: {mark: 7}}]":                                                       {place},
		"classes: [{name: a, match: {dscp: ef}, green: {mark: 7, pcp: 1}}]":                                               {place},
		"classes: [{name: a, match: {dscp: ef}, green: {pcp: 1}}]":                                                        nil,
		"classes: [{name: a, match: {dscp: ef}, meter: {type: token-bucket, rate: 1mbit, burst: 64KiB}, red: {mark: 0}}]": {place},
	} {
		for _, plane := range []string{"", "shaper tap"} {
			var got []string
			for _, f := range findings(t, text, Options{MTU: 1500, RTT: time.Millisecond, NoMarks: plane}) {
				if strings.Contains(f.Text, "mark") {
					got = append(got, string(f.Level)+", "+f.Text)
				}
			}
			if plane == "" && got != nil || plane != "" && !slices.Equal(got, want) {
				t.Errorf("%s, plane %q: got %q, want %q", text, plane, got, want)
			}
		}
	}
	f, err := policyfile.LoadWith("p.yaml", []byte("classes: [{name: a, per: customer, meter: plan}]\n"+
		"customers: {file: c.csv}\nplans: {p: {type: token-bucket, rate: 1mbit, burst: 64KiB, green: {mark: 7}}}\n"),
		func(string) (string, error) { return "customer,address,plan\n1,192.0.2.1,p\n", nil })
	if err != nil {
		t.Fatal(err)
	}
	plan, err := f.Compile()
	if err != nil {
		t.Fatal(err)
	}
	found := Policy(f, plan, Options{MTU: 1500, RTT: time.Millisecond, NoMarks: "a replay"})
	if !slices.ContainsFunc(found, func(f Finding) bool {
		return f.Text == "plan p sets the mark of packets, which nothing reads in a replay"
	}) {
		t.Errorf("got %q", found)
	}
}

func TestSummary(t *testing.T) {
	w, n := Finding{Level: Warning}, Finding{Level: Note}
	for want, found := range map[string][]Finding{
		"no findings":         nil,
		"1 warning, 0 notes":  {w},
		"0 warnings, 1 note":  {n},
		"2 warnings, 2 notes": {w, n, n, w},
	} {
		if got := Summary(found); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
