package policyfile

import (
	"cmp"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// compiled loads and compiles a policy.
func compiled(text string) (*File, error) {
	f, err := Load("p.yaml", []byte(text))
	if err == nil {
		_, err = f.Compile()
	}
	return f, err
}

// example is the policy of the interface's description, without what comes
// with later versions.
const example = `classes:                       # first match wins; a class without match takes the rest
  - name: voice
    match: {dscp: ef}
    meter: {type: srtcm, cir: 2mbit, cbs: 16KiB, ebs: 32KiB}
    red: drop
  - name: video
    match: {proto: udp, dst: 10.0.0.0/8, dport: 5000-5999}
    meter: {type: trtcm, cir: 8mbit, cbs: 64KiB, pir: 12mbit, pbs: 96KiB, color: aware}
    green: {dscp: af41}
    yellow: {dscp: af42, queue: bulk}
    red: drop
  - name: per-host
    match: {src: 192.0.2.0/24}
    meter: {type: srtcm, cir: 1mbit, cbs: 20ms, ebs: 40ms}
    then: total                # chain: this color is the color before of the next meter
  - name: rest
    meter: {type: token-bucket, rate: 50mbit, burst: 20ms}
    red: {queue: bulk}
meters:
  total: {type: trtcm, cir: 80mbit, cbs: 1MiB, pir: 100mbit, pbs: 2MiB, color: aware}
queues:
  bulk: {rate: 20mbit, limit: 100ms}
length: l3                     # l3 | l2 | l1, or {base: l2, overhead: 4, mpu: 64}
`

func TestExample(t *testing.T) {
	f, err := compiled(example)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, c := range f.Policy.Classes {
		names = append(names, c.Name)
	}
	if got := strings.Join(names, " "); got != "voice video per-host rest" {
		t.Errorf("classes %s", got)
	}
	video, host, rest := f.Policy.Classes[1], f.Policy.Classes[2], f.Policy.Classes[3]
	if p := video.Meter.Params.(meter.TRTCM); p.PIR.Cmp(meter.BitRate(12e6)) != 0 || p.PBS != 96<<10 || !video.Meter.Aware {
		t.Errorf("video: %+v", video.Meter)
	}
	if m := video.Match; len(m.Proto) != 1 || m.Proto[0] != (dataplane.Range{First: 17, Last: 17}) || m.DPort[0] != (dataplane.Range{First: 5000, Last: 5999}) {
		t.Errorf("video: %+v", m)
	}
	if video.Yellow.Queue != f.Queues[0] || rest.Red.Queue != f.Queues[0] || f.Queues[0].Time != 100*time.Millisecond {
		t.Errorf("the queue is not shared: %+v %+v", video.Yellow, rest.Red)
	}
	if p := host.Meter.Params.(meter.SRTCM); p.CBS != 2500 || p.EBS != 5000 || host.Meter.Then != f.Meters[0] {
		t.Errorf("per-host: %+v", host.Meter)
	}
}

// TestFaults holds each fault of a policy to its place and to what the error
// tells. A place is that of the value, or of the mapping where a key lacks; the
// parser of YAML knows no column, so that there any will do.
func TestFaults(t *testing.T) {
	srtcm := "{type: srtcm, cir: 1mbit, cbs: 2kB, ebs: 2kB}"
	class := func(keys string) string { return "classes:\n  - name: a\n    " + keys + "\n" }
	for _, test := range []struct {
		name, text, place string
		says              []string
	}{
		// Form.
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
		{"class name twice", "classes:\n  - name: a\n    match: {proto: udp}\n  - name: a\n", "4:11", []string{`"a"`, "earlier"}},
		{"unknown key", "clases: []\n", "1:1", []string{`"clases"`, "classes"}},
		{"unknown key of a class", class("matches: {}"), "3:5", []string{`"matches"`, "match"}},
		{"unknown key of a match", class("match: {port: 80}"), "3:13", []string{`"port"`, "dport"}},
		{"unknown key of a meter", class("meter: {type: srtcm, cir: 1mbit, cbs: 2kB, ebs: 2kB, pir: 1mbit}"), "3:58", []string{`"pir"`, "srtcm"}},
		{"unknown key of an action", class("green: {color: red}"), "3:13", []string{`"color"`, "dscp"}},
		{"unknown key of a queue", class("green: pass") + "queues: {q: {rate: 1mbit, limit: 1s, delay: 1s}}\n", "4:38", []string{`"delay"`}},
		{"unknown key of length", class("green: pass") + "length: {base: l2, fcs: 4}\n", "4:20", []string{`"fcs"`}},
		{"key twice", class("match: {}\n    match: {}"), "4:5", []string{`"match"`, "twice"}},
		{"key twice in the policy", "length: l3\nclasses: []\nlength: l2\n", "3:1", []string{`"length"`, "twice"}},
		{"queue twice", class("green: pass") + "queues:\n  q: {rate: 1mbit, limit: 1s}\n  q: {rate: 1mbit, limit: 1s}\n", "6:3", []string{`"q"`, "twice"}},
		{"merge key", "classes: [{name: a, match: &m {proto: udp}}, {name: b, match: {<<: *m}}]\n", "1:64", []string{`"<<"`}},
		{"second document", class("green: pass") + "---\nclasses: []\n", "5:1", []string{"second document"}},
		{"tab", "classes:\n\t- name: a\n", "2:1", []string{"tab"}},
		{"no colon", "classes:\n  - name: a\n  length\n", "", nil},
		{"open bracket", "classes: [\n", "", nil},
		{"unknown anchor", "classes: *c\n", "", []string{"anchor"}},
		{"control character", "classes: \x01\n", "", nil},
		{"no UTF-8", "classes: \xff\n", "", nil},
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
		{"precolor value twice", class("meter: {type: srtcm, cir: 1mbit, cbs: 2kB, ebs: 2kB, color: aware, precolor: {map: {af11: red, 10: green}}}"), "3:100", []string{"twice"}},
		// Chains.
		{"then without meter", class("then: total") + "meters: {total: " + srtcm + "}\n", "3:11", []string{"meter before"}},
		{"then beside a named meter", class("meter: m\n    then: m") + "meters: {m: " + srtcm + "}\n", "4:11", []string{`"m"`}},
		{"then unknown", class("meter: " + srtcm + "\n    then: total"), "4:11", []string{`"total"`, "meters:"}},
		{"then twice", class("meter: {type: srtcm, cir: 1mbit, cbs: 2kB, ebs: 2kB, then: m}\n    then: m") + "meters: {m: {type: srtcm, cir: 1mbit, cbs: 2kB, ebs: 2kB, color: aware}}\n", "4:11", []string{"twice"}},
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
		{"length", class("green: pass") + "length: l4\n", "4:9", []string{"l3", "l2", "l1"}},
		{"length a list", class("green: pass") + "length: [l3]\n", "4:9", []string{"mapping"}},
		{"overhead", class("green: pass") + "length: {overhead: 4B}\n", "4:20", []string{"4B"}},
		{"mpu below zero", class("green: pass") + "length: {mpu: -1}\n", "4:15", []string{"negative"}},
		// What later versions bring.
		{"per", class("meter: {type: srtcm, cir: 1mbit, cbs: 2kB, ebs: 2kB, per: src}"), "3:63", []string{"per is not supported"}},
		{"share", class("meter: {type: srtcm, cir: 1mbit, cbs: 2kB, ebs: 2kB, share: s}"), "3:65", []string{"share is not supported"}},
		{"envelope", class("meter: {type: srtcm, cir: 1mbit, cbs: 2kB, ebs: 2kB, envelope: e}"), "3:68", []string{"envelope is not supported"}},
		{"warmup", class("meter: {type: token-bucket, rate: 1mbit, burst: 2kB, warmup: 10s}"), "3:66", []string{"warmup is not supported"}},
		{"envelopes", class("green: pass") + "envelopes: {}\n", "4:12", []string{"envelopes is not supported"}},
		{"wred", class("green: pass") + "queues: {q: {rate: 1mbit, limit: 1s, wred: {}}}\n", "4:44", []string{"wred is not supported"}},
		{"gcra", class("meter: {type: gcra, rate: 1mbit, burst: 2kB}"), "3:19", []string{"gcra is not supported"}},
		{"fixed-window", class("meter: {type: fixed-window}"), "3:19", []string{"fixed-window is not supported"}},
		{"sliding-window", class("meter: {type: sliding-window}"), "3:19", []string{"sliding-window is not supported"}},
		{"sliding-counter", class("meter: {type: sliding-counter}"), "3:19", []string{"sliding-counter is not supported"}},
		{"sliding-log", class("meter: {type: sliding-log}"), "3:19", []string{"sliding-log is not supported"}},
		{"tswtcm", class("meter: {type: tswtcm}"), "3:19", []string{"tswtcm is not supported"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := compiled(test.text)
			if err == nil {
				t.Fatal("no error")
			}
			lines := strings.Split(err.Error(), "\n")
			line := lines[0]
			if len(lines) > 1 {
				t.Errorf("%d errors for one fault: %q", len(lines), lines)
			}
			if !placed.MatchString(line) || test.place != "" && !strings.HasPrefix(line, "p.yaml:"+test.place+": ") {
				t.Errorf("%s: want it at p.yaml:%s", line, cmp.Or(test.place, "line:column"))
			}
			for _, part := range test.says {
				if !strings.Contains(line, part) {
					t.Errorf("%s: does not say %q", line, part)
				}
			}
		})
	}
}

// TestAllFaultsAtOnce joins faults of form, each on its line.
func TestAllFaultsAtOnce(t *testing.T) {
	_, err := compiled("classes:\n  - nam: a\n  - name: b\n    green: {queue: q}\n    red: no\nlength: l5\n")
	if err == nil {
		t.Fatal("no error")
	}
	places := regexp.MustCompile(`(?m)^p\.yaml:\d+:\d+: `).FindAllString(err.Error(), -1)
	if len(places) != 5 || strings.Count(err.Error(), "\n") != 4 {
		t.Errorf("want five errors on five lines:\n%v", err)
	}
}

// TestSharedFaultOnce tells a fault of a meter once, however many classes use
// the meter.
func TestSharedFaultOnce(t *testing.T) {
	for name, meters := range map[string]string{
		"blind": "  m: {type: srtcm, cir: 1mbit, cbs: 2kB, ebs: 2kB, then: n}\n  n: {type: srtcm, cir: 1mbit, cbs: 2kB, ebs: 2kB}\n",
		"loop":  "  m: {type: srtcm, cir: 1mbit, cbs: 2kB, ebs: 2kB, color: aware, then: m}\n",
		"rate":  "  m: {type: srtcm, cir: 0bit, cbs: 2kB, ebs: 2kB}\n",
	} {
		_, err := compiled("classes:\n  - {name: a, match: {proto: udp}, meter: m}\n  - {name: b, meter: m}\nmeters:\n" + meters)
		if err == nil || strings.Count(err.Error(), "\n") != 0 {
			t.Errorf("%s: want one error, got:\n%v", name, err)
		}
	}
}

// TestForms holds the forms that a policy may take.
func TestForms(t *testing.T) {
	for _, test := range []struct{ name, text string }{
		{"the least", "classes: [{name: a}]"},
		{"JSON", `{"classes": [{"name": "a", "match": {"dport": [80, "443", "8000-8999"]}, "green": {"dscp": 10}}]}`},
		{"CRLF", "classes:\r\n  - name: a\r\n    red: drop\r\n"},
		{"a byte order mark", "\ufeffclasses: [{name: a}]"},
		{"anchors", "classes:\n  - {name: a, match: {proto: udp}, meter: &m {type: srtcm, cir: &r 1mbit, cbs: &b 2kB, ebs: *b}}\n  - {name: b, meter: *m}\n"},
		{"an alias of a type", "classes:\n  - {name: a, match: {proto: udp}, meter: {type: &t srtcm, cir: 1mbit, cbs: 2kB, ebs: 2kB}}\n  - {name: b, meter: {type: *t, cir: 1mbit, cbs: 2kB, ebs: 2kB}}\n"},
		{"an alias in a list", "classes:\n  - {name: a, match: {dport: [&p 80, 443]}}\n  - {name: b, match: {sport: [*p]}}\n"},
		{"queues and meters before classes", "queues: {q: {rate: 1mbit, limit: 64KiB}}\nmeters: {m: {type: token-bucket, rate: 1mbit, burst: 2kB}}\nclasses: [{name: a, meter: m, red: {queue: q}}]\n"},
		{"meters in any order", "classes: [{name: a, meter: x}]\nmeters:\n  x: {type: srtcm, cir: 1mbit, cbs: 2kB, ebs: 2kB, then: y}\n  y: {type: srtcm, cir: 1mbit, cbs: 2kB, ebs: 2kB, color: aware}\n"},
		{"all match keys", "classes: [{name: a, match: {src: [10.0.0.0/8, '2001:db8::/32', 192.0.2.1], dst: '::/0', proto: [tcp, 17, 50-51], sport: 1-1023, dport: 443, dscp: [ef, af11-af13, 0], vlan: 10, pcp: 0-7, mark: 0xff, ethertype: [ipv4, arp, 0x88cc], length: 40-1500}}]"},
		{"all actions", "classes: [{name: a, green: {dscp: af12, pcp: 3, dei: 1, mpls: 4, mark: 7, ecn: ce, else: drop, queue: q}, yellow: pass, red: drop}]\nqueues: {q: {rate: 10kB/1min, limit: 100p}}\n"},
		{"all meter options", "classes: [{name: a, meter: {type: trtcm4115, cir: 0bit, cbs: 2kB, eir: 1.5mbit, ebs: 20ms, coupling: true, color: aware, initial: 50%, count: bytes, precolor: {from: pcp, map: {1: yellow, 0: red}}}}]"},
		{"packets", "classes: [{name: a, meter: {type: token-bucket, rate: 100p/1s, burst: 10, count: packets}}]"},
		{"length", "classes: [{name: a}]\nlength: {base: l2, overhead: -4, mpu: 64}\n"},
	} {
		if _, err := compiled(test.text); err != nil {
			t.Errorf("%s: %v", test.name, err)
		}
	}
}

func TestOneLiner(t *testing.T) {
	const trtcm = "trtcm cir=10mbit cbs=64KiB pir=20mbit pbs=128KiB color=aware"
	f, err := OneLiner{Meter: trtcm, Green: "pass", Yellow: "dscp=af12", Red: "drop"}.Load()
	if err != nil {
		t.Fatal(err)
	}
	c := f.Policy.Classes[0]
	if p := c.Meter.Params.(meter.TRTCM); c.Name != "all" || p.PBS != 128<<10 || !c.Meter.Aware || c.Yellow.Marks[0].Value != 12 {
		t.Errorf("%+v", c)
	}
	for name, o := range map[string]OneLiner{
		"commas":       {Meter: "srtcm,cir=1mbit,cbs=2kB, ebs=2kB"},
		"type as key":  {Meter: "type=srtcm cir=1mbit cbs=2kB ebs=2kB"},
		"queue":        {Meter: "token-bucket rate=1mbit burst=20ms", Red: "queue", Queue: "rate=20mbit limit=100ms"},
		"queue marked": {Meter: "token-bucket rate=1mbit burst=20ms", Red: "dscp=af13 queue", Queue: "rate=20mbit limit=100ms"},
		"length":       {Meter: "token-bucket rate=1mbit burst=20ms", Length: "l2"},
		"overhead":     {Meter: "token-bucket rate=1mbit burst=20ms", Length: "l2,overhead=4,mpu=64"},
		"base":         {Meter: "token-bucket rate=1mbit burst=20ms", Length: "base=l1 overhead=-4"},
		"ecn":          {Meter: "token-bucket rate=1mbit burst=20ms", Red: "ecn=ce,else=drop"},
	} {
		f, err := o.Load()
		if err == nil {
			_, err = f.Compile()
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestOneLinerFaults holds that a place names the flag and the column in it.
func TestOneLinerFaults(t *testing.T) {
	good := "srtcm cir=1mbit cbs=2kB ebs=2kB"
	for _, test := range []struct {
		name  string
		in    OneLiner
		place string
		says  []string
	}{
		{"type", OneLiner{Meter: "stcm cir=1mbit"}, "--meter:1:1", []string{`"stcm"`, "srtcm"}},
		{"no type", OneLiner{Meter: "cir=1mbit"}, "--meter:1:1", []string{"type"}},
		{"later type", OneLiner{Meter: "gcra rate=1mbit burst=2kB"}, "--meter:1:1", []string{"gcra is not supported"}},
		{"rate", OneLiner{Meter: "srtcm cir=1mbps cbs=2kB ebs=2kB"}, "--meter:1:11", []string{"1mbit", "1MB/s"}},
		{"burst", OneLiner{Meter: "srtcm cir=1mbit cbs=2k ebs=2kB"}, "--meter:1:21", []string{"2kB", "2KiB"}},
		{"burst left out", OneLiner{Meter: "srtcm cir=1mbit cbs=2kB"}, "--meter:1:1", []string{"ebs is missing"}},
		{"PIR below CIR", OneLiner{Meter: "trtcm cir=2mbit cbs=2kB pir=1mbit pbs=2kB"}, "--meter:1:29", []string{"below", "RFC 2698"}},
		{"unknown key", OneLiner{Meter: good + " mtu=9000"}, "--meter:1:33", []string{`"mtu"`}},
		{"key twice", OneLiner{Meter: good + " cir=2mbit"}, "--meter:1:33", []string{"twice"}},
		{"no value", OneLiner{Meter: good + " aware"}, "--meter:1:33", []string{"key=value"}},
		{"no such meter", OneLiner{Meter: good + " then=total"}, "--meter:1:38", []string{`"total"`}},
		{"action", OneLiner{Meter: good, Green: "keep"}, "--green:1:1", []string{"keep", "pass"}},
		{"DSCP", OneLiner{Meter: good, Yellow: "dscp=af14"}, "--yellow:1:6", []string{"af14"}},
		{"drop with more", OneLiner{Meter: good, Red: "drop dscp=ef"}, "--red:1:1", []string{"drop"}},
		{"no queue", OneLiner{Meter: good, Red: "queue"}, "--red:1:1", []string{"--queue"}},
		{"queue rate", OneLiner{Meter: good, Red: "queue", Queue: "rate=1 limit=1s"}, "--queue:1:6", []string{"1bit"}},
		{"queue limit", OneLiner{Meter: good, Red: "queue", Queue: "rate=1mbit"}, "--queue:1:1", []string{"limit"}},
		{"length", OneLiner{Meter: good, Length: "l4"}, "--length:1:1", []string{"l3"}},
		{"length key", OneLiner{Meter: good, Length: "l2 fcs=4"}, "--length:1:4", []string{"fcs"}},
		{"mpu", OneLiner{Meter: good, Length: "mpu=-1"}, "--length:1:5", []string{"negative"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			f, err := test.in.Load()
			if err == nil {
				_, err = f.Compile()
			}
			if err == nil {
				t.Fatal("no error")
			}
			if strings.Contains(err.Error(), "\n") || !strings.HasPrefix(err.Error(), test.place+": ") {
				t.Errorf("want one error at %s:\n%v", test.place, err)
			}
			for _, part := range test.says {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("%v: does not say %q", err, part)
				}
			}
		})
	}
}

var placed = regexp.MustCompile(`^p\.yaml:\d+:\d+: .`)

// FuzzLoad takes any text for a policy: it compiles, or every line of the
// error has a place.
func FuzzLoad(f *testing.F) {
	for _, text := range []string{
		example, "", "classes: [{name: a}]", "a: &a [*a]", "classes: &c [*c]", "{", "\t", "---\n---\n",
		"classes: [{name: a, meter: {type: srtcm, cir: 0bit, cbs: 1, ebs: 1, then: m}}]\nmeters: {m: {type: trtcm, then: m}}",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		_, err := compiled(text)
		if err == nil {
			return
		}
		for _, line := range strings.Split(err.Error(), "\n") {
			if !placed.MatchString(line) {
				t.Fatalf("no place: %q", line)
			}
		}
	})
}
