package metrics

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/meter/shared"
	"github.com/a-seed-32e5a53f/shaper/meter/shared/lease"
)

// observed is a shaper with a policy and no counts.
func observed(t testing.TB, text string) Observation {
	t.Helper()
	file, err := policyfile.Load("a.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	plan, err := file.Compile()
	if err != nil {
		t.Fatal(err)
	}
	o := Observation{name: "a.yaml", attached: true, effective: true}
	o.About.Outline, o.plan = *plan.Outline(), plan
	o.About.Interface, o.About.Since, o.About.Place.Hook = "eth0", time.Unix(1700000000, 250e6), "tcx"
	o.sample.Stats = make([]dataplane.ClassStats, len(file.Policy.Classes)+1)
	o.sample.Tokens = make([][2]int64, len(plan.Stages))
	return o
}

// parse parses the text with Prometheus' own parser and returns the value of each sample, by
// name and labels.
func parse(t testing.TB, text []byte) map[string]float64 {
	t.Helper()
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(text))
	if err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	out := map[string]float64{}
	for name, f := range families {
		for _, m := range f.Metric {
			var labels []string
			for _, l := range m.Label {
				labels = append(labels, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
			}
			slices.Sort(labels)
			v := m.GetGauge().GetValue()
			if f.GetType() == dto.MetricType_COUNTER {
				v = m.GetCounter().GetValue()
			}
			key := name + "{" + strings.Join(labels, ",") + "}"
			if _, twice := out[key]; twice {
				t.Errorf("got %s twice", key)
			}
			out[key] = v
		}
	}
	return out
}

// TestMetricsShares checks the metrics of a budget on a server.
func TestMetricsShares(t *testing.T) {
	t.Parallel()
	o := observed(t, `
classes:
  - name: all
    meter: {type: trtcm, cir: 1mbit, cbs: 3000, pir: 2mbit, pbs: 3000, share: {budget: c42, store: "redis://h"}}
`)
	o.Shares = []shared.Status{{
		Budget: "c42", Rescued: true, Hosts: 3, Late: 1, Calls: 70, Lost: 4, Smallest: "gw2",
		Size: lease.Amounts{Rate: [2]int64{1e6, 2e6}}, Share: lease.Amounts{Rate: [2]int64{30, 60}},
		Bound: lease.Bound{Sum: lease.Amounts{Rate: [2]int64{11e5, 22e5}}},
	}}
	got := parse(t, expose([]Observation{o}))
	const at = `budget="c42",direction="egress",interface="eth0"`
	const bucket = `direction="egress",interface="eth0"`
	for name, want := range map[string]float64{
		`shaper_budget_share{bucket="C",budget="c42",` + bucket + `}`:                         30,
		`shaper_budget_share{bucket="E",budget="c42",` + bucket + `}`:                         60,
		`shaper_budget_size{bucket="E",budget="c42",` + bucket + `}`:                          2e6,
		`shaper_budget_bound{bucket="C",budget="c42",` + bucket + `}`:                         11e5,
		`shaper_budget_bound{bucket="E",budget="c42",` + bucket + `}`:                         22e5,
		`shaper_budget_rescued{` + at + `}`:                                                   1,
		`shaper_budget_hosts{` + at + `}`:                                                     3,
		`shaper_budget_late_hosts{` + at + `}`:                                                1,
		`shaper_budget_calls_total{` + at + `}`:                                               70,
		`shaper_budget_lost_calls_total{` + at + `}`:                                          4,
		`shaper_budget_smallest{budget="c42",direction="egress",host="gw2",interface="eth0"}`: 1,
	} {
		if v, ok := got[name]; !ok || v != want {
			t.Errorf("%s is %v (%v), want %v", name, v, ok, want)
		}
	}
}

// TestMetricsText checks all metrics of two directions with Prometheus' parser.
func TestMetricsText(t *testing.T) {
	o := observed(t, `
classes:
  - name: voice
    match: {dscp: ef}
    meter: {type: srtcm, cir: 1mbit, cbs: 3000, ebs: 2000}
    red: drop
  - name: rest
    meter: {type: token-bucket, rate: 1mbit, burst: 5000, per: src, keys: 10}
`)
	st := &o.sample.Stats[0]
	st.Colors[meter.Yellow] = dataplane.Count{Packets: 3, Bytes: 300}
	st.Marked[meter.Yellow].Packets = 2
	st.CE[meter.Green].Packets = 4
	st.Queued[meter.Green].Packets = 1<<63 - 1
	st.Drops[meter.Red][dataplane.CauseColor] = dataplane.Count{Packets: 7, Bytes: 777}
	o.sample.Stats[2].Untaken.Packets = 9
	o.sample.Tokens[0] = [2]int64{2999, 1000}
	o.sample.Keys = []meter.TableStats{{}, {Keys: 4, Evicted: 5, Refused: 6}}
	o.sample.Queues = []dataplane.QueueState{
		{Name: "slow", Delay: 1500 * time.Microsecond, Bytes: 1234, Dropped: 8},
	}
	// HTB does not know the class of a packet that it dropped from a shared queue.
	o.About.Pacer = kernel.HTB
	st.Behind.Packets = 5
	o.About.Program, o.About.Dry, o.unconfirmed = 77, true, true
	text := expose([]Observation{o, Absent("eth0", kernel.Ingress, "the interface is gone")})
	got := parse(t, text)
	const (
		at    = `direction="egress",interface="eth0"`
		voice = `class="voice",` + at
		stage = voice + `,meter="voice",stage="0"`
		keys  = `class="rest",` + at + `,meter="rest",stage="0"`
	)
	for name, want := range map[string]float64{
		`shaper_info{direction="egress",dry_run="true",hook="tcx",interface="eth0",policy="a.yaml",program_id="77"}`: 1,
		`shaper_attached{` + at + `}`:                                                         1,
		`shaper_effective{` + at + `}`:                                                        1,
		`shaper_unconfirmed{` + at + `}`:                                                      1,
		`shaper_start_time_seconds{` + at + `}`:                                               1700000000.25,
		`shaper_packets_total{class="voice",color="yellow",` + at + `}`:                       3,
		`shaper_bytes_total{class="voice",color="yellow",` + at + `}`:                         300,
		`shaper_packets_total{class="rest",color="red",` + at + `}`:                           0,
		`shaper_last_reload_successful{` + at + `}`:                                           1,
		`shaper_marked_packets_total{class="voice",color="yellow",` + at + `}`:                2,
		`shaper_ce_marked_packets_total{class="voice",color="green",` + at + `}`:              4,
		`shaper_queued_packets_total{class="voice",color="green",` + at + `}`:                 1<<63 - 1,
		`shaper_dropped_packets_total{class="voice",color="red",` + at + `,reason="color"}`:   7,
		`shaper_dropped_bytes_total{class="voice",color="red",` + at + `,reason="color"}`:     777,
		`shaper_dropped_packets_total{class="",color="",` + at + `,reason="queue-full"}`:      8,
		`shaper_dropped_packets_total{class="voice",color="",` + at + `,reason="queue-full"}`: 5,
		`shaper_unclassified_packets_total{` + at + `}`:                                       9,
		`shaper_queue_delay_seconds{` + at + `,queue="slow"}`:                                 0.0015,
		`shaper_queue_bytes{` + at + `,queue="slow"}`:                                         1234,
		`shaper_queue_dropped_packets_total{` + at + `,queue="slow"}`:                         8,
		`shaper_tokens{bucket="Tc",` + stage + `}`:                                            2999,
		`shaper_tokens{bucket="Te",` + stage + `}`:                                            1000,
		`shaper_burst{bucket="Tc",` + stage + `}`:                                             3000,
		`shaper_burst{bucket="Te",` + stage + `}`:                                             2000,
		`shaper_keys{` + keys + `}`:                                                           4,
		`shaper_keys_evicted_total{` + keys + `}`:                                             5,
		`shaper_keys_refused_total{` + keys + `}`:                                             6,
		`shaper_attached{direction="ingress",interface="eth0"}`:                               0,
		`shaper_effective{direction="ingress",interface="eth0"}`:                              0,
		`shaper_unconfirmed{direction="ingress",interface="eth0"}`:                            0,
	} {
		if v, ok := got[name]; !ok || v != want {
			t.Errorf("%s is %v, there %v: want %v", name, v, ok, want)
		}
	}
	for name := range maps.Keys(got) {
		if strings.Contains(name, "ingress") && !strings.Contains(name, "attached") &&
			!strings.Contains(name, "effective") && !strings.Contains(name, "unconfirmed") &&
			!strings.Contains(name, "reload") {
			t.Errorf("got %s of a shaper that is not attached", name)
		}
		if strings.Contains(name, `shaper_tokens`) && strings.Contains(name, "rest") {
			t.Errorf("got %s: a meter per key has no tokens of its own", name)
		}
	}
	problems, err := promlint.New(bytes.NewReader(text)).Lint()
	for _, p := range problems {
		t.Errorf("promlint: %s: %s", p.Metric, p.Text)
	}
	if err != nil {
		t.Error(err)
	}
}

// TestMetricsEscape checks that any value of a label is escaped.
func TestMetricsEscape(t *testing.T) {
	const name = "a\\b\"c\nd{}\xff,\t "
	got := parse(t, expose([]Observation{Absent(name, kernel.Egress, "")}))
	want := fmt.Sprintf("shaper_attached{direction=%q,interface=%q}", "egress",
		strings.ReplaceAll(name, "\xff", "\uFFFD"))
	if _, ok := got[want]; !ok || len(got) != 4 {
		t.Errorf("got %v, want four with %s", got, want)
	}
}

// manyClasses is the maximum number of classes in a policy.
func manyClasses() string {
	var b strings.Builder
	b.WriteString("classes:\n")
	for i := range 1024 {
		fmt.Fprintf(&b,
			"  - {name: c%d, match: {dport: %d}, meter: {type: trtcm, cir: 1mbit, cbs: 10kB, pir: 2mbit, pbs: 20kB}}\n",
			i, 1+i)
	}
	return b.String()
}

// TestMetricsRenderOnce checks that all scrapes of a snapshot share its text.
func TestMetricsRenderOnce(t *testing.T) {
	s := &snapshot{shapers: []Observation{observed(t, "classes: [{name: a}]")}}
	text, packed := s.body(), s.compressed()
	s.shapers[0].About.Interface = "other"
	again, packedAgain := s.body(), s.compressed()
	if &text[0] != &again[0] || &packed[0] != &packedAgain[0] {
		t.Error("the text was rendered twice")
	}
}

func BenchmarkMetrics(b *testing.B) {
	o := observed(b, manyClasses())
	b.ReportAllocs()
	for b.Loop() {
		s := snapshot{shapers: []Observation{o}}
		b.SetBytes(int64(len(s.body())))
	}
}
