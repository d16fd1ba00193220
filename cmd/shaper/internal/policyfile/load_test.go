package policyfile

import (
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// loadAndCompile loads and compiles a policy.
func loadAndCompile(text string) (*File, error) {
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
	f, err := loadAndCompile(example)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, c := range f.Policy.Classes {
		names = append(names, c.Name)
	}
	if got := strings.Join(names, " "); got != "voice video per-host rest" {
		t.Errorf("got classes %q, want voice, video, per-host and rest", got)
	}
	video, host, rest := f.Policy.Classes[1], f.Policy.Classes[2], f.Policy.Classes[3]
	if p := video.Meter.Params.(meter.TRTCM); p.PIR.Cmp(meter.BitRate(12e6)) != 0 || p.PBS != 96<<10 ||
		!video.Meter.Aware {
		t.Errorf("video: got %+v", video.Meter)
	}
	if m := video.Match; len(m.Proto) != 1 || m.Proto[0] != (dataplane.Range{First: 17, Last: 17}) ||
		m.DPort[0] != (dataplane.Range{First: 5000, Last: 5999}) {
		t.Errorf("video: got %+v", m)
	}
	if video.Yellow.Queue != f.Policy.Queues[0] || rest.Red.Queue != f.Policy.Queues[0] ||
		f.Policy.Queues[0].Time != 100*time.Millisecond {
		t.Errorf("got the actions %+v and %+v, want one queue of 100 ms", video.Yellow, rest.Red)
	}
	if p := host.Meter.Params.(meter.SRTCM); p.CBS != 2500 || p.EBS != 5000 ||
		host.Meter.Then != f.Policy.Meters[0] || host.Meter.Per.By != dataplane.BySrc ||
		host.Meter.Keys != 65536 {
		t.Errorf("per-host: got %+v", host.Meter)
	}
}

// TestQueues checks the exact values of queues and links.
func TestQueues(t *testing.T) {
	const ms = int64(time.Millisecond)
	f, err := loadAndCompile(`classes: [{name: a, green: {queue: time}, yellow: {queue: voice}, red: {queue: web}}]
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
	if wan.Name != "wan" || wan.Rate.Cmp(meter.BitRate(100e6)) != 0 || f.Policy.Links[1].Name != "lan" ||
		f.Policy.Links[1].Rate.Cmp(meter.BitRate(1e9)) != 0 {
		t.Errorf("got links %+v and %+v", wan, f.Policy.Links[1])
	}
	normal := queue.CoDel{Target: 5 * time.Millisecond, Interval: 100 * time.Millisecond}
	want := []dataplane.Queue{
		{Name: "time", Config: queue.Config{
			Rate: meter.Rate{Bytes: 1, Period: 400}, Time: 100 * time.Millisecond,
			WRED: [3]queue.Early{
				meter.Yellow: {Min: 30 * ms, Max: 80 * ms, Probability: 1677722},
				meter.Red:    {Min: 0, Max: 40 * ms, Probability: 1 << 24},
			},
		}},
		{Name: "size", Config: queue.Config{
			Rate: meter.Rate{Bytes: 1, Period: 8}, Bytes: 65536, CoDel: normal, Seed: 1<<64 - 1,
			WRED: [3]queue.Early{meter.Green: {Min: 1000, Max: 65536}},
		}, TargetAtRate: true, IntervalAtRate: true},
		{Name: "packets", Config: queue.Config{
			Rate: meter.Rate{Bytes: 1, Period: 8e9}, Packets: 65536,
			CoDel: queue.CoDel{Target: 12 * time.Millisecond, Interval: normal.Interval},
			WRED:  [3]queue.Early{meter.Red: {Max: 65536, Probability: 1}},
		}},
		{Name: "voice", Link: wan, Config: queue.Config{Bytes: 65536, CoDel: queue.CoDel{Target: normal.Target, Interval: 3 * time.Second}, ECN: true}, TargetAtRate: true},
		{Name: "web", Link: wan, Priority: 7, Weight: 1000, Config: queue.Config{
			Time: 10 * time.Minute,
			WRED: [3]queue.Early{meter.Red: {Min: 549e9, Max: 549.7e9, Probability: 1 << 23}},
		}},
		{Name: "rest", Link: wan, Weight: 1, Config: queue.Config{Packets: 1, CoDel: normal}, TargetAtRate: true, IntervalAtRate: true},
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
	if c := f.Policy.Classes[0]; c.Green.Queue != f.Policy.Queues[0] ||
		c.Yellow.Queue != f.Policy.Queues[3] || c.Red.Queue != f.Policy.Queues[4] {
		t.Error("got actions with other queues")
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
			t.Errorf("%s: got %d %v, want %d", test.text, got, err, test.want)
		}
	}
	for _, text := range []string{"", "1.000000000000000001", "-0", "1e-3", "10%", ".5", "0,1", "NaN", "p"} {
		if got, err := parseProbability(text); err == nil {
			t.Errorf("%q: got %d, want an error", text, got)
		}
	}
}

var placed = regexp.MustCompile(`^p\.yaml:\d+:\d+: .`)

// FuzzLoad checks that any text compiles, or that every line of its error has a place.
func FuzzLoad(f *testing.F) {
	for _, text := range []string{
		example, "", "classes: [{name: a}]", "a: &a [*a]", "classes: &c [*c]", "{", "\t", "---\n---\n",
		"classes: [{name: a, green: {queue: q}}]\nqueues: {q: {link: l, weight: 3, limit: 9ms, wred: {red: {min: 0, max: 9ms, probability: 0.5}}, codel: {target: 5ms}, seed: 1}}\nlinks: {l: {rate: 1mbit}}",
		"classes: [{name: a, meter: {type: srtcm, cir: 0bit, cbs: 1, ebs: 1, then: m}}]\nmeters: {m: {type: trtcm, then: m}}",
		"classes: [{name: a, per: customer, meter: plan}]\ncustomers: {file: c}\nplans: {p: {queue: {rate: 1mbit, limit: 1s}, quota: {limit: 1GB, every: week, then: q, zone: Asia/Beirut}, when: [{at: mon 22:00-06:00, plan: q}]}, q: {type: gcra, rate: 1bit, burst: 1}}",
		"classes: [{name: a, meter: {type: sliding-window, limit: 1kB, window: 1s, slots: 5, per: src/24,64, keys: 9, evict: idle}}]",
		"classes: [{name: a, meter: {type: trtcm4115, cir: 1bit, cbs: 1, eir: 1bit, ebs: 1, envelope: e, rank: 1}}]\nenvelopes: {e: {cirmax: 1p/1s}}",
		directedPolicy,
		"classes: [{name: a, green: {queue: q}}]\nqueues: {q: {link: l, rate: {down: 2bit, up: 1bit}, guarantee: {down: 1bit, up: 0bit}, limit: 1s}}\nlinks: {l: {link: m}, m: {link: l, rate: {up: 3mbit, down: 1bit}}}",
	} {
		f.Add(text)
	}
	for _, tt := range syntaxErrors {
		if len(tt.text) < 100 {
			f.Add(tt.text)
		}
	}
	f.Fuzz(func(t *testing.T, text string) {
		_, err := loadAndCompile(text)
		if err == nil {
			return
		}
		for _, line := range strings.Split(err.Error(), "\n") {
			if !placed.MatchString(line) {
				t.Fatalf("got %q, want it to begin with a place", line)
			}
		}
	})
}
