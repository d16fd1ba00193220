package routers

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/routers/rowstest"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// ability has the parts of policies that a dialect can express.
type ability struct {
	unit        int64 // of rates, bit/s
	marks       []string
	colorMarks  int    // maximum number of marks of a color
	queues      string // limits of queues with a rate: any, packets, or "" for no queues
	links, fair bool
	tags        bool // vlan and pcp
	oneTag      bool // vlan or pcp with other conditions have one value
	length      bool
	twoRates    bool // a meter with two buckets has two rates
	meteredMark bool // marks of the colors of a meter, and yellow: drop
}

var abilities = map[string]ability{
	"cisco":  {unit: 1, marks: []string{"dscp", "pcp", "mpls"}, colorMarks: 3, queues: "any", links: true, fair: true, tags: true, length: true, meteredMark: true},
	"junos":  {unit: 1, marks: []string{"dscp"}, length: true},
	"huawei": {unit: 1000, marks: []string{"dscp", "pcp"}, colorMarks: 1, queues: "packets", tags: true, oneTag: true, meteredMark: true, twoRates: true},
	"h3c":    {unit: 1000, marks: []string{"dscp", "pcp"}, colorMarks: 1, queues: "packets", tags: true, oneTag: true, meteredMark: true},
}

const rounds = 200 // policies of each dialect

// captures are replayed through them.
var captures = []string{"../../../../testdata/pcaps/edges.pcap", "../../../../testdata/pcaps/tags.pcap"}

// TestRoundTrip checks that importing what Export wrote gives the same policy, and that exporting
// that gives the same configuration.
func TestRoundTrip(t *testing.T) {
	t.Parallel()
	for name, able := range abilities {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			seed := uint64(time.Now().UnixNano())
			t.Logf("seed %d", seed)
			r := rand.New(rand.NewPCG(seed, 1))
			large := 0
			for range rounds {
				text := randomPolicy(r, name, able)
				policy := mustCompile(t, text)
				e := All[name].Export(policy, "P")
				if len(e.Problems) == 1 && strings.Contains(e.Problems[0], "need more than 1024") {
					large++
					continue
				}
				if e.Problems != nil {
					t.Fatalf("%s\ncannot be exported: %q", text, e.Problems)
				}
				back := imported(t, name, e.Text)
				again := mustCompile(t, back)
				if got, want := resolved(again), resolved(policy); got != want {
					t.Fatalf("%s\nexported\n%s\nimported\n%s\ngot\n%s\nwant\n%s", text, e.Text, back, got,
						want)
				}
				for _, capture := range captures {
					want, err := rowstest.Rows(policy, capture)
					if err != nil {
						t.Fatal(err)
					}
					got, err := rowstest.Rows(again, capture)
					if err != nil || !slices.Equal(got, want) {
						t.Fatalf("%s\nimported\n%s\n%v: other rows of %s", text, back, err, capture)
					}
				}
				if second := All[name].Export(again, "P"); second.Text != e.Text {
					t.Fatalf("%s\nexported again\n%s\nwant\n%s", text, second.Text, e.Text)
				}
			}
			if large > rounds/4 {
				t.Errorf("%d of %d policies need too many lines", large, rounds)
			}
		})
	}
}

func mustCompile(t *testing.T, text string) *dataplane.Policy {
	t.Helper()
	p, err := policyfile.Source{Name: "p", Text: text}.Compile()
	if err != nil {
		t.Fatalf("%s\n%v", text, err)
	}
	return p.Policy
}

// imported returns the text of the only policy of a configuration.
func imported(t *testing.T, dialect, text string) string {
	t.Helper()
	platform := map[string]string{"huawei": "s7700"}[dialect]
	in, err := From(dialect).Import(Source{Name: "x", Text: text, Options: Options{Platform: platform}})
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	d, problems, err := in.Pick("")
	if err != nil || problems != nil {
		t.Fatalf("%v: %v\n%s", err, problems, text)
	}
	return rendered(t, d)
}

