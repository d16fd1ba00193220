package compiled

import (
	"fmt"
	"math"
	"math/big"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/internal/frametest"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// invalid contains policies with one error each.
var invalid = []struct {
	name  string
	field string
	text  string // part of the message
	// makes a valid policy invalid, and returns the object with the error
	spoil func(p *dataplane.Policy) (object any)
}{
	{"no classes", "classes", "at least one", func(p *dataplane.Policy) any { p.Classes = nil; return p }},
	{"too many classes", "classes", "at most 4096 classes, not 4097", func(p *dataplane.Policy) any {
		p.Classes = manyClasses(MaxClasses + 1)
		return p
	}},
	{"overhead above the maximum", "overhead", "32769 is not between -32768 and 32768", func(p *dataplane.Policy) any { p.Length.Overhead = 32769; return &p.Length }},
	{"overhead below the minimum", "overhead", "-32769 is not between", func(p *dataplane.Policy) any { p.Length.Overhead = -32769; return &p.Length }},
	{"smallest integer as overhead", "overhead", "is not between", func(p *dataplane.Policy) any { p.Length.Overhead = math.MinInt; return &p.Length }},
	{"mpu above the maximum", "mpu", "32769 is above 32768", func(p *dataplane.Policy) any { p.Length.MPU = 32769; return &p.Length }},
	{"negative mpu", "mpu", "-1 is negative", func(p *dataplane.Policy) any { p.Length.MPU = -1; return &p.Length }},
	{"unknown base", "base", "L3, L2 or L1", func(p *dataplane.Policy) any { p.Length.Base = dataplane.L1 + 1; return &p.Length }},

	{"empty class name", "name", "is empty", func(p *dataplane.Policy) any { p.Classes[1].Name = ""; return &p.Classes[1] }},
	{"reserved class name", "name", `"-" is reserved`, func(p *dataplane.Policy) any { p.Classes[1].Name = "-"; return &p.Classes[1] }},
	{"duplicate class name", "name", `"voice" is the name of an earlier class`, func(p *dataplane.Policy) any { p.Classes[1].Name = "voice"; return &p.Classes[1] }},

	{"reversed range", "dport", "range 2-1 is empty", func(p *dataplane.Policy) any {
		p.Classes[0].Match.DPort = []dataplane.Range{{First: 1, Last: 2}, {First: 2, Last: 1}}
		return &p.Classes[0].Match
	}},
	{"proto", "proto", "256 is above 255", func(p *dataplane.Policy) any {
		p.Classes[0].Match.Proto = frametest.Values(256)
		return &p.Classes[0].Match
	}},
	{"sport", "sport", "65536 is above 65535", func(p *dataplane.Policy) any {
		p.Classes[0].Match.SPort = frametest.Values(65536)
		return &p.Classes[0].Match
	}},
	{"dscp", "dscp", "64 is above 63", func(p *dataplane.Policy) any {
		p.Classes[0].Match.DSCP = []dataplane.Range{{First: 0, Last: 64}}
		return &p.Classes[0].Match
	}},
	{"vlan", "vlan", "4096 is above 4095", func(p *dataplane.Policy) any {
		p.Classes[1].Match.VLAN = frametest.Values(4096)
		return &p.Classes[1].Match
	}},
	{"pcp", "pcp", "8 is above 7", func(p *dataplane.Policy) any {
		p.Classes[1].Match.PCP = frametest.Values(8)
		return &p.Classes[1].Match
	}},
	{"ethertype", "ethertype", "65536 is above 65535", func(p *dataplane.Policy) any {
		p.Classes[1].Match.EtherType = frametest.Values(1 << 16)
		return &p.Classes[1].Match
	}},
	{"invalid prefix", "dst", "invalid prefix", func(p *dataplane.Policy) any { p.Classes[1].Match.Dst = []netip.Prefix{{}}; return &p.Classes[1].Match }},

	{"negative burst", "cbs", "negative", func(p *dataplane.Policy) any {
		m := p.Classes[0].Meter
		m.Params = meter.SRTCM{CIR: frametest.Mega, CBS: -1, EBS: 1}
		return m
	}},
	{"PIR below CIR", "pir", "RFC 2698", func(p *dataplane.Policy) any {
		m := p.Classes[0].Meter
		m.Params = meter.TRTCM{CIR: frametest.Mega, CBS: 1, PIR: meter.BitRate(1), PBS: 1}
		return m
	}},
	{"second meter of a chain", "burst", "above zero", func(p *dataplane.Policy) any {
		m := p.Classes[1].Meter
		m.Params = meter.TokenBucket{Rate: frametest.Mega}
		return m
	}},
	{"no parameters", "type", "is missing", func(p *dataplane.Policy) any { p.Classes[0].Meter.Params = nil; return p.Classes[0].Meter }},
	{"initial share above 1", "initial", "between 0 and 100 %", func(p *dataplane.Policy) any {
		p.Classes[0].Meter.Initial = dataplane.Fraction{Num: 3, Den: 2}
		return p.Classes[0].Meter
	}},
	{"negative initial share", "initial", "between 0 and 100 %", func(p *dataplane.Policy) any {
		p.Classes[0].Meter.Initial = dataplane.Fraction{Num: -1, Den: 2}
		return p.Classes[0].Meter
	}},
	{"initial share with denominator 0", "initial", "between 0 and 100 %", func(p *dataplane.Policy) any {
		p.Classes[0].Meter.Initial = dataplane.Fraction{Num: 1, Den: 0}
		return p.Classes[0].Meter
	}},
	{"initial tokens of an average", "initial", "RFC 2859", func(p *dataplane.Policy) any {
		m := p.Classes[0].Meter
		m.Params, m.Initial = meter.TSWTCM{CIR: frametest.Mega, PIR: frametest.Mega, Window: time.Second},
			dataplane.Fraction{Num: 1, Den: 2}
		return m
	}},
	{"initial tokens of an average per key", "per", "never becomes idle", func(p *dataplane.Policy) any {
		m := p.Classes[0].Meter
		m.Params, m.Initial, m.Per = meter.TSWTCM{
			CIR: frametest.Mega, PIR: frametest.Mega, Window: time.Second,
		}, dataplane.Fraction{Num: 1, Den: 2}, dataplane.Key{By: dataplane.BySrc}
		return m
	}},
	{"partial initial tokens per key", "new", "full or empty", func(p *dataplane.Policy) any {
		m := p.Classes[0].Meter
		m.Initial, m.Per = dataplane.Fraction{Num: 1, Den: 2}, dataplane.Key{By: dataplane.BySrc}
		return m
	}},
	{"too many keys", "keys", "4194304", func(p *dataplane.Policy) any {
		m := p.Classes[0].Meter
		m.Keys, m.Per = meter.MaxKeys+1, dataplane.Key{By: dataplane.BySrc}
		return m
	}},
	{"unknown key", "per", "is unknown", func(p *dataplane.Policy) any {
		m := p.Classes[0].Meter
		m.Per = dataplane.Key{By: dataplane.ByCgroup + 1}
		return m
	}},
	{"key of fair queues", "per", "fair queues only", func(p *dataplane.Policy) any {
		m := p.Classes[0].Meter
		m.Per = dataplane.Key{By: dataplane.ByHosts}
		return m
	}},
	{"IPv4 prefix of a flow", "per", "only src, dst and address", func(p *dataplane.Policy) any {
		m := p.Classes[0].Meter
		m.Per = dataplane.Key{By: dataplane.ByFlow, V4: 1}
		return m
	}},
	{"IPv6 prefix of a VLAN", "per", "only src, dst and address", func(p *dataplane.Policy) any {
		m := p.Classes[0].Meter
		m.Per = dataplane.Key{By: dataplane.ByVLAN, V6: 1}
		return m
	}},
	{"IPv4 prefix above 32", "per", "above 32", func(p *dataplane.Policy) any {
		m := p.Classes[0].Meter
		m.Per = dataplane.Key{By: dataplane.BySrc, V4: 33}
		return m
	}},
	{"IPv6 prefix above 128", "per", "128", func(p *dataplane.Policy) any {
		m := p.Classes[0].Meter
		m.Per = dataplane.Key{By: dataplane.ByDst, V6: 129}
		return m
	}},
	{"precolor of DSCP 64", "precolor", "64 is above 63, the largest dscp", func(p *dataplane.Policy) any {
		m := p.Classes[0].Meter
		m.PreColor.Map = map[uint32]meter.Color{64: meter.Red}
		return m
	}},
	{"precolor of DEI 2", "precolor", "2 is above 1, the largest dei", func(p *dataplane.Policy) any {
		m := p.Classes[0].Meter
		m.PreColor = dataplane.PreColor{From: dataplane.DEI, Map: map[uint32]meter.Color{2: meter.Red}}
		return m
	}},
	{"precolor of an unknown field", "precolor", "Field(5) is not a known field", func(p *dataplane.Policy) any {
		m := p.Classes[0].Meter
		m.PreColor = dataplane.PreColor{
			From: dataplane.SKBMark + 1, Map: map[uint32]meter.Color{2: meter.Red},
		}
		return m
	}},
	{"chain that returns to its first meter", "then", "must end", func(p *dataplane.Policy) any {
		m := p.Classes[0].Meter
		m.Aware, m.Then = true, m
		return m
	}},
	{"chain with a loop", "then", `"first"`, func(p *dataplane.Policy) any {
		first, total := p.Classes[0].Meter, p.Classes[1].Meter
		p.Classes = p.Classes[:1]
		first.Aware = true
		total.Then = first
		return total
	}},
	{"color-blind second meter", "then", "aware", func(p *dataplane.Policy) any { p.Classes[1].Meter.Aware = false; return p.Classes[0].Meter }},
	{"color-blind second meter of two classes", "then", "aware", func(p *dataplane.Policy) any {
		p.Classes[1].Meter.Aware = false
		p.Classes[1].Meter = p.Classes[0].Meter
		return p.Classes[0].Meter
	}},

	{"drop and mark", "drop", "other actions", func(p *dataplane.Policy) any {
		p.Classes[0].Red.Drop, p.Classes[0].Red.Queue = true, nil
		return p.Classes[0].Red
	}},
	{"drop and queue", "drop", "other actions", func(p *dataplane.Policy) any {
		p.Classes[0].Red.Drop, p.Classes[0].Red.Marks = true, nil
		return p.Classes[0].Red
	}},
	{"drop and ECN", "drop", "other actions", func(p *dataplane.Policy) any {
		p.Classes[1].Green = &dataplane.Action{Drop: true, ECN: dataplane.CE}
		return p.Classes[1].Green
	}},
	{"duplicate mark", "dscp", "twice", func(p *dataplane.Policy) any {
		p.Classes[1].Yellow = &dataplane.Action{
			Marks: []dataplane.Mark{{Field: dataplane.DSCP, Value: 1}, {Field: dataplane.DSCP, Value: 1}},
		}
		return p.Classes[1].Yellow
	}},
	{"mark above the maximum", "mpls", "8 is above 7", func(p *dataplane.Policy) any {
		p.Classes[1].Green = &dataplane.Action{Marks: []dataplane.Mark{{Field: dataplane.MPLSTC, Value: 8}}}
		return p.Classes[1].Green
	}},
	{"mark of an unknown field", "mark", "Field(5) is not a known field", func(p *dataplane.Policy) any {
		p.Classes[1].Green = &dataplane.Action{
			Marks: []dataplane.Mark{{Field: dataplane.SKBMark + 1, Value: 0}},
		}
		return p.Classes[1].Green
	}},

	{"queue without limit", "limit", "missing", func(p *dataplane.Policy) any { p.Classes[0].Red.Queue.Time = 0; return p.Classes[0].Red.Queue }},
	{"queue with a negative limit", "limit", "negative", func(p *dataplane.Policy) any { p.Classes[0].Red.Queue.Bytes = -1; return p.Classes[0].Red.Queue }},
	{"queue with too many packets", "limit", "65536", func(p *dataplane.Policy) any { q := p.Classes[0].Red.Queue; q.Packets = queue.MaxPackets + 1; return q }},
	{"WRED", "wred", "limit", func(p *dataplane.Policy) any {
		q := p.Classes[0].Red.Queue
		q.WRED[2].Max = int64(q.Time) + 1
		return q
	}},
	{"CoDel", "codel", "target", func(p *dataplane.Policy) any { q := p.Classes[0].Red.Queue; q.CoDel.Target = 1; return q }},
	{"priority without a link", "rate", "priority or weight", func(p *dataplane.Policy) any { q := p.Classes[0].Red.Queue; q.Priority = 1; return q }},
	{"weight without a link", "rate", "priority or weight", func(p *dataplane.Policy) any { q := p.Classes[0].Red.Queue; q.Weight = 2; return q }},
	{"unknown key of a fair queue", "fair", "is unknown", func(p *dataplane.Policy) any { q := linked(p); q.Fair.By = dataplane.ByCgroup + 1; return q }},
	{"key of meters for a fair queue", "fair", "cannot be mac, a key of meters", func(p *dataplane.Policy) any { q := linked(p); q.Fair.By = dataplane.ByMAC; return q }},
	{"relative cgroup", "cgroup", "must begin with /", func(p *dataplane.Policy) any {
		m := &p.Classes[0].Match
		m.Cgroups = []string{"a/b"}
		return m
	}},
	{"MAC address of more than 48 bits", "src-mac", "281474976710656 is above 281474976710655", func(p *dataplane.Policy) any {
		m := &p.Classes[0].Match
		m.SrcMAC = []dataplane.Range{{First: 1 << 48, Last: 1 << 48}}
		return m
	}},
	{"fair queue without a link", "fair", "needs a queue of a link", func(p *dataplane.Policy) any { q := p.Classes[0].Red.Queue; q.Fair.By = dataplane.BySrc; return q }},
	{"queue with a rate too fine on a link", "rate", "too fine", func(p *dataplane.Policy) any {
		q := linked(p)
		q.Rate = meter.Rate{Bytes: math.MaxInt64 - 1, Period: math.MaxInt64}
		return q
	}},
	{"guarantee above the own rate", "guarantee", "is above the rate of 1mbit", func(p *dataplane.Policy) any {
		q := linked(p)
		q.Rate, q.Guarantee = meter.BitRate(1e6), meter.BitRate(1e6+1)
		return q
	}},
	{"guarantee above the link's rate", "rate", "below the sum of the guarantees", func(p *dataplane.Policy) any {
		q := linked(p)
		q.Guarantee = meter.Rate{Bytes: q.Link.Rate.Bytes + 1, Period: q.Link.Rate.Period}
		return q.Link
	}},
	{"negative guarantee", "guarantee", "above zero", func(p *dataplane.Policy) any {
		q := linked(p)
		q.Guarantee = meter.Rate{Bytes: -1, Period: 1}
		return q
	}},
	{"guarantee without a link", "guarantee", "needs a link", func(p *dataplane.Policy) any {
		q := p.Classes[0].Red.Queue
		q.Guarantee = frametest.Mega
		return q
	}},
	{"guarantee of a root", "link", "is missing", func(p *dataplane.Policy) any {
		l := linked(p).Link
		l.Guarantee = frametest.Mega
		return l
	}},
	{"link below itself", "link", "is below itself", func(p *dataplane.Policy) any {
		l := linked(p).Link
		l.Link = l
		return l
	}},
	{"links below each other", "link", "is below itself", func(p *dataplane.Policy) any {
		l := linked(p).Link
		l.Link = &dataplane.Link{Name: "other", Link: l}
		return l.Link
	}},
	{"too many levels", "link", "at most 8 levels", func(p *dataplane.Policy) any {
		l := linked(p).Link
		for range 7 {
			l.Link = &dataplane.Link{Name: "above", Rate: l.Rate}
			l = l.Link
		}
		return linkOf(p)
	}},
	{"link without children", "link", "no queue and no link uses", func(p *dataplane.Policy) any {
		l := &dataplane.Link{Name: "empty", Link: linked(p).Link}
		p.Links = append(p.Links, l.Link, l)
		return l
	}},
	{"weight of a link", "weight", "1001", func(p *dataplane.Policy) any {
		l := linked(p).Link
		l.Link, l.Weight = &dataplane.Link{Name: "above", Rate: l.Rate}, 1001
		return l
	}},
	{"negative priority", "priority", "-1", func(p *dataplane.Policy) any { q := linked(p); q.Priority = -1; return q }},
	{"priority above the maximum", "priority", "8", func(p *dataplane.Policy) any { q := linked(p); q.Priority = 8; return q }},
	{"negative weight", "weight", "-1", func(p *dataplane.Policy) any { q := linked(p); q.Weight = -1; return q }},
	{"weight above the maximum", "weight", "1001", func(p *dataplane.Policy) any { q := linked(p); q.Weight = 1001; return q }},
	{"limit below one byte", "limit", "less than a byte", func(p *dataplane.Policy) any { q := linked(p); q.Time = 999; return q }},
	{"CoDel of a queue of a link", "codel", "target", func(p *dataplane.Policy) any { q := linked(p); q.CoDel.Interval = 1; return q }},
	{"link without rate", "rate", "above zero", func(p *dataplane.Policy) any { q := linked(p); q.Link.Rate = meter.Rate{}; return q.Link }},
	{"link with a rate too fine", "rate", "too fine", func(p *dataplane.Policy) any {
		q := linked(p)
		q.Link.Rate.Bytes = math.MaxInt64
		return q.Link
	}},
	{"queue without rate", "rate", "above zero", func(p *dataplane.Policy) any {
		p.Classes[0].Red.Queue.Rate = meter.Rate{}
		return p.Classes[0].Red.Queue
	}},
}

// linked gives the queue of a policy a link, and returns the queue.
func linked(p *dataplane.Policy) *dataplane.Queue {
	q := p.Classes[0].Red.Queue
	q.Rate, q.Link = meter.Rate{}, &dataplane.Link{Name: "wan", Rate: frametest.Mega}
	return q
}

func TestCompileRejects(t *testing.T) {
	for _, test := range invalid {
		t.Run(test.name, func(t *testing.T) {
			defer frametest.NoPanic(t)
			p := frametest.ValidPolicy()
			object := test.spoil(p)
			plan, err := Compile(p)
			if err == nil || plan != nil {
				t.Fatalf("got plan %v, error %v, want an error and no plan", plan, err)
			}
			list := frametest.FieldErrors(t, err)
			if len(list) != 1 {
				t.Fatalf("got %d errors, want one:\n%v", len(list), err)
			}
			if e := list[0]; e.Object != object || e.Field != test.field ||
				!strings.Contains(e.Reason, test.text) {
				t.Errorf("%T %p, %s: got %s\nwant %T %p, %s: …%s…", e.Object, e.Object, e.Field, e.Reason,
					object, object, test.field, test.text)
			}
			if !strings.Contains(err.Error(), test.field+": ") {
				t.Errorf("%q does not name %s", err, test.field)
			}
		})
	}
}

// TestCompileJoinsErrors expects all errors at once, always in the same order, with the
// names of the objects.
func TestCompileJoinsErrors(t *testing.T) {
	p := frametest.ValidPolicy()
	p.Length.MPU = -1
	p.Classes[0].Match.Src = []netip.Prefix{{}}
	p.Classes[0].Match.Dst = []netip.Prefix{{}}
	p.Classes[0].Match.Proto = []dataplane.Range{{First: 2, Last: 1}, {First: 0, Last: 256}}
	p.Classes[0].Meter.Params = meter.SRTCM{CIR: frametest.Mega, CBS: -1, EBS: -1}
	p.Classes[0].Red.Queue.Config = queue.Config{}
	p.Classes[1].Name = "-"
	p.Classes[1].Green = &dataplane.Action{
		Marks: []dataplane.Mark{{Field: dataplane.SKBMark + 1, Value: 0}, {Field: dataplane.DSCP, Value: 64}},
	}
	_, err := Compile(p)
	fields := map[string]int{}
	for _, e := range frametest.FieldErrors(t, err) {
		fields[e.Field]++
	}
	if want := map[string]int{
		"mpu": 1, "src": 1, "dst": 1, "proto": 2, "cbs": 1, "ebs": 1, "rate": 1, "limit": 1, "name": 1,
		"mark": 1, "dscp": 1,
	}; fmt.Sprint(fields) != fmt.Sprint(want) {
		t.Errorf("errors by field %v, want %v:\n%v", fields, want, err)
	}
	for _, part := range []string{`meter "first": cbs: `, `queue "bulk": rate: `, `class "-": name: `} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("got no %q in\n%v", part, err)
		}
	}
	for range 30 {
		if _, again := Compile(p); again.Error() != err.Error() {
			t.Fatalf("the order of errors differs:\n%v\n\n%v", err, again)
		}
	}
}

