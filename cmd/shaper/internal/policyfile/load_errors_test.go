package policyfile

import (
	"cmp"
	"regexp"
	"strings"
	"testing"
)

// TestErrors checks the place and the text of each error. The place is that of the value,
// or of the mapping if a key is missing.
func TestErrors(t *testing.T) {
	srtcm := "{type: srtcm, cir: 1mbit, cbs: 2kB, ebs: 2kB}"
	class := func(keys string) string { return "classes:\n  - name: a\n    " + keys + "\n" }
	queued := func(keys string) string {
		return class("green: {queue: q}") + "queues: {q: {" + keys +
			"}}\nlinks: {wan: {rate: 1mbit}, slow: {rate: 100B/s}}\n"
	}
	for _, test := range []struct {
		name, text, place string
		says              []string
	}{
		// Syntax.
		{"empty", "", "1:1", []string{"empty"}},
		{"only a comment", "# nothing\n", "1:1", []string{"empty"}},
		{"null", "---\n", "2:1", []string{"mapping"}},
		{"a scalar", "classes\n", "1:1", []string{"mapping"}},
		{"a list", "- name: a\n", "1:1", []string{"mapping"}},
		{"no classes", "length: l3\n", "1:1", []string{"classes are missing"}},
		{"classes empty", "classes: []\n", "1:10", []string{"at least one class"}},
		{"classes null", "classes:\nlength: l3\n", "1:9", []string{"list"}},
		{"classes a mapping", "classes: {name: a}\n", "1:10", []string{"list"}},
		{"class a scalar", "classes: [a]\n", "1:11", []string{"mapping", `"a"`}},
		{"class without name", "classes:\n  - match: {}\n", "2:5", []string{"name"}},
		{"class name -", "classes:\n  - name: '-'\n", "2:11", []string{`"-"`}},
		{"class name empty", "classes:\n  - name: ''\n", "2:5", []string{"name"}},
		{"meter name empty", class("green: pass") + "meters: {'': " + srtcm + "}\n", "4:10", []string{"needs a name"}},
		{"queue name empty", class("green: {queue: ''}") + "queues: {'': {rate: 1mbit, limit: 1s}}\n", "4:10", []string{"needs a name"}},
		{"class name twice", "classes:\n  - name: a\n    match: {proto: udp}\n  - name: a\n", "4:11", []string{`"a"`, "earlier"}},
		{"unknown key", "clases: []\n", "1:1", []string{`"clases"`, "classes"}},
		{"unknown key of a class", class("matches: {}"), "3:5", []string{`"matches"`, "match"}},
		{"unknown key of a match", class("match: {port: 80}"), "3:13", []string{`"port"`, "dport"}},
		{"unknown key of a meter", class("meter: {type: srtcm, cir: 1mbit, cbs: 2kB, ebs: 2kB, pir: 1mbit}"), "3:58", []string{`"pir"`, "srtcm"}},
		{"unknown key of an action", class("green: {color: red}"), "3:13", []string{`"color"`, "dscp"}},
		{"unknown key of a queue", class("green: pass") + "queues: {q: {rate: 1mbit, limit: 1s, delay: 1s}}\n", "4:38", []string{`"delay"`}},
		{"unknown key of length", class("green: pass") + "length: {base: l2, fcs: 4}\n", "4:20", []string{`"fcs"`}},
		{"key twice", class("match: {}\n    match: {}"), "4:5", []string{`duplicate key "match"`}},
		{"key twice in the policy", "length: l3\nclasses: []\nlength: l2\n", "3:1", []string{`duplicate key "length"`}},
		{"queue twice", class("green: pass") + "queues:\n  q: {rate: 1mbit, limit: 1s}\n  q: {rate: 1mbit, limit: 1s}\n", "6:3", []string{`duplicate key "q"`}},
		{"merge key", "classes: [{name: a, match: &m {proto: udp}}, {name: b, match: {<<: *m}}]\n", "1:64", []string{`"<<"`}},
		{"second document", class("green: pass") + "---\nclasses: []\n", "5:1", []string{"second document"}},
		{"tab", "classes:\n\t- name: a\n", "2:1", []string{"tab"}},
		{"no colon", "classes:\n  - name: a\n  length\n", "3:3", []string{`":" is missing after the key "length"`}},
		{"open bracket", "classes: [\n", "1:10", []string{"never closed"}},
		{"unknown anchor", "classes: *c\n", "1:10", []string{"anchor"}},
		{"control character", "classes: \x01\n", "1:10", []string{"U+0001"}},
		{"no UTF-8", "classes: \xff\n", "1:10", []string{"UTF-8"}},
		// Match.
		{"match a scalar", class("match: udp"), "3:12", []string{"mapping"}},
		{"match list empty", class("match: {proto: []}"), "3:20", []string{"matches nothing"}},
		{"match null", class("match: {proto: }"), "3:20", []string{"proto"}},
		{"protocol", class("match: {proto: upd}"), "3:20", []string{`"upd"`, "udp"}},
		{"protocol 256", class("match: {proto: 256}"), "3:20", []string{"255"}},
		{"port 65536", class("match: {dport: 65536}"), "3:20", []string{"65535"}},
		{"port range turned", class("match: {sport: 20-10}"), "3:20", []string{"20-10", "smaller"}},
		{"port range open", class("match: {sport: 20-}"), "3:20", []string{"number"}},
		{"port below zero", class("match: {sport: -1}"), "3:20", []string{"number"}},
		{"port in a list", class("match: {sport: [1, x]}"), "3:24", []string{`"x"`}},
		{"a list in a list", class("match: {sport: [[1]]}"), "3:21", []string{"list"}},
		{"address", class("match: {src: 10.0.0}"), "3:18", []string{"10.0.0", "prefix"}},
		{"address 256", class("match: {src: 10.0.0.256}"), "3:18", []string{"prefix"}},
		{"prefix of 33 bits", class("match: {src: 10.0.0.0/33}"), "3:18", []string{"prefix"}},
		{"bits beyond the prefix", class("match: {dst: 192.0.2.1/24}"), "3:18", []string{"192.0.2.0/24", "192.0.2.1"}},
		{"address with a zone", class("match: {dst: 'fe80::1%eth0'}"), "3:18", []string{"prefix"}},
		{"DSCP", class("match: {dscp: af14}"), "3:19", []string{"af14"}},
		{"DSCP 64", class("match: {dscp: 64}"), "3:19", []string{"63"}},
		{"VLAN 4096", class("match: {vlan: 4096}"), "3:19", []string{"4095"}},
		{"PCP 8", class("match: {pcp: 8}"), "3:18", []string{"7"}},
		{"ethertype", class("match: {ethertype: apr}"), "3:24", []string{"arp"}},
		{"ethertype 0x10000", class("match: {ethertype: 0x10000}"), "3:24", []string{"65535"}},
		{"mark over 32 bits", class("match: {mark: 4294967296}"), "3:19", nil},
		// Meters.
		{"meter without type", class("meter: {cir: 1mbit}"), "3:12", []string{"type", "trtcm"}},
		{"meter type", class("meter: {type: trTCM}"), "3:19", []string{`"trTCM"`, "trtcm"}},
		{"meter a list", class("meter: []"), "3:12", []string{"mapping"}},
		{"no such meter", class("meter: total"), "3:12", []string{`"total"`, "meters:"}},
		{"CIR left out", class("meter: {type: srtcm, cbs: 2kB, ebs: 2kB}"), "3:12", []string{"cir", "10mbit"}},
		{"burst left out", class("meter: {type: srtcm, cir: 8mbit, cbs: 2kB}"), "3:12", []string{"ebs is missing", "ebs: 20ms", "20000 bytes"}},
		{"burst left out, slow", class("meter: {type: srtcm, cir: 8kbit, cbs: 2kB}"), "3:12", []string{"ebs is missing", "ebs: 3000"}},
		{"packets left out", class("meter: {type: token-bucket, rate: 1p/1s, count: packets}"), "3:12", []string{"burst is missing", "burst: 10"}},
		{"rate without unit", class("meter: {type: srtcm, cir: 1000, cbs: 2kB, ebs: 2kB}"), "3:31", []string{"1000bit", "1000B/s"}},
		{"rate ambiguous", class("meter: {type: srtcm, cir: 1mbps, cbs: 2kB, ebs: 2kB}"), "3:31", []string{"1mbit", "1MB/s"}},
		{"burst ambiguous", class("meter: {type: srtcm, cir: 1mbit, cbs: 2k, ebs: 2kB}"), "3:43", []string{"2kB", "2KiB"}},
		{"burst below zero", class("meter: {type: srtcm, cir: 1mbit, cbs: -2, ebs: 2kB}"), "3:43", nil},
		{"burst a time below a byte", class("meter: {type: srtcm, cir: 8bit, cbs: 999ms, ebs: 2kB}"), "3:42", []string{"less than one byte"}},
		{"burst a time over 2^63 bytes", class("meter: {type: srtcm, cir: 400gbit, cbs: 100000d, ebs: 2kB}"), "3:45", []string{"2^63"}},
		{"burst out of range", class("meter: {type: srtcm, cir: 1mbit, cbs: 999999999999999999, ebs: 2kB}"), "3:43", []string{"cbs"}},
		{"rate zero", class("meter: {type: srtcm, cir: 0bit, cbs: 2kB, ebs: 2kB}"), "3:31", []string{"above zero", "RFC 2697"}},
		{"both bursts zero", class("meter: {type: srtcm, cir: 1bit, cbs: 0, ebs: 0}"), "3:42", []string{"both zero", "RFC 2697"}},
		{"CBS of trTCM zero", class("meter: {type: trtcm, cir: 1bit, cbs: 0, pir: 1bit, pbs: 1}"), "3:42", []string{"above zero", "RFC 2698"}},
		{"PIR below CIR", class("meter: {type: trtcm, cir: 2mbit, cbs: 2kB, pir: 1mbit, pbs: 2kB}"), "3:53", []string{"below", "RFC 2698"}},
		{"PIR below CIR, not used", class("green: pass") + "meters: {m: {type: trtcm, cir: 2mbit, cbs: 2kB, pir: 1mbit, pbs: 2kB}}\n", "4:54", []string{"below", "RFC 2698"}},
		{"color", class("meter: {type: srtcm, cir: 1mbit, cbs: 2kB, ebs: 2kB, color: awere}"), "3:65", []string{"aware"}},
		{"count", class("meter: {type: srtcm, cir: 1mbit, cbs: 2kB, ebs: 2kB, count: frames}"), "3:65", []string{"packets"}},
		{"initial", class("meter: {type: srtcm, cir: 1mbit, cbs: 2kB, ebs: 2kB, initial: 101%}"), "3:67", []string{"100%"}},
		{"coupling of srTCM", class("meter: {type: srtcm, cir: 1mbit, cbs: 2kB, ebs: 2kB, coupling: true}"), "3:58", []string{"coupling"}},
		{"coupling: yes", class("meter: {type: trtcm4115, cir: 1mbit, cbs: 2kB, eir: 1mbit, ebs: 2kB, coupling: yes}"), "3:84", []string{"true, false"}},
		{"bytes where packets count", class("meter: {type: token-bucket, rate: 10p/1s, burst: 2kB, count: packets}"), "3:54", []string{"packets"}},
		{"a rate in bytes where packets count", class("meter: {type: token-bucket, rate: 10mbit, burst: 2, count: packets}"), "3:39", []string{"100p/1s"}},
		{"precolor of a blind meter", class("meter: {type: srtcm, cir: 1mbit, cbs: 2kB, ebs: 2kB, precolor: {from: dscp}}"), "3:68", []string{"color: aware"}},
		{"precolor from", class("meter: {type: srtcm, cir: 1mbit, cbs: 2kB, ebs: 2kB, color: aware, precolor: {from: tos}}"), "3:89", []string{"dscp"}},
		{"precolor color", class("meter: {type: srtcm, cir: 1mbit, cbs: 2kB, ebs: 2kB, color: aware, precolor: {map: {af11: blue}}}"), "3:95", []string{"blue"}},
		{"precolor value", class("meter: {type: srtcm, cir: 1mbit, cbs: 2kB, ebs: 2kB, color: aware, precolor: {from: pcp, map: {8: red}}}"), "3:82", []string{"8 is above 7"}},
		{"precolor name", class("meter: {type: srtcm, cir: 1mbit, cbs: 2kB, ebs: 2kB, color: aware, precolor: {from: pcp, map: {af11: red}}}"), "3:100", []string{"af11"}},
		{"precolor value twice", class("meter: {type: srtcm, cir: 1mbit, cbs: 2kB, ebs: 2kB, color: aware, precolor: {map: {af11: red, 10: green}}}"), "3:100", []string{"duplicate value 10"}},
		// Chains.
		{"then without meter", class("then: total") + "meters: {total: " + srtcm + "}\n", "3:11", []string{"then needs a meter"}},
		{"then beside a named meter", class("meter: m\n    then: m") + "meters: {m: " + srtcm + "}\n", "4:11", []string{`"m"`}},
		{"then unknown", class("meter: " + srtcm + "\n    then: total"), "4:11", []string{`"total"`, "meters:"}},
		{"then twice", class("meter: {type: srtcm, cir: 1mbit, cbs: 2kB, ebs: 2kB, then: m}\n    then: m") + "meters: {m: {type: srtcm, cir: 1mbit, cbs: 2kB, ebs: 2kB, color: aware}}\n", "4:11", []string{"duplicate then"}},
		{"then to a blind meter", class("meter: "+srtcm+"\n    then: m") + "meters: {m: " + srtcm + "}\n", "3:12", []string{"color: aware"}},
		{"then loops", class("meter: m") + "meters:\n  m: {type: srtcm, cir: 1mbit, cbs: 2kB, ebs: 2kB, color: aware, then: n}\n  n: {type: srtcm, cir: 1mbit, cbs: 2kB, ebs: 2kB, color: aware, then: m}\n", "6:72", []string{`"m"`, "must end"}},
		{"then itself", class("meter: m") + "meters:\n  m: {type: srtcm, cir: 1mbit, cbs: 2kB, ebs: 2kB, color: aware, then: m}\n", "5:72", []string{`"m"`, "must end"}},
		{"then loops, not used", class("green: pass") + "meters:\n  m: {type: srtcm, cir: 1mbit, cbs: 2kB, ebs: 2kB, color: aware, then: m}\n", "5:72", []string{`"m"`, "must end"}},
		// Actions, queues, length.
		{"action", class("red: reject"), "3:10", []string{`"reject"`, "pass", "drop"}},
		{"action a list", class("red: [drop]"), "3:10", []string{"mapping"}},
		{"action null", class("red:"), "3:9", []string{"action"}},
		{"DSCP to write", class("green: {dscp: 64}"), "3:19", []string{"63"}},
		{"PCP to write", class("green: {pcp: 8}"), "3:18", []string{"8 is above 7"}},
		{"DEI to write", class("green: {dei: 2}"), "3:18", []string{"2 is above 1"}},
		{"TC to write", class("green: {mpls: 8}"), "3:19", []string{"8 is above 7"}},
		{"mark to write", class("green: {mark: 0x100000000}"), "3:19", nil},
		{"ECN", class("green: {ecn: ect0}"), "3:18", []string{"ce"}},
		{"else without ECN", class("green: {dscp: ef, else: drop}"), "3:29", []string{"ecn: ce"}},
		{"else", class("green: {ecn: ce, else: mark}"), "3:28", []string{"pass", "drop"}},
		{"no such queue", class("green: {queue: bulk}"), "3:20", []string{`"bulk"`, "queues:"}},
		{"queue without rate", class("green: pass") + "queues: {q: {limit: 1s}}\n", "4:13", []string{`"q"`, "rate"}},
		{"queue without limit", class("green: pass") + "queues: {q: {rate: 1mbit}}\n", "4:13", []string{`"q"`, "limit"}},
		{"queue a scalar", class("green: pass") + "queues: {q: 1mbit}\n", "4:13", []string{"mapping"}},
		{"queues a list", class("green: pass") + "queues: [q]\n", "4:9", []string{"mapping"}},
		{"queue rate zero", class("green: {queue: q}") + "queues: {q: {rate: 0bit, limit: 1s}}\n", "4:20", []string{"above zero"}},
		{"queue rate zero, not used", class("green: pass") + "queues: {q: {rate: 0bit, limit: 1s}}\n", "4:20", []string{"above zero"}},
		{"queue limit zero", class("green: pass") + "queues: {q: {rate: 1bit, limit: 0}}\n", "4:33", []string{"above zero"}},
		{"queue limit a part of a packet", class("green: pass") + "queues: {q: {rate: 1bit, limit: 1.5p}}\n", "4:33", []string{"whole"}},
		{"queue limit ambiguous", class("green: pass") + "queues: {q: {rate: 1bit, limit: 64k}}\n", "4:33", []string{"64kB", "64KiB"}},
		{"queue limit m", class("green: pass") + "queues: {q: {rate: 1bit, limit: 10m}}\n", "4:33", []string{"10ms", "10min"}},
		{"queue limit nothing", queued("rate: 1mbit, limit: "), "4:34", []string{"limit"}},
		{"queue limit below zero", queued("rate: 1mbit, limit: -1s"), "4:34", []string{"-1s"}},
		{"otherwise queue", "classes: [{name: a}]\notherwise: queue\n", "2:12", []string{`"queue" is not one of pass, drop`}},
		{"queue limit packets over what waits", queued("rate: 1mbit, limit: 65537p"), "4:34", []string{"65536 packets"}},
		{"queue limit packets of a link over what waits", queued("link: wan, limit: 70000p"), "4:32", []string{"65536 packets"}},
		{"queue limit below a byte of a link", queued("link: slow, limit: 9ms"), "4:33", []string{"less than a byte", "800bit"}},
		{"queue rate too fine", queued("rate: 1234567890.123456789bit, limit: 1s"), "4:20", []string{"too fine"}},
		// Links.
		{"guarantee above the rate", queued("rate: 1kbit, link: wan, guarantee: 2kbit, limit: 100s"), "4:49", []string{"guarantee", "2kbit", "1kbit"}},
		{"guarantee without link", queued("rate: 1mbit, limit: 1s, guarantee: 1mbit"), "4:49", []string{`"q"`, "guarantee"}},
		{"guarantee of a link without a link", class("green: pass") + "links: {l: {rate: 1mbit, guarantee: 1kbit}}\n", "4:37", []string{`"l"`, "no link above"}},
		{"link of a link unknown", class("green: pass") + "links: {l: {link: m}}\n", "4:19", []string{`"m"`, "links:"}},
		{"link below itself", class("green: pass") + "links: {l: {link: m}, m: {link: l}}\n", "4:33", []string{"below itself"}},
		{"link without children", class("green: pass") + "links: {l: {rate: 1mbit}, m: {link: l}}\n", "4:37", []string{`no link uses link "m"`}},
		{"link unknown", queued("link: lan, limit: 1s"), "4:20", []string{`"lan"`, "links:"}},
		{"link a list", queued("link: [wan], limit: 1s"), "4:20", []string{"single value"}},
		{"link nothing", queued("link: , limit: 1s"), "4:20", []string{"single value"}},
		{"no rate and no link", queued("limit: 1s, priority: 1"), "4:13", []string{`"q"`, "rate", "link"}},
		{"priority without link", queued("rate: 1mbit, limit: 1s, priority: 1"), "4:48", []string{`"q"`, "priority and weight"}},
		{"priority 0 without link", queued("rate: 1mbit, limit: 1s, priority: 0"), "4:48", []string{"priority and weight"}},
		{"weight without link", queued("rate: 1mbit, weight: 1, limit: 1s"), "4:35", []string{"priority and weight"}},
		{"priority 8", queued("link: wan, limit: 1s, priority: 8"), "4:46", []string{"priority", "8 is not between 0 and 7"}},
		{"priority below zero", queued("link: wan, limit: 1s, priority: -1"), "4:46", []string{"priority"}},
		{"priority a word", queued("link: wan, limit: 1s, priority: high"), "4:46", []string{"priority", "high"}},
		{"weight 0", queued("link: wan, limit: 1s, weight: 0"), "4:44", []string{"weight must be at least 1"}},
		{"weight 1001", queued("link: wan, limit: 1s, weight: 1001"), "4:44", []string{"weight", "1001 is not between 1 and 1000"}},
		{"weight a fraction", queued("link: wan, limit: 1s, weight: 1.5"), "4:44", []string{"weight", "1.5"}},
		{"link without rate", class("green: pass") + "links: {wan: {}}\n", "4:14", []string{`"wan"`, "rate"}},
		{"link a scalar", class("green: pass") + "links: {wan: 1mbit}\n", "4:14", []string{"mapping"}},
		{"links a list", class("green: pass") + "links: [wan]\n", "4:8", []string{"mapping"}},
		{"link twice", class("green: pass") + "links:\n  wan: {rate: 1mbit}\n  wan: {rate: 1mbit}\n", "6:3", []string{`duplicate key "wan"`}},
		{"unknown key of a link", class("green: pass") + "links: {wan: {rate: 1mbit, limit: 1s}}\n", "4:28", []string{`"limit"`, "rate"}},
		{"link rate zero", class("green: {queue: q}") + "queues: {q: {link: l, limit: 1s}}\nlinks: {l: {rate: 0bit}}\n", "5:19", []string{"above zero"}},
		{"link rate zero, not used", class("green: pass") + "links: {l: {rate: 0bit}}\n", "4:19", []string{"above zero"}},
		{"link rate without unit", class("green: pass") + "links: {l: {rate: 100}}\n", "4:19", []string{"100bit"}},
		// Early drop.
		{"wred a scalar", queued("rate: 1mbit, limit: 1s, wred: true"), "4:44", []string{"mapping"}},
		{"wred of blue", queued("rate: 1mbit, limit: 1s, wred: {blue: {}}"), "4:45", []string{`"blue"`, "green, red, yellow"}},
		{"wred of a color, a scalar", queued("rate: 1mbit, limit: 1s, wred: {red: 10ms}"), "4:50", []string{"mapping"}},
		{"wred of a color, nothing", queued("rate: 1mbit, limit: 1s, wred: {red: {}}"), "4:50", []string{"min, max and probability"}},
		{"wred without min", queued("rate: 1mbit, limit: 1s, wred: {red: {max: 1ms, probability: 1}}"), "4:50", []string{"min, max and probability"}},
		{"wred without max", queued("rate: 1mbit, limit: 1s, wred: {red: {min: 1ms, probability: 1}}"), "4:50", []string{"min, max and probability"}},
		{"wred without probability", queued("rate: 1mbit, limit: 1s, wred: {red: {min: 1ms, max: 2ms}}"), "4:50", []string{"min, max and probability"}},
		{"wred max zero", queued("rate: 1mbit, limit: 1s, wred: {red: {min: 0, max: 0, probability: 1}}"), "4:50", []string{"max above zero"}},
		{"wred min above max", queued("rate: 1mbit, limit: 1s, wred: {red: {min: 3ms, max: 2ms, probability: 1}}"), "4:50", []string{"min above max"}},
		{"wred max above the limit", queued("rate: 1mbit, limit: 1s, wred: {red: {min: 3ms, max: 1001ms, probability: 1}}"), "4:50", []string{"max above the queue's limit"}},
		{"wred max above the limit, not used", class("green: pass") + "queues: {q: {rate: 1mbit, limit: 9p, wred: {red: {min: 1p, max: 10p, probability: 1}}}}\n", "4:50", []string{"above the queue's limit"}},
		{"wred max above the limit of a link", queued("link: wan, limit: 9kB, wred: {red: {min: 0, max: 9001, probability: 1}}"), "4:49", []string{"above the queue's limit"}},
		{"wred max of 550 s", queued("rate: 1mbit, limit: 1h, wred: {red: {min: 0, max: 550s, probability: 1}}"), "4:44", []string{"wred", "below 9m9"}},
		{"wred in bytes, limit a time", queued("rate: 1mbit, limit: 1s, wred: {red: {min: 0, max: 9kB, probability: 1}}"), "4:64", []string{"max must be a time"}},
		{"wred a time, limit in bytes", queued("rate: 1mbit, limit: 9kB, wred: {red: {min: 1ms, max: 9kB, probability: 1}}"), "4:57", []string{"min must be a size"}},
		{"wred a bare number, limit in packets", queued("rate: 1mbit, limit: 9p, wred: {red: {min: 1, max: 9p, probability: 1}}"), "4:56", []string{"min must be packets, such as 20p"}},
		{"wred a part of a packet", queued("rate: 1mbit, limit: 9p, wred: {red: {min: 0.5p, max: 9p, probability: 1}}"), "4:56", []string{"whole number of packets"}},
		{"wred ambiguous", queued("rate: 1mbit, limit: 9kB, wred: {red: {min: 1k, max: 9kB, probability: 1}}"), "4:57", []string{"1kB", "1KiB"}},
		{"wred max ambiguous", queued("rate: 1mbit, limit: 9kB, wred: {red: {min: 0, max: 1k, probability: 1}}"), "4:65", []string{"1kB", "1KiB"}},
		{"wred below a limit of zero", queued("rate: 1mbit, limit: 0s, wred: {red: {min: 0, max: 1ms, probability: 1}}"), "4:34", []string{"above zero"}},
		{"probability 1.5", queued("rate: 1mbit, limit: 1s, wred: {red: {min: 0, max: 9ms, probability: 1.5}}"), "4:82", []string{`probability: "1.5" is not a number between 0 and 1`}},
		{"probability below zero", queued("rate: 1mbit, limit: 1s, wred: {red: {min: 0, max: 9ms, probability: -0.1}}"), "4:82", []string{"between 0 and 1"}},
		{"probability in percent", queued("rate: 1mbit, limit: 1s, wred: {red: {min: 0, max: 9ms, probability: 10%}}"), "4:82", []string{"between 0 and 1"}},
		{"unknown key of wred", queued("rate: 1mbit, limit: 1s, wred: {red: {min: 0, max: 9ms, prob: 1}}"), "4:69", []string{`"prob"`, "probability"}},
		{"codel a word", queued("rate: 1mbit, limit: 1s, codel: yes"), "4:45", []string{`"yes"`, "true, false", "{target: 5ms, interval: 100ms}"}},
		{"codel nothing", queued("rate: 1mbit, limit: 1s, codel: "), "4:45", []string{"codel", "nothing"}},
		{"codel a list", queued("rate: 1mbit, limit: 1s, codel: [5ms]"), "4:45", []string{"mapping"}},
		{"codel target zero", queued("rate: 1mbit, limit: 1s, codel: {target: 0ms}"), "4:45", []string{"codel", "target and interval must be above zero"}},
		{"codel interval zero", queued("rate: 1mbit, limit: 1s, codel: {interval: 0s}"), "4:45", []string{"above zero"}},
		{"codel interval over 3s", queued("rate: 1mbit, limit: 1s, codel: {interval: 3000000001ns}"), "4:45", []string{"at most 3s"}},
		{"codel target a size", queued("rate: 1mbit, limit: 1s, codel: {target: 5}"), "4:54", []string{"target", "not a time"}},
		{"unknown key of codel", queued("rate: 1mbit, limit: 1s, codel: {limit: 5ms}"), "4:46", []string{`"limit"`, "interval, target"}},
		{"queue ECN", queued("rate: 1mbit, limit: 1s, ecn: ce"), "4:43", []string{`"ce"`, "true, false"}},
		{"queue ECN nothing", queued("rate: 1mbit, limit: 1s, ecn: "), "4:43", []string{"ecn"}},
		{"seed below zero", queued("rate: 1mbit, limit: 1s, seed: -1"), "4:44", []string{"seed"}},
		{"seed over 64 bits", queued("rate: 1mbit, limit: 1s, seed: 18446744073709551616"), "4:44", []string{"seed"}},
		{"seed a word", queued("rate: 1mbit, limit: 1s, seed: random"), "4:44", []string{"seed", "random"}},
		{"length", class("green: pass") + "length: l4\n", "4:9", []string{"l3", "l2", "l1"}},
		{"length a list", class("green: pass") + "length: [l3]\n", "4:9", []string{"mapping"}},
		{"overhead", class("green: pass") + "length: {overhead: 4B}\n", "4:20", []string{"4B"}},
		{"large overhead", class("green: pass") + "length: {overhead: -40000}\n", "4:20", []string{"overhead -40000 is not between -32768 and 32768 bytes"}},
		{"large mpu", class("green: pass") + "length: {base: l1, mpu: 32769}\n", "4:25", []string{"mpu 32769 is above 32768 bytes"}},
		{"mpu below zero", class("green: pass") + "length: {mpu: -1}\n", "4:15", []string{"negative"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			oneError(t, test.text, test.place, test.says)
		})
	}
}

