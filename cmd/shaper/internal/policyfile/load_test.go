package policyfile

import (
	"cmp"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// compiled loads and compiles a policy.
func compiled(text string) (*File, error) {
	f, err := Load("p.yaml", []byte(text))
	if err == nil {
		_, err = f.Compile()
	}
	return f, err
}

// example has every part of a policy.
const example = `classes:                       # first match wins; a class without match matches the rest
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
    meter: {type: srtcm, cir: 1mbit, cbs: 20ms, ebs: 40ms, per: src, keys: 65536}
    then: total                # chain: this color is the input color of the next meter
  - name: rest
    meter: {type: token-bucket, rate: 50mbit, burst: 20ms}
    red: {queue: bulk}
meters:
  total: {type: trtcm, cir: 80mbit, cbs: 1MiB, pir: 100mbit, pbs: 2MiB, color: aware}
queues:
  bulk: {rate: 20mbit, limit: 100ms, wred: {yellow: {min: 30ms, max: 80ms, probability: 0.1}}}
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
	if video.Yellow.Queue != f.Policy.Queues[0] || rest.Red.Queue != f.Policy.Queues[0] || f.Policy.Queues[0].Time != 100*time.Millisecond {
		t.Errorf("the queue is not shared: %+v %+v", video.Yellow, rest.Red)
	}
	if p := host.Meter.Params.(meter.SRTCM); p.CBS != 2500 || p.EBS != 5000 || host.Meter.Then != f.Policy.Meters[0] || host.Meter.Per.By != dataplane.BySrc || host.Meter.Keys != 65536 {
		t.Errorf("per-host: %+v", host.Meter)
	}
}

// TestQueues checks the exact values of queues and links.
func TestQueues(t *testing.T) {
	const ms = int64(time.Millisecond)
	f, err := compiled(`classes: [{name: a, green: {queue: time}, yellow: {queue: voice}, red: {queue: web}}]
queues:
  time: {rate: 20mbit, limit: 100ms, wred: {yellow: {min: 30ms, max: 80ms, probability: 0.1}, red: {min: 0, max: 40ms, probability: 1}}}
  size: {rate: 125kB/1ms, limit: 64KiB, codel: true, seed: 18446744073709551615, wred: {green: {min: 1kB, max: 64KiB, probability: 0}}}
  packets: {rate: 1bit, limit: 65536p, codel: {target: 12ms}, wred: {red: {min: 0p, max: 65536p, probability: 0.00000003}}}
  voice: {link: wan, limit: 64KiB, codel: {interval: 3s}, ecn: true}
  web: {link: wan, priority: 7, weight: 1000, limit: 10min, codel: false, ecn: false, wred: {red: {min: 549s, max: 549.7s, probability: 0.5}}}
  rest: {link: wan, priority: 0, weight: 1, limit: 1p, codel: {}}
links:
  wan: {rate: 100mbit}
  lan: {rate: 125MB/s}
`)
	if err != nil {
		t.Fatal(err)
	}
	wan := f.Policy.Links[0]
	if wan.Name != "wan" || wan.Rate.Cmp(meter.BitRate(100e6)) != 0 || f.Policy.Links[1].Name != "lan" || f.Policy.Links[1].Rate.Cmp(meter.BitRate(1e9)) != 0 {
		t.Errorf("links %+v %+v", wan, f.Policy.Links[1])
	}
	normal := queue.CoDel{Target: 5 * time.Millisecond, Interval: 100 * time.Millisecond}
	want := []dataplane.Queue{
		{Name: "time", Config: queue.Config{
			Rate: meter.Rate{Bytes: 1, Period: 400}, Time: 100 * time.Millisecond,
			WRED: [3]queue.Early{meter.Yellow: {Min: 30 * ms, Max: 80 * ms, Probability: 1677722}, meter.Red: {Min: 0, Max: 40 * ms, Probability: 1 << 24}},
		}},
		{Name: "size", Config: queue.Config{
			Rate: meter.Rate{Bytes: 1, Period: 8}, Bytes: 65536, CoDel: normal, Seed: 1<<64 - 1,
			WRED: [3]queue.Early{meter.Green: {Min: 1000, Max: 65536}},
		}},
		{Name: "packets", Config: queue.Config{
			Rate: meter.Rate{Bytes: 1, Period: 8e9}, Packets: 65536, CoDel: queue.CoDel{Target: 12 * time.Millisecond, Interval: normal.Interval},
			WRED: [3]queue.Early{meter.Red: {Max: 65536, Probability: 1}},
		}},
		{Name: "voice", Link: wan, Config: queue.Config{Bytes: 65536, CoDel: queue.CoDel{Target: normal.Target, Interval: 3 * time.Second}, ECN: true}},
		{Name: "web", Link: wan, Priority: 7, Weight: 1000, Config: queue.Config{
			Time: 10 * time.Minute, WRED: [3]queue.Early{meter.Red: {Min: 549e9, Max: 549.7e9, Probability: 1 << 23}},
		}},
		{Name: "rest", Link: wan, Weight: 1, Config: queue.Config{Packets: 1, CoDel: normal}},
	}
	for i, q := range f.Policy.Queues {
		got, want := *q, want[i]
		if got.Rate.Cmp(want.Rate) != 0 {
			t.Errorf("queue %s: rate %v, want %v", got.Name, got.Rate, want.Rate)
		}
		got.Rate, want.Rate = meter.Rate{}, meter.Rate{}
		if got != want {
			t.Errorf("queue %s:\n got %+v\nwant %+v", want.Name, got, want)
		}
	}
	if c := f.Policy.Classes[0]; c.Green.Queue != f.Policy.Queues[0] || c.Yellow.Queue != f.Policy.Queues[3] || c.Red.Queue != f.Policy.Queues[4] {
		t.Error("actions have other queues")
	}
}

// TestProbability checks that probabilities are rounded to the nearest 1/2^24, half up.
func TestProbability(t *testing.T) {
	for _, test := range []struct {
		text string
		want uint32
	}{
		{"0", 0},
		{"0.0", 0},
		{"1", 1 << 24},
		{"1.000000000000000000", 1 << 24},
		{"0.5", 1 << 23},
		{"0.00000002980232238", 0}, // 0.4999999995 of 2^-24
		{"0.00000002980232239", 1},
		{"0.999999999999999999", 1 << 24},
		{"0.1", 1677722},
	} {
		got, err := parseProbability(test.text)
		if err != nil || got != test.want {
			t.Errorf("%s: %d %v, want %d", test.text, got, err, test.want)
		}
	}
	for _, text := range []string{"", "1.000000000000000001", "-0", "1e-3", "10%", ".5", "0,1", "NaN", "p"} {
		if got, err := parseProbability(text); err == nil {
			t.Errorf("%q: %d", text, got)
		}
	}
}

// TestErrors checks the place and the text of each error. The place is that of the value,
// or of the mapping if a key is missing.
func TestErrors(t *testing.T) {
	srtcm := "{type: srtcm, cir: 1mbit, cbs: 2kB, ebs: 2kB}"
	class := func(keys string) string { return "classes:\n  - name: a\n    " + keys + "\n" }
	queued := func(keys string) string {
		return class("green: {queue: q}") + "queues: {q: {" + keys + "}}\nlinks: {wan: {rate: 1mbit}, slow: {rate: 100B/s}}\n"
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
		{"link and rate", queued("rate: 1mbit, link: wan, limit: 1s"), "4:33", []string{`"q"`, "both a rate and a link"}},
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
	_, err := compiled(text)
	if err == nil {
		t.Fatal("no error")
	}
	lines := strings.Split(err.Error(), "\n")
	line := lines[0]
	if len(lines) > 1 {
		t.Errorf("%d errors for one error: %q", len(lines), lines)
	}
	if !placed.MatchString(line) || place != "" && !strings.HasPrefix(line, "p.yaml:"+place+": ") {
		t.Errorf("%s: want it at p.yaml:%s", line, cmp.Or(place, "line:column"))
	}
	for _, part := range says {
		if !strings.Contains(line, part) {
			t.Errorf("%s: does not say %q", line, part)
		}
	}
}

// TestAllErrorsAtOnce checks that all errors are reported, each on its own line.
func TestAllErrorsAtOnce(t *testing.T) {
	_, err := compiled("classes:\n  - nam: a\n  - name: b\n    green: {queue: q}\n    red: no\nlength: l5\n")
	if err == nil {
		t.Fatal("no error")
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
		_, err := compiled("classes:\n  - {name: a, match: {proto: udp}, meter: m}\n  - {name: b, meter: m}\nmeters:\n" + meters)
		if err == nil || strings.Count(err.Error(), "\n") != 0 {
			t.Errorf("%s: want one error, got:\n%v", name, err)
		}
	}
}

// TestForms checks different spellings of the same policy.
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
		"queue ECN":    {Meter: "token-bucket rate=1mbit burst=20ms", Red: "queue", Queue: "rate=20mbit limit=100p codel=true ecn=true seed=3"},
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

// TestOneLinerErrors checks that a place names the flag and the column in it.
func TestOneLinerErrors(t *testing.T) {
	good := "srtcm cir=1mbit cbs=2kB ebs=2kB"
	for _, test := range []struct {
		name  string
		in    OneLiner
		place string
		says  []string
	}{
		{"type", OneLiner{Meter: "stcm cir=1mbit"}, "--meter:1:1", []string{`"stcm"`, "srtcm"}},
		{"no type", OneLiner{Meter: "cir=1mbit"}, "--meter:1:1", []string{"type"}},
		{"rate", OneLiner{Meter: "srtcm cir=1mbps cbs=2kB ebs=2kB"}, "--meter:1:11", []string{"1mbit", "1MB/s"}},
		{"burst", OneLiner{Meter: "srtcm cir=1mbit cbs=2k ebs=2kB"}, "--meter:1:21", []string{"2kB", "2KiB"}},
		{"burst left out", OneLiner{Meter: "srtcm cir=1mbit cbs=2kB"}, "--meter:1:1", []string{"ebs is missing"}},
		{"PIR below CIR", OneLiner{Meter: "trtcm cir=2mbit cbs=2kB pir=1mbit pbs=2kB"}, "--meter:1:29", []string{"below", "RFC 2698"}},
		{"unknown key", OneLiner{Meter: good + " mtu=9000"}, "--meter:1:33", []string{`"mtu"`}},
		{"key twice", OneLiner{Meter: good + " cir=2mbit"}, "--meter:1:33", []string{`duplicate key "cir"`}},
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

// FuzzLoad checks that any text compiles, or that every line of its error has a place.
func FuzzLoad(f *testing.F) {
	for _, text := range []string{
		example, "", "classes: [{name: a}]", "a: &a [*a]", "classes: &c [*c]", "{", "\t", "---\n---\n",
		"classes: [{name: a, green: {queue: q}}]\nqueues: {q: {link: l, weight: 3, limit: 9ms, wred: {red: {min: 0, max: 9ms, probability: 0.5}}, codel: {target: 5ms}, seed: 1}}\nlinks: {l: {rate: 1mbit}}",
		"classes: [{name: a, meter: {type: srtcm, cir: 0bit, cbs: 1, ebs: 1, then: m}}]\nmeters: {m: {type: trtcm, then: m}}",
		"classes: [{name: a, meter: {type: sliding-window, limit: 1kB, window: 1s, slots: 5, per: src/24,64, keys: 9, evict: idle}}]",
		"classes: [{name: a, meter: {type: trtcm4115, cir: 1bit, cbs: 1, eir: 1bit, ebs: 1, envelope: e, rank: 1}}]\nenvelopes: {e: {cirmax: 1p/1s}}",
	} {
		f.Add(text)
	}
	for _, tt := range syntaxErrors {
		if len(tt.text) < 100 {
			f.Add(tt.text)
		}
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