func TestCompileAccepts(t *testing.T) {
	for name, edit := range map[string]func(p *dataplane.Policy){
		"unchanged": func(*dataplane.Policy) {},
		"largest values": func(p *dataplane.Policy) {
			p.Classes[0].Match = dataplane.Match{
				Proto: frametest.Values(255), SPort: frametest.Values(65535), DSCP: frametest.Values(63),
				VLAN: frametest.Values(4095), PCP: frametest.Values(7),
				Mark:      frametest.Values[uint64](1<<32 - 1),
				EtherType: frametest.Values(65535), Length: frametest.Values[uint64](1<<32 - 1),
			}
		},
		"initial share 1":           func(p *dataplane.Policy) { p.Classes[0].Meter.Initial = dataplane.Fraction{Num: 2, Den: 2} },
		"initial share 0":           func(p *dataplane.Policy) { p.Classes[0].Meter.Initial = dataplane.Fraction{Num: 0, Den: 2} },
		"negative overhead":         func(p *dataplane.Policy) { p.Length.Overhead = -100 },
		"smallest overhead":         func(p *dataplane.Policy) { p.Length.Overhead = -32768 },
		"largest overhead":          func(p *dataplane.Policy) { p.Length.Overhead, p.Length.MPU = 32768, 32768 },
		"largest number of classes": func(p *dataplane.Policy) { p.Classes = manyClasses(MaxClasses) },
		"largest marks": func(p *dataplane.Policy) {
			p.Classes[0].Red.Marks = []dataplane.Mark{
				{Field: dataplane.DSCP, Value: 63},
				{Field: dataplane.PCP, Value: 7},
				{Field: dataplane.DEI, Value: 1},
				{Field: dataplane.MPLSTC, Value: 7},
				{Field: dataplane.SKBMark, Value: 1<<32 - 1},
			}
		},
		"queue of a link":         func(p *dataplane.Policy) { linked(p) },
		"queue of a link, bounds": func(p *dataplane.Policy) { q := linked(p); q.Priority, q.Weight, q.Time = 7, 1000, 1000 },
		"hosts of a fair queue":   func(p *dataplane.Policy) { linked(p).Fair = dataplane.Key{By: dataplane.ByHosts} },
		"longest prefixes": func(p *dataplane.Policy) {
			p.Classes[0].Meter.Per = dataplane.Key{By: dataplane.BySrc, V4: 32, V6: 128}
		},
		"shortest prefixes": func(p *dataplane.Policy) { p.Classes[0].Meter.Per = dataplane.Key{By: dataplane.ByDst, V4: 1, V6: 1} },
		"most keys": func(p *dataplane.Policy) {
			p.Classes[0].Meter.Per, p.Classes[0].Meter.Keys = dataplane.Key{By: dataplane.ByFlow},
				meter.MaxKeys
		},
		"empty new keys": func(p *dataplane.Policy) {
			p.Classes[0].Meter.Per, p.Classes[0].Meter.Initial = dataplane.Key{By: dataplane.ByFlow},
				dataplane.Fraction{Num: 0, Den: 1}
		},
		"drop and an empty list of marks": func(p *dataplane.Policy) { p.Classes[0].Red = &dataplane.Action{Drop: true, Marks: []dataplane.Mark{}} },
	} {
		p := frametest.ValidPolicy()
		edit(p)
		if _, err := Compile(p); err != nil {
			t.Errorf("%s: got %v, want nil", name, err)
		}
	}
}

