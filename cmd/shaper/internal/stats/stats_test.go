package stats

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/budgets"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/live"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
	"github.com/a-seed-32e5a53f/shaper/dataplane/pipeline"
	"github.com/a-seed-32e5a53f/shaper/dataplane/tap"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"golang.org/x/sys/unix"
)

// idleShaper is a shaper whose counters do not change.
type idleShaper struct {
	live.Handle
	about kernel.About
}

func (s *idleShaper) Info() *kernel.About     { return &s.about }
func (s *idleShaper) Attached() (bool, error) { return true, nil }
func (s *idleShaper) Owned() (bool, error)    { return true, nil }

func (s *idleShaper) Problems() ([]kernel.Problem, error) { return nil, nil }
func (s *idleShaper) Shares(int) []budgets.State          { return nil }
func (s *idleShaper) Lost() tap.Lost                      { return tap.Lost{} }

// Changes returns the longest text of a problem.
func (s *idleShaper) Changes() (live.Changes, error) {
	text := fmt.Sprintf("process %d does not answer: the changes are those in its file", s.about.Process)
	return live.Changes{Problem: text}, nil
}

// onTerminal returns the output on a terminal.
func onTerminal(t *testing.T, write func(w *os.File)) string {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer master.Close()
	number, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	terminal, err := os.OpenFile(fmt.Sprint("/dev/pts/", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	got := make(chan []byte)
	go func() {
		var out bytes.Buffer
		_, _ = out.ReadFrom(master) // the error at the end is that the other side is closed
		got <- out.Bytes()
	}()
	write(terminal)
	terminal.Close()
	return strings.ReplaceAll(string(<-got), "\r\n", "\n")
}

// samplePair returns two samples of a policy, one second apart. All counters are 0 in the first
// and n in the second.
func samplePair(t *testing.T, policy *policyfile.Compiled, n int64) (before, now live.Sample) {
	t.Helper()
	count := dataplane.Count{Packets: n, Bytes: n}
	classes, stages := policy.Plan.Classes, len(policy.Plan.Stages)
	for _, s := range []*live.Sample{&before, &now} {
		s.Stats = make([]dataplane.ClassStats, len(classes)+1)
		s.Queues = pipeline.FromPlan(policy.Plan).Queues(0)
		s.Tokens = slices.Repeat([][2]int64{{n, n}}, stages)
		s.Keys = slices.Repeat([]meter.TableStats{{Keys: 65536, Evicted: uint64(n), Refused: uint64(n)}},
			stages)
	}
	now.At = int64(time.Second)
	for i := range classes {
		s := &now.Stats[i]
		for color := range s.Colors {
			s.Colors[color], s.Marked[color], s.CE[color], s.Queued[color] = count, count, count, count
			for cause := range s.Drops[color] {
				s.Drops[color][cause] = dataplane.Count{Packets: n / 8, Bytes: n / 8}
			}
		}
		s.Behind.Packets = n
	}
	now.Stats[len(classes)].Untaken = count
	for i := range now.Queues {
		q := &now.Queues[i]
		q.Delay, q.Bytes, q.Dropped, q.Sent = time.Duration(i)*1234567*time.Microsecond, n, n, count
	}
	return before, now
}

func widestLine(text string) (line string) {
	for l := range strings.Lines(text) {
		if l = strings.TrimRight(l, "\n"); say.WidthOf(l) > say.WidthOf(line) {
			line = l
		}
	}
	return line
}

// TestStatsFits checks that no line of stats is wider than 80 columns: in a pipe for any
// counts, on a terminal also for any names.
func TestStatsFits(t *testing.T) {
	const text = `
classes:
  - name: %[1]s
    match: {dscp: ef}
    meter: {type: trtcm, cir: 1mbit, cbs: 3000, pir: 2mbit, pbs: 6000}
    green: {queue: %[2]s}
    yellow: {queue: l%[2]s}
    red: {queue: l%[2]s}
    then: %[3]s
  - {name: x%[1]s, meter: {type: srtcm, cir: 1mbit, cbs: 3000, ebs: 2000, per: flow}}
  - {name: none}
meters:
  %[3]s: {type: trtcm4115, cir: 1mbit, cbs: 3000, eir: 2mbit, ebs: 6000, color: aware}
links: {wan: {rate: 1mbit}}
queues:
  %[2]s: {rate: 1mbit, limit: 20ms}
  l%[2]s: {link: wan, limit: 20ms}
`
	for _, names := range []struct {
		name                string
		class, queue, meter string
		path, iface         string
	}{
		{"short", "voice", "voice", "total", "docs/uplink.yaml", "eth0"},
		{"long", strings.Repeat("a", 60), strings.Repeat("b", 60), strings.Repeat("c", 60), "/" + strings.Repeat("etc/", 50) + "uplink.yaml", "abcdefghijklmno"},
		{"wide", strings.Repeat("語", 30), "b", "c", "語.yaml", "eth0"},
	} {
		policy, err := policyfile.Source{
			Name: names.path, Text: fmt.Sprintf(text, names.class, names.queue, names.meter),
		}.Compile()
		if err != nil {
			t.Fatal(err)
		}
		for _, about := range []kernel.About{
			{Pacer: kernel.HTB, Until: time.Now(), Dry: true, Pinned: true, Process: math.MaxInt32, Program: math.MaxUint32, GSOLimit: 1 << 31},
			{Pacer: kernel.FQ},
			{Peer: names.iface},
		} {
			about.Interface, about.Direction, about.Label = names.iface, kernel.Ingress, policy.Label()
			about.Outline = *policy.Plan.Outline()
			about.Place.Hook = "tcx"
			var sh live.Handle = &idleShaper{about: about}
			if about.Peer != "" {
				about.Place.Hook = live.ByTap
				sh = &idleShaper{about: about}
			}
			for _, n := range []int64{0, 1, 999_999, 1e9, 1e15, math.MaxInt64 / 16} {
				before, now := samplePair(t, policy, n)
				show := func(p *say.Printer) {
					view := ViewOf(sh, lookAtChanges, &Samples{before, now})
					view.printStats(p)
					live.PrintLost(p, &about, tap.Lost{
						Refused: dataplane.Count{Packets: n}, Memory: dataplane.Count{Packets: n},
						Ended: dataplane.Count{Packets: n},
					})
					if p.Err != nil {
						t.Error(p.Err)
					}
				}
				var piped bytes.Buffer
				show(say.NewPrinter(&piped))
				if line := widestLine(piped.String()); names.name == "short" && say.WidthOf(line) > 80 {
					t.Errorf("%s, %d in a pipe: %d columns: %q", names.name, n, say.WidthOf(line), line)
				}
				if !strings.Contains(piped.String(), names.class) ||
					!strings.Contains(piped.String(), names.path) {
					t.Errorf("%s, %d in a pipe: a name was cut:\n%s", names.name, n, &piped)
				}
				seen := onTerminal(t, func(w *os.File) { show(say.NewPrinter(w)) })
				if line := widestLine(seen); say.WidthOf(line) > 80 {
					t.Errorf("%s, %d on a terminal: %d columns: %q", names.name, n, say.WidthOf(line), line)
				}
				for _, want := range []string{"dropped: queue-full", "dropped: codel", "CE", "marked"} {
					if n >= 8 && !strings.Contains(seen, want) {
						t.Errorf("%s, %d on a terminal: no %q:\n%s", names.name, n, want, seen)
					}
				}
			}
		}
	}
}

// TestStatsTable checks the table of a second in which a million bytes arrived and half of them
// were dropped.
func TestStatsTable(t *testing.T) {
	policy, err := policyfile.Source{Name: "p.yaml", Text: `
classes: [{name: a, match: {dscp: ef}, meter: {type: token-bucket, rate: 1mbit, burst: 3000}}, {name: b, match: {dscp: 1}, green: {queue: q}}]
queues: {q: {rate: 1mbit, limit: 20ms, fair: false}}`}.Compile()
	if err != nil {
		t.Fatal(err)
	}
	before, now := samplePair(t, policy, 0)
	s := &now.Stats[0]
	s.Colors[meter.Green], s.Colors[meter.Red] = dataplane.Count{Packets: 1000, Bytes: 1e6},
		dataplane.Count{Packets: 600, Bytes: 600_000}
	s.Drops[meter.Green][dataplane.CauseWRED] = dataplane.Count{Packets: 500, Bytes: 500_000}
	s.Drops[meter.Red][dataplane.CauseColor] = dataplane.Count{Packets: 600, Bytes: 600_000}
	now.Stats[2].Untaken = dataplane.Count{Packets: 7, Bytes: 700}
	var out bytes.Buffer
	view := ViewOf(&idleShaper{about: kernel.About{Interface: "eth0", Outline: *policy.Plan.Outline()}},
		lookAtChanges, &Samples{before, now})
	view.printStats(say.NewPrinter(&out))
	for _, want := range []string{
		`(?m)^ a +green +1,000 +1,000,000 +8 M +4 M +500 +500$`,
		`(?m)^ +red +600 +600,000 +4.8 M +0 +600 +600$`,
		`(?m)^ b +0 +0 +0 +0 +0 +0$`,
		`(?m)^ - +7 +700 +5.6 k +5.6 k +0 +0$`,
		`(?m)^- counts unclassified packets$`,
		`(?m)^ a +green +dropped: wred +500 +500,000 +500$`,
		`(?m)^ +red +dropped: color +600 +600,000 +600$`,
		`(?m)^ q +0s +0$`,
	} {
		if !regexp.MustCompile(want).MatchString(out.String()) {
			t.Errorf("no line is %s in\n%s", want, &out)
		}
	}
}

// TestPassed checks that the passed rate of a link's queue in HTB is the rate at which HTB sent,
// if only one color of one class uses the queue.
func TestPassed(t *testing.T) {
	policy, err := policyfile.Source{Name: "p.yaml", Text: `
classes:
  - {name: a, match: {dscp: ef}, green: {queue: alone}}
  - {name: b, match: {dscp: af11}, green: {queue: both}}
  - {name: c, green: {queue: both}}
links: {wan: {rate: 1mbit}}
queues: {alone: {link: wan, limit: 20ms}, both: {link: wan, limit: 20ms}}`}.Compile()
	if err != nil {
		t.Fatal(err)
	}
	before, now := samplePair(t, policy, 0)
	for i := range 3 {
		now.Stats[i].Colors[meter.Green].Bytes = 1e6
	}
	now.Queues[0].Sent.Bytes = 250_000
	for pacer, want := range map[kernel.Pacer]string{
		kernel.HTB: "[2000000,null,null]", "": "[8000000,8000000,8000000]",
	} {
		v := interval{&kernel.About{Pacer: pacer, Outline: *policy.Plan.Outline()}, &before, &now}
		var got []*int64
		for i := range 3 {
			got = append(got, v.passed(i, meter.Green))
		}
		if raw, _ := json.Marshal(got); string(raw) != want {
			t.Errorf("%q: %s pass, want %s", pacer, raw, want)
		}
	}
}
