package routers_test

import (
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/diff"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/routers"
	_ "github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/routers/tc"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/policytest"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// TestEachFieldAlone checks that every dialect expresses each field of a policy, so that import gives it
// back, or refuses it.
func TestEachFieldAlone(t *testing.T) {
	t.Parallel()
	eachDialect(t, func(t *testing.T, e *edge) {
		for _, b := range policytest.Bases() {
			for _, s := range b.Settings() {
				e.check(t, b, s)
			}
		}
	})
}

// TestPairsOfFields checks pairs of fields like TestEachFieldAlone, in the bases that a dialect
// expresses. The pairs are random, or with SHAPER_ALL_PAIRS all of them, which takes minutes.
func TestPairsOfFields(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	if n, err := strconv.ParseUint(os.Getenv("SHAPER_SEED"), 10, 64); err == nil {
		seed = n
	}
	t.Logf("seed %d", seed)
	eachDialect(t, func(t *testing.T, e *edge) {
		for _, b := range policytest.Bases() {
			if len(e.dialect.Export(b.New(), "P").Problems) > 0 {
				continue
			}
			r := rand.New(rand.NewPCG(seed, 0))
			settings := b.Settings()
			for i, s := range settings {
				for _, other := range settings[i+1:] {
					if os.Getenv("SHAPER_ALL_PAIRS") == "" && r.IntN(100) > 0 ||
						policytest.SameField(s, other) {
						continue
					}
					if b.With(s, other) != nil {
						e.check(t, b, s, other)
					}
				}
			}
		}
	})
}

func eachDialect(t *testing.T, check func(t *testing.T, e *edge)) {
	for _, name := range routers.ExportNames() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := &edge{name: name, dialect: routers.All[name]}
			check(t, e)
			t.Logf("expressed %d, refused %d", e.expressed, e.refused)
			if e.expressed == 0 || e.refused == 0 {
				t.Error("want some of both")
			}
		})
	}
}

// edge is a dialect with the numbers of policies that it expressed and refused.
type edge struct {
	name               string
	dialect            routers.Dialect
	expressed, refused int
}

// check exports a base with settings, and compares the policy with the imported configuration.
func (e *edge) check(t *testing.T, b policytest.Base, settings ...policytest.Setting) {
	t.Helper()
	out := e.dialect.Export(b.With(settings...), "P")
	if len(out.Problems) > 0 {
		e.refused++
		return
	}
	e.expressed++
	want, back := plain(b.With(settings...)), e.back(t, out.Text)
	if back == nil {
		t.Errorf("%s: %v: from\n%s", b.Name, settings, out.Text)
		return
	}
	for _, c := range diff.Policies(fileOf(t, want), fileOf(t, plain(back))) {
		if c.Property == "length" && slices.ContainsFunc(out.Notes, func(note string) bool {
			return strings.Contains(note, "--length "+want.Length.Base.String())
		}) {
			continue // configurations do not contain the base of the length rule
		}
		t.Errorf("%s: %v: back: %s", b.Name, settings, c)
	}
}

// exportPlatforms are the platforms for which exporters write, if it matters.
var exportPlatforms = map[string]string{"huawei": "s7700"}

// back imports a configuration.
func (e *edge) back(t *testing.T, text string) *dataplane.Policy {
	t.Helper()
	in, err := e.dialect.Import(
		routers.Source{Name: "x", Text: text, Options: routers.Options{Platform: exportPlatforms[e.name]}})
	if err != nil {
		t.Errorf("import: %v", err)
		return nil
	}
	d, problems, err := in.Pick("")
	if err != nil || problems != nil {
		t.Errorf("import: %v: %v", err, problems)
		return nil
	}
	f, err := policyfile.Load("p", []byte(rendered(t, d)))
	if err != nil {
		t.Errorf("import: %v", err)
		return nil
	}
	return f.Policy
}

// rendered returns a draft as a policy file.
func rendered(t *testing.T, d *routers.Draft) string {
	t.Helper()
	out, err := d.Render("imported", "")
	if err != nil {
		t.Fatalf("%s: %v", d.Name, err)
	}
	return out.Text
}

// fileOf returns a policy as the file of a policy.
func fileOf(t *testing.T, p *dataplane.Policy) *policyfile.File {
	t.Helper()
	file, err := policyfile.Load("p", []byte("classes: [{name: c}]"))
	if err != nil {
		t.Fatal(err)
	}
	file.Policy = p
	return file
}