func manyClasses(n int) []dataplane.Class {
	classes := make([]dataplane.Class, n)
	for i := range classes {
		classes[i].Name = fmt.Sprint(i)
	}
	return classes
}

func TestDefaultActions(t *testing.T) {
	mark := &dataplane.Action{Marks: []dataplane.Mark{{Field: dataplane.DSCP, Value: 1}}}
	c := dataplane.Class{Yellow: mark}
	for color, want := range [3]string{"{false none [] <nil>}", fmt.Sprint(*mark), "{true none [] <nil>}"} {
		if got := fmt.Sprint(c.Action(meter.Color(color))); got != want {
			t.Errorf("%v: got %s, want %s", meter.Color(color), got, want)
		}
	}
}

// TestShare compares with exact fractions, rounded down.
func TestShare(t *testing.T) {
	r := frametest.Seeded(t)
	for range 10_000 {
		den := 1 + r.Int64()>>r.IntN(63)
		s := dataplane.Fraction{Num: r.Int64N(den) + r.Int64N(2), Den: den}
		n := r.Int64N(1<<59) >> r.IntN(59)
		want := new(big.Int).Mul(big.NewInt(n), big.NewInt(s.Num))
		want.Quo(want, big.NewInt(den))
		if got := s.Of(n); got != want.Int64() {
			t.Fatalf("%d/%d of %d is %d, want %v", s.Num, s.Den, n, got, want)
		}
	}
}

