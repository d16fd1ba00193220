package metrics

import (
	"bytes"
	"maps"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/live"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// possibleSeries returns the counters and delays that a shaper exports, each with its labels.
func possibleSeries(t *testing.T, o *Observation) (out []string) {
	t.Helper()
	o.sample.Queues = nil
	for _, q := range o.About.Outline.Queues {
		o.sample.Queues = append(o.sample.Queues, dataplane.QueueState{Name: q.Name})
	}
	for name := range parse(t, expose([]Observation{*o})) {
		family, labels, _ := strings.Cut(strings.TrimSuffix(name, "}"), "{")
		if strings.Contains(family, "unclassified") { // always: a class without a match is for IP
			continue
		}
		if !strings.HasSuffix(family, "_total") && family != "shaper_queue_delay_seconds" {
			continue
		}
		row := []string{strings.TrimSuffix(strings.TrimPrefix(family, "shaper_"), "_total")}
		for label := range strings.SplitSeq(labels, ",") {
			if name, v, _ := strings.Cut(label, "="); name != "interface" && name != "direction" {
				row = append(row, strings.Trim(v, `"`))
			}
		}
		if !strings.Contains(family, "bytes") { // one for each of packets, which have the same labels
			out = append(out, strings.Join(row, " "))
		}
	}
	slices.Sort(out)
	return out
}

// TestMetricsPossible checks which series have a policy's classes: those that it can make positive.
func TestMetricsPossible(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		policy string
		pacer  kernel.Pacer
		tap    bool
		want   []string
	}{
		"no meter": {policy: "classes: [{name: a}]", want: []string{"packets a green"}},
		"unclassified packets are dropped": {
			policy: "classes: [{name: a, match: {dscp: ef}}]\notherwise: drop",
			want:   []string{"dropped_packets -  unclassified", "packets a green"},
		},
		"two colors": {
			policy: "classes: [{name: a, meter: {type: token-bucket, rate: 1mbit, burst: 9kB}}]",
			want:   []string{"dropped_packets a red color", "packets a green", "packets a red"},
		},
		"three colors, marks and ECN": {
			policy: `classes: [{name: a, meter: {type: trtcm, cir: 1mbit, cbs: 9kB, pir: 2mbit, pbs: 9kB},
  yellow: {dscp: af12}, red: {ecn: ce, else: drop}}]`,
			want: []string{
				"ce_marked_packets a red", "dropped_packets a red ecn", "marked_packets a yellow",
				"packets a green", "packets a red", "packets a yellow",
			},
		},
		"a yellow input color": {
			policy: `classes: [{name: a, meter: {type: token-bucket, rate: 1mbit, burst: 9kB, color: aware}}]`,
			want:   []string{"dropped_packets a red color", "packets a green", "packets a red", "packets a yellow"},
		},
		"a queue with early drops of one color, fq": {
			policy: `classes:
  - {name: a, meter: {type: srtcm, cir: 1mbit, cbs: 9kB, ebs: 9kB}, green: {queue: q}, yellow: {queue: q},
     red: drop}
queues: {q: {rate: 1mbit, limit: 20ms, fair: false, wred: {yellow: {min: 5ms, max: 9ms, probability: 0.1}}}}`,
			pacer: kernel.FQ,
			want: []string{
				"dropped_packets a green queue-full", "dropped_packets a red color",
				"dropped_packets a yellow queue-full", "dropped_packets a yellow wred",
				"packets a green", "packets a red", "packets a yellow",
				"queue_delay_seconds q", "queued_packets a green", "queued_packets a yellow",
			},
		},
		"a queue with CoDel and ECN in HTB": {
			policy: `classes: [{name: a, green: {queue: q}}]
queues: {q: {rate: 1mbit, limit: 20ms, fair: false, codel: true, ecn: true}}`,
			pacer: kernel.HTB,
			want: []string{
				"ce_marked_packets a green", "dropped_packets a green codel", "dropped_packets a green queue-full",
				"packets a green", "queue_delay_seconds q", "queue_dropped_packets q", "queue_sent_packets q",
				"queued_packets a green",
			},
		},
		"queues of a link in HTB": {
			policy: `classes:
  - {name: a, match: {dscp: ef}, meter: {type: srtcm, cir: 1mbit, cbs: 9kB, ebs: 9kB}, green: {queue: x},
     yellow: {queue: x}}
  - {name: b, match: {dscp: af11}, green: {queue: y}}
  - {name: c, match: {dscp: af12}, green: {queue: z}}
  - {name: d, green: {queue: z}}
links: {up: {rate: 9mbit}}
queues: {x: {link: up, limit: 20ms}, y: {link: up, limit: 20ms}, z: {link: up, limit: 20ms}}`,
			pacer: kernel.HTB,
			want: []string{
				"dropped_packets   queue-full", "dropped_packets a  queue-full", "dropped_packets a red color",
				"dropped_packets b green queue-full", "packets a green", "packets a red", "packets a yellow",
				"packets b green", "packets c green", "packets d green",
				"queue_dropped_packets x", "queue_dropped_packets y", "queue_dropped_packets z",
				"queue_sent_packets x", "queue_sent_packets y", "queue_sent_packets z",
				"queued_packets a green", "queued_packets a yellow", "queued_packets b green", "queued_packets c green",
				"queued_packets d green",
			},
		},
		"queues of a link in user space": {
			policy: `classes: [{name: a, green: {queue: x}}]
links: {up: {rate: 9mbit}}
queues: {x: {link: up, limit: 20ms, codel: true}}`,
			tap: true,
			want: []string{
				"dropped_packets a green codel", "dropped_packets a green queue-full",
				"lost_packets ended", "lost_packets memory", "lost_packets refused", "packets a green",
				"queued_packets a green",
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := observed(t, test.policy)
			if o.About.Pacer = test.pacer; test.tap {
				o.About.Place.Hook = live.ByTap
			}
			if got := possibleSeries(t, &o); !slices.Equal(got, test.want) {
				t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(test.want, "\n"))
			}
			// A counter of an earlier policy stays.
			o.sample.Stats[0].Drops[meter.Yellow][dataplane.CauseWRED] = dataplane.Count{Packets: 1, Bytes: 1}
			got := possibleSeries(t, &o)
			if !slices.Contains(got, "dropped_packets a yellow wred") {
				t.Errorf("got %q, want the drops of an earlier policy", got)
			}
		})
	}
}

