package lint

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
)

// big is a meter with bursts that no lint minds at an RTT of 50 ms.
const big = "{type: srtcm, cir: 1mbit, cbs: 64KiB, ebs: 64KiB}"

func lint(t *testing.T, text string, o Options) []Finding {
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

// TestFindings holds each lint to where it speaks and where it is silent. A
// finding is written as place, level and a part of its text.
func TestFindings(t *testing.T) {
	const (
		udp  = "match: {proto: udp, dport: 5000}, "
		mild = ", yellow: {dscp: af12}, red: {dscp: af13}"
	)
	class := func(keys string) string { return "classes: [{name: a, " + keys + "}]\n" }
	for _, test := range []struct {
		name, text string
		want       []string
	}{
		// Bursts.
		{"bursts are fine", class(udp + "meter: " + big + mild), nil},
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
		// Reach.
		{"never reached", "classes: [{name: a, match: {proto: udp}}, {name: b, match: {proto: udp, dport: 53}}]", []string{"p.yaml:1:60 warning class b is never reached: class a"}},
		{"never reached behind all", "classes: [{name: a}, {name: b, match: {src: 10.0.0.0/8}}]", []string{"p.yaml:1:39 warning class b is never reached"}},
		{"never reached, no match", "classes: [{name: a}, {name: b}]", []string{"p.yaml:1:22 warning class b is never reached"}},
		{"reached, in part", "classes: [{name: a, match: {proto: udp, dport: 53}}, {name: b, match: {proto: udp}}]", nil},
		{"reached, other prefix", "classes: [{name: a, match: {src: 10.0.0.0/8}}, {name: b, match: {src: 11.0.0.0/8}}]", nil},
		{"reached, non-IP", "classes: [{name: a}, {name: b, match: {ethertype: arp}}]", nil},
		// Fates.
		{"yellow as green", class(udp + "meter: " + big), []string{"p.yaml:1:11 note class a does the same to green and yellow"}},
		{"red as yellow", class(udp + "meter: " + big + ", yellow: drop, red: drop"), []string{"note class a does the same to yellow and red"}},
		{"all alike", class(udp + "meter: " + big + ", red: pass"), []string{"note green and yellow", "note yellow and red"}},
		{"marked alike", class(udp + "meter: " + big + ", green: {dscp: ef}, yellow: {dscp: ef}, red: {dscp: 0}"), []string{"note green and yellow"}},
		{"a token bucket has no yellow", class(udp + "meter: {type: token-bucket, rate: 1mbit, burst: 64KiB}, red: {dscp: 0}"), nil},
		{"a token bucket, red as green", class(udp + "meter: {type: token-bucket, rate: 1mbit, burst: 64KiB}, red: pass"), []string{"note green and red"}},
		{"an aware token bucket has yellow", class(udp + "meter: {type: token-bucket, rate: 1mbit, burst: 64KiB, color: aware}, red: {dscp: 0}"), []string{"note green and yellow"}},
		{"no meter, no colors", class(udp + "green: pass"), nil},
		// TCP.
		{"TCP fills what it needs", class("match: {proto: tcp, dport: 80}, meter: {type: token-bucket, rate: 100mbit, burst: 625000}"), nil},
		{"TCP lacks a byte", class("match: {proto: tcp, dport: 80}, meter: {type: token-bucket, rate: 100mbit, burst: 624999}"), []string{"warning class a lets 624999 bytes through at once; a TCP flow that fills 100mbit at an RTT of 50ms has 625000"}},
		{"TCP within a range", class("match: {proto: 1-6, dport: 80}, meter: {type: token-bucket, rate: 100mbit, burst: 70000}"), []string{"warning TCP flow"}},
		{"both bursts of srTCM count", class("match: {proto: tcp, dport: 80}, meter: {type: srtcm, cir: 100mbit, cbs: 312500, ebs: 312500}, yellow: {dscp: af12}"), nil},
		{"the peak of trTCM counts", class("match: {proto: tcp, dport: 80}, meter: {type: trtcm, cir: 1mbit, cbs: 64KiB, pir: 100mbit, pbs: 64KiB}, yellow: {dscp: af12}"), []string{"warning fills 100mbit"}},
		{"no TCP", class(udp + "meter: {type: token-bucket, rate: 100mbit, burst: 70000}"), nil},
		{"red is not dropped", class("match: {proto: tcp, dport: 80}, meter: {type: token-bucket, rate: 100mbit, burst: 70000}, red: {dscp: 0}"), nil},
		// Control traffic.
		{"routing in a class that drops", class("meter: {type: token-bucket, rate: 1mbit, burst: 64KiB}"), []string{"p.yaml:1:18 warning class a drops packets and takes IPv6 neighbour discovery, OSPF, BGP"}},
		{"routing in a class that queues", class("green: {queue: q}") + "queues: {q: {rate: 1mbit, limit: 1s}}\n", []string{"p.yaml:1:18 warning takes IPv6 neighbour discovery"}},
		{"routing in a class that drops what has no ECN", class("green: {ecn: ce, else: drop}"), []string{"warning OSPF"}},
		{"routing that passes", class("green: {dscp: 0}"), nil},
		{"routing in a class before", "classes: [{name: control, match: {dscp: cs6}}, {name: a, meter: {type: token-bucket, rate: 1mbit, burst: 64KiB}}]", nil},
		{"ARP", class("match: {ethertype: arp}, green: drop"), []string{"warning takes ARP:"}},
		{"BGP", class("match: {dport: 179}, green: drop"), []string{"warning takes BGP:"}},
		{"BFD and LDP", class("match: {proto: udp}, green: drop"), []string{"warning takes BFD, LDP:"}},
		{"IS-IS", class("match: {length: 0-1500}, green: drop"), []string{"warning IS-IS"}},
		{"none of it", class("match: {src: 10.0.0.0/8}, green: drop"), nil},
		// What is not used.
		{"meter not used", class("green: pass") + "meters: {m: " + big + "}\n", []string{"p.yaml:2:13 note meter m is used by no class"}},
		{"meter used in a chain", class(udp+"meter: {type: srtcm, cir: 1mbit, cbs: 64KiB, ebs: 64KiB, then: m}"+mild) + "meters: {m: {type: srtcm, cir: 1mbit, cbs: 64KiB, ebs: 64KiB, color: aware}}\n", nil},
		{"queue not used", class("green: pass") + "queues: {q: {rate: 1mbit, limit: 1s}}\n", []string{"p.yaml:2:13 note queue q is used by no action"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			found := lint(t, test.text, Options{MTU: 1500, RTT: 50 * time.Millisecond})
			if !slices.EqualFunc(found, test.want, func(f Finding, want string) bool {
				head, part, _ := strings.Cut(want, " ")
				if strings.HasPrefix(head, "p.yaml:") {
					if head != f.Place {
						return false
					}
					head, part, _ = strings.Cut(part, " ")
				}
				return string(f.Level) == head && strings.Contains(f.Text, part) && !strings.Contains(f.Text, "\n")
			}) {
				t.Errorf("found %q\nwant %q", found, test.want)
			}
		})
	}
}

// TestOptions holds that the MTU and the RTT are the caller's.
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
		if found := lint(t, text, test.o); len(found) != test.want {
			t.Errorf("%+v: found %q, want %d", test.o, found, test.want)
		}
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
			t.Errorf("%q, want %q", got, want)
		}
	}
}