// plain changes a policy to a standard form with the same effect on packets. It removes unused
// parts, and the actions of colors that cannot occur. It splits lists into one range for each value.
// It names meters, queues and links after the first class that uses them.
func plain(p *dataplane.Policy) *dataplane.Policy {
	p.Meters, p.Queues, p.Links = nil, nil, nil
	named := map[any]bool{}
	counts := false // the length rule has an effect
	for i := range p.Classes {
		c := &p.Classes[i]
		plainMatch(&c.Match)
		counts = counts || c.Meter != nil && !c.Meter.Packets || len(c.Match.Length) > 0
		colors := []meter.Color{meter.Green}
		if m := c.Meter; m != nil {
			m.Params, m.Name, m.PreColor = plainParams(m.Params), c.Name, dataplane.PreColor{}
			colors = []meter.Color{meter.Green, meter.Red}
			if len(m.Params.Buckets()) == 2 {
				colors = []meter.Color{meter.Green, meter.Yellow, meter.Red}
			}
		}
		for color, action := range []**dataplane.Action{&c.Green, &c.Yellow, &c.Red} {
			if !slices.Contains(colors, meter.Color(color)) {
				*action = nil
				continue
			}
			a := c.Action(meter.Color(color))
			if q := a.Queue; q != nil && !named[q] {
				named[q] = true
				q.Name, q.Rate, counts = c.Name, plainRate(q.Rate), true
				plainQueue(q)
				if l := q.Link; l != nil && !named[l] {
					named[l] = true
					l.Name, l.Rate = c.Name, plainRate(l.Rate)
					p.Links = append(p.Links, l)
				}
				p.Queues = append(p.Queues, q)
			}
			*action = &a
		}
	}
	if !counts {
		p.Length = dataplane.LengthRule{}
	}
	plainPriorities(p.Queues)
	return p
}

// plainQueue removes parameters of a queue that have no effect: without WRED the seed, and without WRED
// and CoDel the flag ECN. TargetAtRate and IntervalAtRate have no effect unless the rate changes.
func plainQueue(q *dataplane.Queue) {
	if q.WRED == ([3]queue.Early{}) {
		q.Seed = 0
		q.ECN = q.ECN && q.CoDel != queue.CoDel{}
	}
	q.TargetAtRate, q.IntervalAtRate = false, false
}

// plainPriorities numbers the priorities of a link's queues from 0. It removes the weight of a queue that
// is alone in its priority, because it has no effect.
func plainPriorities(queues []*dataplane.Queue) {
	priorities := map[*dataplane.Link]map[int]int{} // numbers of queues
	for _, q := range queues {
		if priorities[q.Link] == nil {
			priorities[q.Link] = map[int]int{}
		}
		priorities[q.Link][q.Priority]++
	}
	for _, q := range queues {
		levels := priorities[q.Link]
		if levels[q.Priority] == 1 {
			q.Weight = 0
		}
		q.Priority = slices.Index(slices.Sorted(maps.Keys(levels)), q.Priority)
	}
}

// plainMatch adds the default protocols of ports, and removes EtherTypes implied by the addresses.
// It writes each value of a list alone.
func plainMatch(m *dataplane.Match) {
	if len(m.Proto) == 0 && len(m.SPort)+len(m.DPort) > 0 {
		m.Proto = []dataplane.Range{{First: 6, Last: 6}, {First: 17, Last: 17}}
	}
	prefixes := slices.Concat(m.Src, m.Dst)
	implied := func(family uint64) bool {
		return len(prefixes) > 0 &&
			slices.Contains(m.EtherType, dataplane.Range{First: family, Last: family}) &&
			!slices.ContainsFunc(prefixes,
				func(p netip.Prefix) bool { return p.Addr().Is6() != (family == 0x86dd) })
	}
	if implied(0x0800) || implied(0x86dd) {
		m.EtherType = nil
	}
	for _, f := range dataplane.MatchFields {
		list := f.List(m)
		if slices.ContainsFunc(*list, func(r dataplane.Range) bool { return r.Last-r.First > 1<<16 }) {
			continue
		}
		var values []dataplane.Range
		for _, r := range *list {
			for v := r.First; v <= r.Last; v++ {
				values = append(values, dataplane.Range{First: v, Last: v})
			}
		}
		*list = values
	}
}

// plainParams returns parameters with rates in lowest terms. GCRA is a token bucket.
func plainParams(p meter.Params) meter.Params {
	if t, ok := p.(meter.TokenBucket); ok {
		t.GCRA = false
		p = t
	}
	v := reflect.New(reflect.TypeOf(p)).Elem()
	v.Set(reflect.ValueOf(p))
	for i := range v.NumField() {
		if r, ok := v.Field(i).Interface().(meter.Rate); ok {
			v.Field(i).Set(reflect.ValueOf(plainRate(r)))
		}
	}
	return v.Interface().(meter.Params)
}

// plainRate returns a rate as bits per second if their number is whole.
func plainRate(r meter.Rate) meter.Rate {
	if bits, whole := r.Bits(); whole && r != (meter.Rate{}) {
		return meter.BitRate(bits)
	}
	return r
}