// oneError checks that a policy has one error, its place unless that is "", and its text.
func oneError(t *testing.T, text, place string, says []string) {
	t.Helper()
	_, err := loadAndCompile(text)
	if err == nil {
		t.Fatal("got nil, want an error")
	}
	lines := strings.Split(err.Error(), "\n")
	line := lines[0]
	if len(lines) > 1 {
		t.Errorf("got %d errors, want 1: %q", len(lines), lines)
	}
	if !placed.MatchString(line) || place != "" && !strings.HasPrefix(line, "p.yaml:"+place+": ") {
		t.Errorf("got %s: want it at p.yaml:%s", line, cmp.Or(place, "line:column"))
	}
	for _, part := range says {
		if !strings.Contains(line, part) {
			t.Errorf("got %s, want it to contain %q", line, part)
		}
	}
}

// TestAllErrorsAtOnce checks that all errors are reported, each on its own line.
func TestAllErrorsAtOnce(t *testing.T) {
	_, err := loadAndCompile(
		"classes:\n  - nam: a\n  - name: b\n    green: {queue: q}\n    red: no\nlength: l5\n")
	if err == nil {
		t.Fatal("got nil, want errors")
	}
	places := regexp.MustCompile(`(?m)^p\.yaml:\d+:\d+: `).FindAllString(err.Error(), -1)
	if len(places) != 5 || strings.Count(err.Error(), "\n") != 4 {
		t.Errorf("want five errors on five lines:\n%v", err)
	}
}

// TestSharedErrorOnce checks that an error of a meter is reported once if several classes use
// the meter.
func TestSharedErrorOnce(t *testing.T) {
	for name, meters := range map[string]string{
		"blind": "  m: {type: srtcm, cir: 1mbit, cbs: 2kB, ebs: 2kB, then: n}\n  n: {type: srtcm, cir: 1mbit, cbs: 2kB, ebs: 2kB}\n",
		"loop":  "  m: {type: srtcm, cir: 1mbit, cbs: 2kB, ebs: 2kB, color: aware, then: m}\n",
		"rate":  "  m: {type: srtcm, cir: 0bit, cbs: 2kB, ebs: 2kB}\n",
	} {
		_, err := loadAndCompile(
			"classes:\n  - {name: a, match: {proto: udp}, meter: m}\n  - {name: b, meter: m}\nmeters:\n" +
				meters)
		if err == nil || strings.Count(err.Error(), "\n") != 0 {
			t.Errorf("%s: want one error, got:\n%v", name, err)
		}
	}
}