// TestMetricsState checks the metrics of changes, reloads, saved state and a rollback: they are there only if
// there is something to say.
func TestMetricsState(t *testing.T) {
	t.Parallel()
	o := observed(t, "classes: [{name: a}]")
	o.About.Loaded = time.Unix(1700000300, 0)
	state := func() map[string]float64 {
		got := parse(t, expose([]Observation{o}))
		out := map[string]float64{}
		for name, v := range got {
			name, _, _ = strings.Cut(name, "{")
			if regexp.MustCompile("timestamp|reload|state").MatchString(name) {
				out[strings.TrimPrefix(name, "shaper_")] = v
			}
		}
		return out
	}
	want := map[string]float64{"last_reload_successful": 1, "policy_loaded_timestamp_seconds": 1700000300}
	if got := state(); !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	saved := false
	o.unconfirmed, o.About.Until = true, time.Unix(1700000360, 0)
	o.ReloadFailed, o.State, o.Changes.Oldest = true, &saved, time.Unix(1700000100, 500e6)
	want = map[string]float64{
		"last_reload_successful": 0, "policy_loaded_timestamp_seconds": 1700000300,
		"rollback_timestamp_seconds": 1700000360, "state_saved": 0, "oldest_change_timestamp_seconds": 1700000100.5,
	}
	if got := state(); !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// TestMetricsProcess checks the metrics of the process with values that are known otherwise, and all names
// with Prometheus' own checks.
func TestMetricsProcess(t *testing.T) {
	t.Parallel()
	text := (&snapshot{shapers: []Observation{observed(t, "classes: [{name: a}]")}}).body()
	got := parse(t, text)
	now := float64(time.Now().Unix())
	if at := got["process_start_time_seconds{}"]; at > now+1 || at < now-3600 {
		t.Errorf("the process started at %v, want in the hour before %v", at, now)
	}
	for _, name := range []string{
		"process_cpu_seconds_total", "process_resident_memory_bytes", "process_open_fds", "process_max_fds",
		"go_goroutines",
	} {
		if got[name+"{}"] <= 0 {
			t.Errorf("%s is %v, want a positive number", name, got[name+"{}"])
		}
	}
	builds := 0
	for name, v := range got {
		if strings.HasPrefix(name, `shaper_build_info{goversion="go1.`) && v == 1 {
			builds++
		}
	}
	if builds != 1 {
		t.Errorf("%d times shaper_build_info, want once", builds)
	}
	problems, err := promlint.New(bytes.NewReader(text)).Lint()
	if err != nil || len(problems) > 0 {
		t.Errorf("promlint: %v, %v", problems, err)
	}
	if _, err := exec.LookPath("promtool"); err != nil {
		t.Skip("promtool check metrics needs promtool: apt-get install prometheus")
	}
	check := exec.Command("promtool", "check", "metrics")
	check.Stdin = bytes.NewReader(text)
	if out, err := check.CombinedOutput(); err != nil {
		t.Errorf("promtool: %v: %s", err, out)
	}
}
