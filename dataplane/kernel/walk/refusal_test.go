package walk

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/image"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/kerneltest"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/record"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/remedy"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// TestRefusals checks that features that the programs do not support are rejected. The error
// names the field and the reason.
func TestRefusals(t *testing.T) {
	t.Parallel()
	slow := &dataplane.Queue{Name: "slow", Config: queue.Config{Rate: meter.BitRate(1e6), Packets: 10}}
	toMark := &dataplane.Action{Marks: []dataplane.Mark{{Field: dataplane.SKBMark, Value: 1}}}
	fromMark := &dataplane.Meter{
		Params: meter.TokenBucket{Rate: meter.BitRate(1e6), Burst: 1e6}, Aware: true,
		PreColor: dataplane.PreColor{From: dataplane.SKBMark},
	}
	byMark := dataplane.Match{Mark: []dataplane.Range{{First: 1, Last: 2}}}
	second := meterChain(2)
	second.Then.PreColor.From = dataplane.SKBMark
	for _, test := range []struct {
		name   string
		policy *dataplane.Policy
		hooks  []image.Entry // hooks that reject the policy
		field  string
		object any    // has the expected type
		reason string // part of the reason
	}{
		{"queue", oneClass(dataplane.Class{Yellow: &dataplane.Action{Queue: slow}}), []image.Entry{image.XdpEntry}, "queue", &dataplane.Action{}, string(remedy.UseTC)},
		{"classes", manyChains(image.MaxClasses+1, 0), allEntries, "classes", &dataplane.Policy{}, "1025 exceed the kernel plane's limit of 1024"},
		{"chain", oneClass(dataplane.Class{Meter: meterChain(image.MaxChain + 1)}), allEntries, "then", &dataplane.Meter{}, "chain of 9"},
		{"meters", manyChains(image.MaxStates/2/3+1, 3), allEntries, "meters", &dataplane.Policy{}, "2049 exceed the kernel plane's limit of 2048"},
		{"match mark", oneClass(dataplane.Class{Match: byMark}), []image.Entry{image.XdpEntry}, "mark", &dataplane.Match{}, string(remedy.UseTC)},
		{"write mark", oneClass(dataplane.Class{Red: toMark}), []image.Entry{image.XdpEntry}, "mark", &dataplane.Action{}, string(remedy.UseTC)},
		{"precolor mark", oneClass(dataplane.Class{Meter: fromMark}), []image.Entry{image.XdpEntry}, "precolor", &dataplane.Meter{}, string(remedy.UseTC)},
		{"precolor mark of the second meter", oneClass(dataplane.Class{Meter: second}), []image.Entry{image.XdpEntry}, "precolor", &dataplane.Meter{}, string(remedy.UseTC)},
		{"bounds", hostAddresses(image.MaxBounds/2+1, false), allEntries, "classes", &dataplane.Policy{}, "bounds"},
		{"bounds of IPv6", hostAddresses(image.MaxBounds/2+1, true), allEntries, "classes", &dataplane.Policy{}, "bounds"},
	} {
		for _, hook := range allEntries {
			_, err := encodePolicy(test.policy, hook, "")
			if !slices.Contains(test.hooks, hook) {
				if err != nil {
					t.Errorf("%s at hook %d: got error %v, want none", test.name, hook, err)
				}
				continue
			}
			errs := kerneltest.FieldErrors(err)
			if len(errs) != 1 {
				t.Errorf("%s at hook %d: got error %v, want one field error", test.name, hook, err)
				continue
			}
			if f := errs[0]; f.Field != test.field ||
				fmt.Sprintf("%T", f.Object) != fmt.Sprintf("%T", test.object) ||
				!strings.Contains(f.Reason+": "+string(remedyOf(err)), test.reason) {
				t.Errorf("%s at hook %d: got %T %s: %s: %s, want %T %s: %q", test.name, hook, f.Object,
					f.Field, f.Reason, remedyOf(err), test.object, test.field, test.reason)
			}
		}
	}
}