// resolved writes a policy so that policies with the same effect are the same text: values of a
// condition as a set, queues and links by their parameters.
func resolved(p *dataplane.Policy) string {
	var b strings.Builder
	for i := range p.Classes {
		c := &p.Classes[i]
		fmt.Fprintf(&b, "%s:", c.Name)
		m := c.Match
		if len(m.Proto) == 0 && len(m.SPort)+len(m.DPort) > 0 {
			m.Proto = []dataplane.Range{{First: 6, Last: 6}, {First: 17, Last: 17}}
		}
		for _, f := range dataplane.MatchFields {
			var set []uint64
			for _, r := range *f.List(&m) {
				for v := r.First; v <= r.Last; v++ {
					set = append(set, v)
				}
			}
			slices.Sort(set)
			if set = slices.Compact(set); set != nil {
				fmt.Fprintf(&b, " %s %v", f.Name, set)
			}
		}
		slices.SortFunc(m.Src, func(a, b netip.Prefix) int { return cmp.Compare(a.String(), b.String()) })
		slices.SortFunc(m.Dst, func(a, b netip.Prefix) int { return cmp.Compare(a.String(), b.String()) })
		fmt.Fprintf(&b, " src %v dst %v", m.Src, m.Dst)
		colors := []meter.Color{meter.Green}
		if c.Meter != nil {
			first := slices.IndexFunc(p.Classes,
				func(other dataplane.Class) bool { return other.Meter == c.Meter })
			fmt.Fprintf(&b, " %v %+v of class %d", c.Meter.Params.Kind(), c.Meter.Params, first)
			if colors = append(colors, meter.Yellow, meter.Red); len(c.Meter.Params.Buckets()) == 1 {
				colors = []meter.Color{meter.Green, meter.Red}
			}
		}
		for _, color := range colors {
			a := c.Action(color)
			slices.SortFunc(a.Marks, func(x, y dataplane.Mark) int { return cmp.Compare(x.Field, y.Field) })
			fmt.Fprintf(&b, "\n  %v %v %v", color, a.Drop, a.Marks)
			if q := a.Queue; q != nil {
				users := 0
				for j := range p.Classes {
					if g := p.Classes[j].Action(meter.Green); g.Queue == q {
						users++
					}
				}
				fmt.Fprintf(&b, " queue of %d: %v %v %d %d, %v, %v, %d %d", users, q.Drain(), q.Time, q.Bytes,
					q.Packets, q.CoDel, q.Fair, q.Priority, max(q.Weight, 1))
			}
		}
		b.WriteString("\n")
	}
	return b.String()
}

// randomPolicy returns a policy that a dialect can express.
func randomPolicy(r *rand.Rand, dialect string, able ability) string {
	var b, queues strings.Builder
	n := 1 + r.IntN(4)
	v6 := r.IntN(2) == 0
	linked := able.links && r.IntN(3) == 0
	priorities := 0
	if linked {
		priorities = r.IntN(n)
	}
	b.WriteString("classes:\n")
	for i := range n {
		name := fmt.Sprintf("%s%d", pick(r, "a", "voice-", "A/b_", "x.y"), i)
		fmt.Fprintf(&b, "  - name: %s\n", name)
		last := linked && i == n-1
		// it has a filter for each version, so the order of classes for one version is lost
		if dialect != "junos" {
			v6 = r.IntN(2) == 0
		}
		if m := randomMatch(r, able, v6); !last && r.IntN(5) > 0 && m != "" {
			fmt.Fprintf(&b, "    match: {%s}\n", m)
		}
		queue := ""
		if linked || able.queues != "" && r.IntN(3) == 0 {
			queue = name
		}
		colors := []string{"green"}
		if r.IntN(3) > 0 {
			kind, text := randomMeter(r, able)
			fmt.Fprintf(&b, "    meter: {%s}\n", text)
			if colors = []string{"green", "yellow", "red"}; kind == "token-bucket" {
				colors = []string{"green", "red"}
			}
		}
		dropped := 0
		for j, color := range colors {
			marks := able.colorMarks
			if len(colors) == 1 {
				marks = len(able.marks)
			}
			action := randomAction(r, able, marks, queue,
				len(colors) == 1 || able.meteredMark || j == len(colors)-1)
			if queue != "" && j == len(colors)-1 && dropped == j && action == "drop" {
				action = fmt.Sprintf("{queue: %s}", queue)
			}
			if action == "drop" {
				dropped++
			}
			fmt.Fprintf(&b, "    %s: %s\n", color, action)
		}
		if queue == "" {
			continue
		}
		limit := fmt.Sprintf("%dp", 1+r.IntN(1000))
		if able.queues == "any" {
			limit = pick(r, limit, fmt.Sprintf("%dms", 1+r.IntN(900)), fmt.Sprintf("%d", 1500+r.IntN(100000)),
				fmt.Sprintf("%dus", 1000+r.IntN(9000)))
		}
		fmt.Fprintf(&queues, "  %s: {limit: %s", name, limit)
		switch {
		case able.fair && r.IntN(3) == 0:
			queues.WriteString(", fair: flow, codel: false")
		case able.fair && !linked && r.IntN(3) == 0:
			queues.WriteString(", codel: false") // fair by default
		case !linked:
			queues.WriteString(", fair: false")
		}
		switch {
		case !linked:
			fmt.Fprintf(&queues, ", rate: %dbit}\n", able.unit*(8000+r.Int64N(1_000_000)))
		case i < priorities:
			fmt.Fprintf(&queues, ", link: link, priority: %d}\n", i)
		case priorities > 0:
			fmt.Fprintf(&queues, ", link: link, priority: %d, weight: %d}\n", priorities, 1+r.IntN(1000))
		default:
			fmt.Fprintf(&queues, ", link: link, weight: %d}\n", 1+r.IntN(1000))
		}
	}
	if queues.Len() > 0 {
		fmt.Fprintf(&b, "queues:\n%s", queues.String())
	}
	if linked {
		fmt.Fprintf(&b, "links:\n  link: {rate: %dbit}\n", 1_000_000+r.IntN(1e9))
	}
	return b.String()
}

