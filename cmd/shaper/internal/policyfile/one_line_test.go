package policyfile

import (
	"strings"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/meter"
)

func TestOneLiner(t *testing.T) {
	const trtcm = "trtcm cir=10mbit cbs=64KiB pir=20mbit pbs=128KiB color=aware"
	f, err := OneLiner{Meter: trtcm, Green: "pass", Yellow: "dscp=af12", Red: "drop"}.Load()
	if err != nil {
		t.Fatal(err)
	}
	c := f.Policy.Classes[0]
	if p := c.Meter.Params.(meter.TRTCM); c.Name != "all" || p.PBS != 128<<10 || !c.Meter.Aware ||
		c.Yellow.Marks[0].Value != 12 {
		t.Errorf("got %+v", c)
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
				t.Fatal("got nil, want an error")
			}
			if strings.Contains(err.Error(), "\n") || !strings.HasPrefix(err.Error(), test.place+": ") {
				t.Errorf("want one error at %s:\n%v", test.place, err)
			}
			for _, part := range test.says {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("got %v, want it to contain %q", err, part)
				}
			}
		})
	}
}

// TestEquivalentSpellings checks different spellings of the same policy.
func TestEquivalentSpellings(t *testing.T) {
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
		if _, err := loadAndCompile(test.text); err != nil {
			t.Errorf("%s: %v", test.name, err)
		}
	}
}