// TestAllErrors checks that all errors of a policy are reported at once.
func TestAllErrors(t *testing.T) {
	t.Parallel()
	policy := oneClass(dataplane.Class{
		Match: dataplane.Match{Mark: []dataplane.Range{{First: 1, Last: 2}}},
		Meter: meterChain(image.MaxChain + 1),
		Green: &dataplane.Action{Marks: []dataplane.Mark{{Field: dataplane.SKBMark, Value: 1}}},
	})
	_, err := encodePolicy(policy, image.XdpEntry, "")
	var got []string
	for _, f := range kerneltest.FieldErrors(err) {
		got = append(got, f.Field)
	}
	slices.Sort(got)
	if want := []string{"mark", "mark", "then"}; !slices.Equal(got, want) {
		t.Errorf("got errors in %v, want %v", got, want)
	}
}

// TestKeyRefusals checks that meters with more state than the kernel plane keeps are rejected. The
// error names the field and a remedy.
func TestKeyRefusals(t *testing.T) {
	t.Parallel()
	rate := meter.BitRate(1e6)
	tables := &dataplane.Policy{}
	for i := range image.MaxTables + 1 {
		m := &dataplane.Meter{
			Name: fmt.Sprint(i), Params: meter.TokenBucket{Rate: rate, Burst: 9000},
			Per: dataplane.Key{By: dataplane.ByFlow}, Keys: 1,
		}
		tables.Classes = append(tables.Classes, dataplane.Class{
			Name: m.Name, Meter: m,
			Match: dataplane.Match{Length: []dataplane.Range{{First: uint64(i), Last: uint64(i)}}},
		})
	}
	one := func(m dataplane.Meter) *dataplane.Policy { return oneClass(dataplane.Class{Meter: &m}) }
	flow := meter.TRTCM4115{CIR: rate, CBS: 9000, EIR: rate, EBS: 9000}
	for _, test := range []struct {
		name, field, reason string
		policy              *dataplane.Policy
	}{
		{"sliding-window", "type", "sliding-window cannot run in the kernel", one(dataplane.Meter{Params: meter.SlidingWindow{Limit: 1, Window: time.Second, Slots: 10}})},
		{"sliding-log", "type", "sliding-log cannot run in the kernel", one(dataplane.Meter{Params: meter.SlidingLog{Limit: 1, Window: time.Second, Entries: 10}})},
		{"tswtcm", "type", "tswtcm cannot run in the kernel", one(dataplane.Meter{Params: meter.TSWTCM{CIR: rate, PIR: rate, Window: time.Second}})},
		{"warmup", "warmup", "cannot run in the kernel", one(dataplane.Meter{Params: meter.TokenBucket{Rate: rate, Burst: 9000, Warmup: time.Second}})},
		{"burst", "burst", "of 1073741824 bytes exceeds the largest burst that 64 bits count exactly at this rate, 437256155 bytes", one(dataplane.Meter{Params: meter.TokenBucket{Rate: meter.Per(1<<30, 24*time.Hour), Burst: 1 << 30}})},
		{"pbs", "pbs", "of 72057595 bytes", one(dataplane.Meter{Params: meter.TRTCM{CIR: rate, CBS: 9000, PIR: meter.BitRate(1e9 + 1), PBS: 72057595}})},
		{"unlimited", "ebs", "has an unlimited rate", one(dataplane.Meter{Params: meter.TRTCM4115{CIR: rate, CBS: 9000, EIR: meter.Unlimited, EBS: 1}})},
		{"envelope", "envelope", "cannot run in the kernel", one(dataplane.Meter{Params: flow, Envelope: &dataplane.Envelope{Name: "e"}, Rank: 1})},
		{"idle", "evict", "evict: lru", one(dataplane.Meter{Params: flow, Per: dataplane.Key{By: dataplane.BySrc}, Idle: true})},
		{"tables", "meters", "65 with a key exceed the kernel plane's limit of 64", tables},
	} {
		for _, hook := range allEntries {
			_, err := encodePolicy(test.policy, hook, "")
			errs := kerneltest.FieldErrors(err)
			if len(errs) != 1 || errs[0].Field != test.field ||
				!strings.Contains(errs[0].Reason, test.reason) {
				t.Errorf("%s at hook %d: got error %v, want one in %s with %q", test.name, hook, err,
					test.field, test.reason)
				continue
			}
			if r := remedyOf(err); test.name != "tables" && r != remedy.UseUserSpace {
				t.Errorf("%s: got error %v with remedy %q, want %q", test.name, err, r, remedy.UseUserSpace)
			}
		}
	}
	tables.Classes = tables.Classes[1:]
	if _, err := encodePolicy(tables, image.XdpEntry, ""); err != nil {
		t.Errorf("%d tables: got error %v, want none", image.MaxTables, err)
	}
}