func pick(r *rand.Rand, words ...string) string { return words[r.IntN(len(words))] }

// randomAction returns drop, pass, or marks and a queue.
func randomAction(r *rand.Rand, able ability, marks int, queue string, droppable bool) string {
	if droppable && r.IntN(3) == 0 {
		return "drop"
	}
	var parts []string
	for _, i := range r.Perm(len(able.marks))[:min(marks, len(able.marks))] {
		if r.IntN(2) == 0 {
			most := 8
			if able.marks[i] == "dscp" {
				most = 64
			}
			parts = append(parts, fmt.Sprintf("%s: %d", able.marks[i], r.IntN(most)))
		}
	}
	if queue != "" {
		parts = append(parts, "queue: "+queue)
	}
	if parts == nil {
		return "pass"
	}
	return "{" + strings.Join(parts, ", ") + "}"
}

// randomMeter returns a meter. Pairs of equal buckets, which have two colors, are left out.
func randomMeter(r *rand.Rand, able ability) (kind, text string) {
	rate, burst := able.unit*(8000+r.Int64N(1_000_000)), 1500+r.IntN(1_000_000)
	switch n := r.IntN(3); {
	case n == 0:
		return "token-bucket", fmt.Sprintf("type: token-bucket, rate: %dbit, burst: %d", rate, burst)
	case n == 1 && !able.twoRates:
		return "srtcm", fmt.Sprintf("type: srtcm, cir: %dbit, cbs: %d, ebs: %d", rate, burst,
			1+r.IntN(1_000_000))
	}
	return "trtcm", fmt.Sprintf("type: trtcm, cir: %dbit, cbs: %d, pir: %dbit, pbs: %d", rate, burst,
		rate+able.unit*(1+r.Int64N(1000)), 1500+r.IntN(1_000_000))
}

// randomMatch returns conditions, or "".
func randomMatch(r *rand.Rand, able ability, v6 bool) string {
	var parts []string
	some := func() bool { return r.IntN(3) == 0 }
	numbers := func(key string, most, count int) {
		var list []string
		for range 1 + r.IntN(count) {
			v := r.IntN(most)
			for key == "proto" && slices.Contains([]int{0, 43, 44, 51, 60, 135, 139, 140}, v) { // of IPv6 headers
				v = r.IntN(most)
			}
			if list != nil && r.IntN(8) == 0 {
				list = append(list, list[0]) // one value twice
				continue
			}
			if r.IntN(4) == 0 && key != "proto" {
				list = append(list, fmt.Sprintf("%d-%d", v, min(v+1+r.IntN(3), most-1)))
				continue
			}
			list = append(list, fmt.Sprint(v))
		}
		parts = append(parts, fmt.Sprintf("%s: [%s]", key, strings.Join(list, ", ")))
	}
	if able.tags && r.IntN(4) == 0 {
		count := 3
		if able.oneTag {
			parts = append(parts, fmt.Sprintf("vlan: %d", r.IntN(4096)))
			if some() {
				parts = append(parts, fmt.Sprintf("pcp: %d", r.IntN(8)))
			}
			return strings.Join(parts, ", ")
		}
		numbers("vlan", 4096, count)
		if some() {
			numbers("pcp", 8, count)
		}
	}
	if able.length && some() {
		low := r.IntN(1000)
		parts = append(parts, fmt.Sprintf("length: %d-%d", low, low+r.IntN(500)))
	}
	if some() {
		numbers("dscp", 64, 12)
	}
	for _, key := range []string{"src", "dst"} {
		if some() {
			var list []string
			for range 1 + r.IntN(3) {
				if v6 {
					list = append(list,
						pick(r, `"2001:db8::/32"`, `"2001:db8:1::1"`, `"fe80::/10"`, `"2001:db8:2::/48"`))
				} else {
					list = append(list,
						pick(r, "10.0.0.0/8", "192.0.2.1", "198.51.100.0/25", "203.0.113.7/32"))
				}
			}
			slices.Sort(list)
			parts = append(parts, fmt.Sprintf("%s: [%s]", key, strings.Join(slices.Compact(list), ", ")))
		}
	}
	switch r.IntN(4) {
	case 0:
		parts = append(parts, pick(r, "proto: tcp", "proto: [tcp, udp]", "proto: udp"))
		fallthrough
	case 1:
		if some() {
			numbers("sport", 65536, 2)
		}
		numbers("dport", 65536, 4)
	case 2:
		numbers("proto", 256, 3)
	}
	isIP := func(part string) bool { return !regexp.MustCompile(`^(length|vlan|pcp):`).MatchString(part) }
	if strings.Contains(strings.Join(parts, " "), "length") && !slices.ContainsFunc(parts, isIP) {
		parts = append(parts, "ethertype: [ipv4, ipv6]") // a length alone also matches other packets
	}
	return strings.Join(parts, ", ")
}
