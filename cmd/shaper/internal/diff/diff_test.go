package diff

import (
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// load reads a policy with a file of customers.
func load(t *testing.T, text, customers string) *policyfile.File {
	t.Helper()
	file, err := policyfile.LoadWith("policy", []byte(text),
		func(string) (string, error) { return customers, nil })
	if err != nil {
		t.Fatal(err)
	}
	if _, err := file.Compile(); err != nil {
		t.Fatal(err)
	}
	return file
}

// TestChanges compares changes with lines that were written by hand.
func TestChanges(t *testing.T) {
	const (
		meterA = "classes: [{name: a, match: {dscp: ef}, meter: {type: srtcm, cir: 8mbit, cbs: 1000, ebs: 2000}}, {name: rest}]\n"
		queues = "classes: [{name: a, red: {queue: q}, meter: {type: token-bucket, rate: 8mbit, burst: 1000}}]\n"
		isp    = "classes: [{name: c, per: customer, meter: plan}]\ncustomers: {file: x}\nplans:\n  p: {type: token-bucket, rate: 8mbit, burst: 1000}\n  q: {queue: {rate: 8mbit, limit: 10ms}}\n"
		rows   = "customer,address,plan,rate\nann,192.0.2.1,p,\nbob,192.0.2.2 192.0.2.3,p,\n"
	)
	for _, tt := range []struct {
		name, a, b   string
		rowsA, rowsB string
		want         []string
	}{
		{"same", meterA, "x-a: 1\n" + meterA, "", "", nil},
		{
			"a rate changes the times of bursts, which are no changes", meterA, strings.Replace(meterA, "8mbit", "16mbit", 1), "", "",
			[]string{"class a: CIR: 8mbit -> 16mbit"},
		},
		{"the same rate", meterA, strings.Replace(meterA, "8mbit", "1MB/s", 1), "", "", nil},
		{
			"a smallest change", meterA, strings.Replace(meterA, "8mbit", "8000001bit", 1), "", "",
			[]string{"class a: CIR: 8mbit -> 8000001bit"},
		},
		{"default actions", meterA, strings.Replace(meterA, "dscp: ef}", "dscp: 46}, green: pass, red: drop", 1), "", "", nil},
		{
			"type", meterA, strings.Replace(meterA, "srtcm, cir: 8mbit, cbs: 1000, ebs: 2000", "token-bucket, rate: 8mbit, burst: 1000", 1), "", "",
			[]string{
				"class a: meter: srtcm CIR 8mbit, CBS 1000 B (1 ms), EBS 2000 B (2 ms) -> token-bucket rate 8mbit, burst 1000 B (1 ms)",
			},
		},
		{
			"no meter", meterA, "classes: [{name: a, match: {dscp: ef}}, {name: rest}]", "", "",
			[]string{
				"class a: meter: srtcm CIR 8mbit, CBS 1000 B (1 ms), EBS 2000 B (2 ms) -> none: every packet is green",
			},
		},
		{
			"shared meter", meterA, "classes: [{name: a, match: {dscp: ef}, meter: m}, {name: rest, meter: m}]\nmeters: {m: {type: token-bucket, rate: 8mbit, burst: 1000}}", "", "",
			[]string{
				"class a: meter: srtcm CIR 8mbit, CBS 1000 B (1 ms), EBS 2000 B (2 ms) -> the shared meter m",
				"class rest: meter: none: every packet is green -> the shared meter m",
				"meter m: added: meter token-bucket rate 8mbit, burst 1000 B (1 ms)",
			},
		},
		{
			"match", "classes: [{name: a, match: {dport: [80, 443], src: 10.0.0.0/8}}, {name: rest}]", "classes: [{name: a, match: {dport: [443, 8000-8080], proto: tcp}}, {name: rest}]", "", "",
			[]string{
				"class a: match src: 10.0.0.0/8 -> any",
				"class a: match proto: any -> tcp",
				"class a: match dport: 443,80 -> 443,8000-8080",
			},
		},
		{"order of a list", "classes: [{name: a, match: {dport: [80, 443]}}]", "classes: [{name: a, match: {dport: [443, 80]}}]", "", "", nil},
		{
			"order of classes that overlap", "classes: [{name: a, match: {dscp: ef}}, {name: b, match: {proto: udp}}, {name: c}]", "classes: [{name: b, match: {proto: udp}}, {name: a, match: {dscp: ef}}, {name: c}]", "", "",
			[]string{"class b: moved before a: it takes packets that match both from a"},
		},
		{
			"order of classes that do not overlap", "classes: [{name: a, match: {dscp: ef}}, {name: b, match: {dscp: 0}}]", "classes: [{name: b, match: {dscp: 0}}, {name: a, match: {dscp: ef}}]", "", "",
			[]string{"class b: moved before a: no packet matches both"},
		},
		{
			"a class is replaced", "classes: [{name: a, match: {dscp: ef}}, {name: b, match: {proto: udp}}, {name: rest}]", "classes: [{name: b, match: {proto: udp}}, {name: web, match: {proto: tcp}, red: pass}, {name: rest}]", "", "",
			[]string{
				"class a: removed (its packets can match b, rest): match dscp ef; meter none: every packet is green; green pass; yellow pass; red drop",
				"class web: added before rest (takes packets that match both from rest): match proto tcp; meter none: every packet is green; green pass; yellow pass; red pass",
			},
		},
		{
			"queue", queues + "queues: {q: {rate: 1mbit, limit: 100ms, wred: {red: {min: 1ms, max: 2ms, probability: 0.5}}}}", queues + "queues: {q: {rate: 2mbit, limit: 100ms, codel: true, ecn: true}}", "", "",
			[]string{
				"queue q: rate: 1mbit -> 2mbit",
				"queue q: fair: none -> flow: an equal share for each, with its own codel",
				"queue q: codel: none -> target 12ms, interval 100ms (defaults)",
				"queue q: ecn: none -> CE instead of an early drop",
				"queue q: wred red: from 1ms to 2ms, probability 0.5 -> none",
			},
		},
		{
			"rate of a fair queue", queues + "queues: {q: {rate: 6mbit, limit: 10ms}}", queues + "queues: {q: {rate: 7mbit, limit: 10ms}}", "", "",
			[]string{"queue q: rate: 6mbit -> 7mbit"},
		},
		{
			"a fair queue's own link gets another queue", queues + "queues: {q: {link: q, limit: 10ms, fair: flow}}\nlinks: {q: {rate: 6mbit}}",
			strings.Replace(queues, "[", "[{name: b, match: {dscp: 1}, green: {queue: r}}, ",
				1) + "queues: {q: {link: q, limit: 10ms, fair: flow}, r: {link: q, limit: 10ms}}\nlinks: {q: {rate: 6mbit}}",
			"", "",
			[]string{
				"class b: added before a (takes packets that match both from a): match dscp 1; meter none: every packet is green; green queue=r; yellow pass; red drop",
				"queue q: link: none -> q, priority 0, weight 1",
				"queue q: rate: 6mbit -> none",
				"queue r: added: link q, priority 0, weight 1; limit 10ms at the link's rate (7500 B), at most 375 packets",
				"link q: added: rate 6mbit",
			},
		},
		{
			"link", queues + "queues: {q: {link: l, limit: 100ms}}\nlinks: {l: {rate: 1mbit}}", queues + "queues: {q: {link: l, limit: 100ms, weight: 2, fair: src}}\nlinks: {l: {rate: 3mbit}}", "", "",
			[]string{
				"queue q: link: l, priority 0, weight 1 -> l, priority 0, weight 2",
				"queue q: fair: none -> src: an equal share for each, with its own codel",
				"queue q: codel: none -> target 8ms, interval 100ms (defaults)",
				"link l: rate: 1mbit -> 3mbit",
			},
		},
		{
			"tree", queues + "queues: {q: {link: b, limit: 100ms}}\nlinks: {a: {rate: 2mbit}, b: {link: a}}", queues + "queues: {q: {link: b, limit: 100ms, rate: 1mbit, guarantee: 500kbit}}\nlinks: {a: {rate: 2mbit}, b: {link: c, guarantee: 600kbit, weight: 3}, c: {link: a}}", "", "",
			[]string{
				"queue q: rate: none -> 1mbit",
				"queue q: guarantee: none -> 500kbit",
				"link b: link: a -> c",
				"link b: guarantee: none -> 600kbit",
				"link b: weight: 1 -> 3",
				"link c: added: link a; priority 0; weight 1",
			},
		},
		{
			"policy", "classes: [{name: a}]", "classes: [{name: a}]\nlength: l2\notherwise: drop", "", "",
			[]string{
				"policy: length: l3: the IP packet, header to end (RFC 2697 §1) -> l2: the Ethernet frame without FCS",
				"policy: unclassified packets: pass -> drop",
			},
		},
		{"customers in another order", isp, isp, rows, "customer,address,plan\nbob,192.0.2.3 192.0.2.2,p\nann,192.0.2.1,p\n", nil},
		{
			"customers", isp, strings.Replace(isp, "rate: 8mbit, burst", "rate: 9mbit, burst", 1), rows, "customer,address,plan,rate\nann,192.0.2.4,q,\ncid,192.0.2.2,p,1mbit\n",
			[]string{
				"plan p: rate: 8mbit -> 9mbit",
				"customer ann: plan: p -> q",
				"customer ann: addresses: 192.0.2.1/32 -> 192.0.2.4/32",
				"customer cid: added: plan p; addresses 192.0.2.2/32; own parameters meter token-bucket rate 1mbit, burst 1000 B (8 ms)",
				"customer bob: removed: plan p; addresses 192.0.2.2/32,192.0.2.3/32",
			},
		},
	} {
		a, b := load(t, tt.a, tt.rowsA), load(t, tt.b, tt.rowsB)
		var got []string
		for _, c := range Policies(a, b) {
			got = append(got, c.String())
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("%s:\n%s\nwant\n%s", tt.name, strings.Join(got, "\n"), strings.Join(tt.want, "\n"))
		}
	}
}

// rich is a policy with a value in every field.
const rich = `
classes:
  - {name: a, match: {src: 10.0.0.0/8, dst: 10.0.0.0/8, proto: udp, sport: 1, dport: 2, dscp: ef, vlan: 3, pcp: 4, mark: 5, ethertype: ipv4, length: 100}, green: {ecn: ce, dscp: 1, queue: q}, yellow: pass, red: pass,
     meter: {type: trtcm4115, cir: 1mbit, cbs: 1000, eir: 1mbit, ebs: 2000, envelope: e, rank: 2, cirmax: 5mbit, eirmax: 6mbit}}
  - {name: b, match: {dscp: 0}, meter: {type: token-bucket, rate: 1mbit, burst: 1000, initial: 50%, color: aware, precolor: {from: pcp, map: {1: yellow}}, count: bytes}, then: m}
  - {name: c, match: {dscp: 1}, meter: {type: trtcm, cir: 1mbit, cbs: 1000, pir: 1mbit, pbs: 2000, per: "src/24,64", keys: 10, evict: idle}}
  - {name: d, match: {dscp: 2}, meter: {type: token-bucket, rate: 1mbit, burst: 1000, share: {budget: b, store: "redis://h:1/0", interval: 1s, rescue: 20%, weight: 2}}}
  - {name: e, match: {dscp: 3}, meter: {type: tswtcm, cir: 1mbit, pir: 1mbit, window: 1s, seed: 1}}
  - {name: f, per: customer, meter: plan}
meters: {m: {type: sliding-log, limit: 1000, window: 1s, entries: 10, color: aware}}
queues:
  q: {link: l, priority: 1, weight: 2, limit: 1000, fair: "src/24,64", seed: 1, ecn: true, codel: true, wred: {green: {min: 100, max: 200, probability: 0.5}}}
  r: {rate: 1mbit, limit: 10ms, fair: false}
links: {l: {rate: 1mbit}}
envelopes: {e: {cirmax: 1mbit, eirmax: 1mbit}}
length: {base: l2, overhead: 4, mpu: 64}
customers: {file: x, key: src}
plans: {p: {type: token-bucket, rate: 1mbit, burst: 1000, green: pass, yellow: pass, red: pass}, q: {queue: {rate: 1mbit, limit: 10ms, codel: true}}}
`

const richRows = "customer,address,plan,burst\nann,192.0.2.1,p,\nbob,192.0.2.2,p,500\ncid,192.0.2.3,q,\n"

// TestEveryField changes each field of a policy, one at a time, and checks that a change is found.
func TestEveryField(t *testing.T) {
	before := load(t, rich, richRows)
	if got := Policies(before, load(t, rich, richRows)); len(got) > 0 {
		t.Fatalf("without a change: %v", got)
	}
	fields := 0
	after := load(t, rich, richRows)
	v := mutator{seen: map[any]bool{}, check: func(path string) {
		fields++
		if len(Policies(before, after)) == 0 {
			t.Errorf("no change is found after one of %s", path)
		}
	}}
	v.walk("Policy", reflect.ValueOf(after.Policy).Elem())
	if got := Policies(before, after); len(got) > 0 {
		t.Fatalf("the test did not restore %v", got)
	}
	if fields < 150 {
		t.Errorf("only %d fields", fields)
	}
}

// mutator changes the fields of a value, and restores each of them.
type mutator struct {
	seen  map[any]bool // pointers
	check func(path string)
}

// unused reports whether a field of a struct has no effect there.
func unused(v reflect.Value, field, path string) bool {
	switch x := v.Interface().(type) {
	case dataplane.Meter:
		switch field {
		case "Name": // a class has the only meter without an own name
			return strings.HasSuffix(path, "Classes.Meter")
		case "PreColor":
			return !x.Aware
		case "Keys", "Idle":
			return x.Per.By == dataplane.NoKey
		case "Rank":
			return x.Envelope == nil
		}
	case dataplane.Key:
		return field != "By" && x.By == dataplane.NoKey
	case dataplane.Queue:
		return x.Link == nil && slices.Contains([]string{"Priority", "Weight", "Fair"}, field) ||
			(field == "TargetAtRate" || field == "IntervalAtRate") && x.CoDel == (queue.CoDel{})
	case queue.Config:
		return field == "Rate" && x.Rate.Bytes == 0 // of a link's queue
	}
	return false
}

func (m *mutator) walk(path string, v reflect.Value) {
	old := reflect.New(v.Type()).Elem()
	old.Set(v)
	try := func(x any) {
		v.Set(reflect.ValueOf(x).Convert(v.Type()))
		m.check(path)
		v.Set(old)
	}
	switch x := v.Interface().(type) {
	case netip.Prefix:
		try(netip.MustParsePrefix("203.0.113.0/24"))
		return
	case meter.Rate:
		try(meter.Rate{Bytes: x.Bytes + 1, Period: x.Period})
		return
	case dataplane.Fraction:
		try(dataplane.Fraction{Num: 1, Den: 7})
		return
	case queue.Early:
		try(queue.Early{Min: x.Min, Max: x.Max, Probability: x.Probability + 1})
		try(queue.Early{Min: x.Min + 1, Max: x.Max, Probability: x.Probability})
		try(queue.Early{Min: x.Min, Max: x.Max + 1, Probability: x.Probability})
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() && !m.seen[v.Interface()] {
			m.seen[v.Interface()] = true
			m.walk(path, v.Elem())
		}
	case reflect.Interface:
		if !v.IsNil() { // parameters of a meter
			p := reflect.New(v.Elem().Type()).Elem()
			p.Set(v.Elem())
			inner := mutator{m.seen, func(path string) { v.Set(p); m.check(path); v.Set(old) }}
			inner.walk(path, p)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if f := v.Type().Field(i); f.IsExported() && !unused(v, f.Name, path) {
				m.walk(path+"."+f.Name, v.Field(i))
			}
		}
	case reflect.Slice, reflect.Array:
		for i := range v.Len() {
			m.walk(path, v.Index(i))
		}
		if v.Kind() == reflect.Slice && v.Len() > 0 && !strings.HasSuffix(path, ".Plans") {
			try(v.Slice(0, v.Len()-1).Interface())
		}
	case reflect.Map:
		try(reflect.MakeMap(v.Type()).Interface())
	case reflect.Bool:
		try(!v.Bool())
	case reflect.String:
		try(v.String() + "x")
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		try(v.Int() + 1)
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		try(v.Uint() + 1)
	default:
		panic(path + " has a kind that the test does not know: " + v.Kind().String())
	}
}

// TestRowOrder checks that no two rows have the same place: their order is the same in each run.
func TestRowOrder(t *testing.T) {
	fate := Fate{Class: "a", Color: "green", Action: "pass"}
	row := Row{From: fate, To: fate, Differs: []string{"color"}, Count: dataplane.Count{Packets: 2, Bytes: 9}}
	for name, change := range map[string]func(*Row){
		"class before":  func(r *Row) { r.From.Class = "b" },
		"color before":  func(r *Row) { r.From.Color = "red" },
		"action before": func(r *Row) { r.From.Action = "queue" },
		"class after":   func(r *Row) { r.To.Class = "b" },
		"color after":   func(r *Row) { r.To.Color = "red" },
		"action after":  func(r *Row) { r.To.Action = "queue" },
		"difference":    func(r *Row) { r.Differs = []string{"color", "dscp"} },
		"packets":       func(r *Row) { r.Packets = 1 },
	} {
		later := row
		change(&later)
		if row.compare(later) >= 0 || later.compare(row) <= 0 {
			t.Errorf("%s: got %d and %d, want a row before the other", name, row.compare(later),
				later.compare(row))
		}
	}
}