func TestNames(t *testing.T) {
	for _, test := range []struct {
		got  fmt.Stringer
		want string
	}{
		{dataplane.DSCP, "dscp"},
		{dataplane.SKBMark, "mark"},
		{dataplane.NoMeter, "no-meter"},
		{dataplane.NotIP, "not-ip"},
		{dataplane.BadPacket, "malformed"},
		{dataplane.QueueFull, "queue-full"},
		{dataplane.Reason(meter.TRTCM{}.Kind().Clause(meter.Red, meter.Red)), "rfc2698-pre-red"},
		{dataplane.CauseColor, "color"},
		{dataplane.CauseECN, "ecn"},
		{dataplane.CauseQueue, "queue-full"},
		{dataplane.CauseWRED, "wred"},
		{dataplane.CauseCoDel, "codel"},
		{dataplane.WRED, "wred"},
		{dataplane.CoDel, "codel"},
	} {
		if test.got.String() != test.want {
			t.Errorf("got %q, want %q", test.got, test.want)
		}
	}
}

// linkOf returns the link of the first queue that has one.
func linkOf(p *dataplane.Policy) *dataplane.Link {
	for _, c := range p.Classes {
		for _, a := range []*dataplane.Action{c.Green, c.Yellow, c.Red} {
			if a != nil && a.Queue != nil && a.Queue.Link != nil {
				return a.Queue.Link
			}
		}
	}
	return nil
}