// TestQueueRefusals checks that features that a pacer does not support are rejected. The error
// names the field and the reason.
func TestQueueRefusals(t *testing.T) {
	t.Parallel()
	link := &dataplane.Link{Name: "l", Rate: kerneltest.EightMbit}
	ofLink := func(edit func(*dataplane.Queue)) *dataplane.Queue {
		q := &dataplane.Queue{Name: "q", Config: queue.Config{Bytes: 10_000}, Link: link}
		edit(q)
		return q
	}
	own := func(cfg queue.Config) *dataplane.Queue {
		if cfg.Rate == (meter.Rate{}) {
			cfg.Rate = kerneltest.EightMbit
		}
		return &dataplane.Queue{Name: "q", Config: cfg}
	}
	plain := func(*dataplane.Queue) {}
	codel := queue.CoDel{Target: 1, Interval: 1}
	many := func(n int) *dataplane.Policy {
		policy := &dataplane.Policy{}
		for i := range n {
			q := own(queue.Config{Packets: 2})
			q.Name = fmt.Sprint("q", i)
			policy.Classes = append(policy.Classes,
				dataplane.Class{Name: q.Name, Green: &dataplane.Action{Queue: q}})
		}
		return policy
	}
	one := func(q *dataplane.Queue) *dataplane.Policy {
		return oneClass(
			dataplane.Class{Yellow: &dataplane.Action{Queue: q}, Red: &dataplane.Action{Queue: q}})
	}
	for _, test := range []struct {
		name   string
		policy *dataplane.Policy
		pacers []record.Pacer // pacers that reject the policy
		field  string
		object any
		reason string
	}{
		{"link", one(ofLink(plain)), []record.Pacer{record.FQ}, "link", &dataplane.Queue{}, string(remedy.UseHTB)},
		{"link in time", one(ofLink(func(q *dataplane.Queue) { q.Bytes, q.Time = 0, time.Second })), []record.Pacer{record.FQ}, "link", &dataplane.Queue{}, ""},
		{"packets of a link", one(ofLink(func(q *dataplane.Queue) { q.Bytes, q.Packets = 0, 9 })), []record.Pacer{record.HTB}, "limit", &dataplane.Queue{}, "cannot be in packets"},
		{"wred in a link", one(ofLink(func(q *dataplane.Queue) { q.WRED[1] = queue.Early{Max: 10, Probability: 1} })), []record.Pacer{record.HTB}, "wred", &dataplane.Queue{}, "a rate of its own"},
		{"codel in a link", one(ofLink(func(q *dataplane.Queue) { q.CoDel = queue.CoDel{Target: 1, Interval: 1} })), []record.Pacer{record.HTB}, "codel", &dataplane.Queue{}, "a rate of its own"},
		{
			"fair by flow", one(ofLink(func(q *dataplane.Queue) {
				q.Fair, q.CoDel = dataplane.Key{By: dataplane.ByFlow}, queue.CoDel{Target: 1, Interval: 1}
			})),
			[]record.Pacer{record.FQ},
			"fair", &dataplane.Queue{},
			"with fair: false, fq can queue the packets: " + string(remedy.UseHTB),
		},
		{"fair by VLAN", one(ofLink(func(q *dataplane.Queue) { q.Fair = dataplane.Key{By: dataplane.ByVLAN} })), []record.Pacer{record.HTB}, "fair", &dataplane.Queue{}, "must be flow, src, dst"},
		{"fair by source net", one(ofLink(func(q *dataplane.Queue) {
			q.Fair, q.CoDel, q.ECN = dataplane.Key{By: dataplane.BySrc, V4: 24}, codel, true
		})), []record.Pacer{record.HTB}, "fair", &dataplane.Queue{}, "must be flow, src, dst"},
		{"fair by source without codel", one(ofLink(func(q *dataplane.Queue) {
			q.Fair, q.ECN = dataplane.Key{By: dataplane.BySrc}, true
		})), []record.Pacer{record.HTB}, "codel", &dataplane.Queue{}, "cake has it always"},
		{"fair to hosts without ECN", one(ofLink(func(q *dataplane.Queue) {
			q.Hosts, q.Fair = dataplane.Key{By: dataplane.ByDst}, dataplane.Key{By: dataplane.ByFlow}
			q.CoDel = codel
		})), []record.Pacer{record.HTB}, "ecn", &dataplane.Queue{}, "cake marks"},
		{"fair to hosts", one(ofLink(func(q *dataplane.Queue) {
			q.Hosts, q.Fair = dataplane.Key{By: dataplane.ByDst}, dataplane.Key{By: dataplane.ByFlow}
			q.CoDel, q.ECN = codel, true
		})), []record.Pacer{record.FQ}, "fair", &dataplane.Queue{}, "needs HTB"},
		{"fair with wred", one(ofLink(func(q *dataplane.Queue) {
			q.Fair, q.WRED[1] = dataplane.Key{By: dataplane.ByFlow}, queue.Early{Max: 10, Probability: 1}
		})), []record.Pacer{record.HTB}, "wred", &dataplane.Queue{}, "a rate of its own"},
		{"an hour", one(own(queue.Config{Time: time.Hour})), nil, "", nil, ""},
		{"above an hour", one(own(queue.Config{Time: time.Hour + 1})), []record.Pacer{record.FQ}, "limit", &dataplane.Queue{}, "above 1h0m0s, the maximum of fq"},
		{"an hour in bytes", one(own(queue.Config{Rate: meter.BitRate(8), Bytes: 3600})), nil, "", nil, ""},
		{"above an hour in bytes", one(own(queue.Config{Rate: meter.BitRate(8), Bytes: 3601})), []record.Pacer{record.FQ}, "limit", &dataplane.Queue{}, string(remedy.UseHTB)},
		{"years in bytes", one(own(queue.Config{Rate: meter.Rate{Bytes: 1, Period: time.Hour}, Bytes: 1 << 40})), []record.Pacer{record.FQ}, "limit", &dataplane.Queue{}, string(remedy.UseHTB)},
		{"hours in packets", one(own(queue.Config{Rate: meter.BitRate(8e3), Packets: 60})), []record.Pacer{record.FQ}, "limit", &dataplane.Queue{}, string(remedy.UseHTB)},
		{"most queues", many(image.MaxQueues), nil, "", nil, ""},
		{"too many queues", many(image.MaxQueues + 1), []record.Pacer{record.FQ, record.HTB, ""}, "queues", &dataplane.Policy{}, "257 exceed the kernel plane's limit of 256"},
	} {
		for _, pacer := range []record.Pacer{record.FQ, record.HTB} {
			_, err := encodePolicy(test.policy, image.EgressEntry, pacer)
			errs := kerneltest.FieldErrors(err)
			if !slices.Contains(test.pacers, pacer) {
				if err != nil && test.pacers == nil {
					t.Errorf("%s by %s: got error %v, want none", test.name, pacer, err)
				}
				continue
			}
			if len(errs) != 1 {
				t.Errorf("%s by %s: got error %v, want one field error", test.name, pacer, err)
				continue
			}
			if f := errs[0]; f.Field != test.field ||
				fmt.Sprintf("%T", f.Object) != fmt.Sprintf("%T", test.object) ||
				!strings.Contains(f.Reason+": "+string(remedyOf(err)), test.reason) {
				t.Errorf("%s by %s: got %T %s: %s: %s, want %T %s: %q", test.name, pacer, f.Object, f.Field,
					f.Reason, remedyOf(err), test.object, test.field, test.reason)
			}
		}
	}
	if _, err := newWalker(one(ofLink(plain)), 0); len(kerneltest.FieldErrors(err)) != 1 ||
		remedyOf(err) != remedy.UseUserSpace {
		t.Errorf("a walker with a link: got error %v, want one with remedy %q", err, remedy.UseUserSpace)
	}
}
