package report

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/input"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/chrome"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

// burstSample is 10,000 packets of two classes, 1 ms apart, of 1000 bytes each. From packet 4001 on,
// 2000 packets arrive 10 µs apart, and all of class b are dropped. A tile has packets 3900 to
// 4899. Sent packets leave after a delay, ns.
func burstSample(delay int64) Data {
	const bins, width = 128, 128e6 / 2 // 64 ms
	zero := func() []int64 { return make([]int64, bins) }
	d := Data{
		Input: "burst.pcap", Version: "1.0.0", Start: 1_772_366_400_000_000_000, BinWidth: width,
		Unmetered: zero(),
		Rates: []Rates{
			{Name: "a"}, {Name: "b", Limits: []RateLine{{"CIR 4mbit", 4e6}, {"PIR 8mbit", 8e6}}},
		},
		Meters: []MeterSeries{
			{Name: "m", Kind: "token-bucket", C: BucketSeries{"Tc", 5000, zero(), zero()}, Packets: zero()},
		},
		Episodes: []Episode{{
			Kind: "drop", Class: "b", By: "meter m", Reason: "color", At: "4.000000 s", Length: "20 ms",
			Count: dataplane.Count{Packets: 1000, Bytes: 1e6}, Lack: "9 B",
			Flow: "10.0.0.1 > 10.0.0.2: 5 packets", Why: "shaper why burst.pcap 4002",
		}},
		Flows: []Top{{
			Name: "10.0.0.1:1 > 10.0.0.2:2 udp", Count: dataplane.Count{Packets: 9, Bytes: 9000},
			Dropped: dataplane.Count{Packets: 3, Bytes: 3000}, AtLeast: true,
		}},
		Keys:  []Top{{Name: "src 10.0.0.1", Count: dataplane.Count{Packets: 10_000, Bytes: 1e7}}},
		Tiles: []Tile{{}},
	}
	for i := range d.Offered {
		d.Offered[i], d.Passed[i] = zero(), zero()
		for c := range d.Rates {
			d.Rates[c].Offered[i], d.Rates[c].Sent = zero(), zero()
		}
	}
	at := int64(0)
	for n := int64(1); n <= 10_000; n++ {
		class, color, bin := int(n%2), 0, at/width
		p := TilePacket{
			Number: n, At: d.Start + at, Length: 1000, Class: int32(class), Fate: Sent,
			Left: d.Start + at + delay,
		}
		if burst := n > 4000 && n <= 6000; burst && class == 1 {
			color, p.Color, p.Fate = 2, 2, Dropped
		}
		d.Offered[color][bin] += 1000
		d.Rates[class].Offered[color][bin] += 1000
		if p.Fate == Sent {
			d.Passed[color][(at+delay)/width] += 1000
			d.Rates[class].Sent[(at+delay)/width] += 1000
		}
		m := &d.Meters[0]
		level := 5000 - n%5000
		if m.Packets[bin] == 0 {
			m.C.Lowest[bin] = level
		}
		m.C.Lowest[bin] = min(m.C.Lowest[bin], level)
		m.C.Mean[bin] = (m.C.Mean[bin]*m.Packets[bin] + level) / (m.Packets[bin] + 1)
		m.Packets[bin]++
		p.Levels = []Level{{0, level, 0}}
		if t := &d.Tiles[0]; n >= 3900 && n < 4900 {
			t.Packets = append(t.Packets, p)
		}
		if n == 4001 {
			d.Episodes[0].From = d.Start + at
		}
		if n == 6000 {
			d.Episodes[0].To = d.Start + at
		}
		if n < 4000 || n >= 6000 {
			at += 1e6
		} else {
			at += 1e4
		}
	}
	d.Packets, d.Bytes, d.Duration = 10_000, 1e7, at-1e6
	return d
}

// cell is a cell of the first chart, and its values.
type viewCell struct {
	From, To float64
	Packets  int
	Values   []float64 // bytes by line
}

// viewScript returns the cells of a view, and for the lines of a chart the bytes in each.
const viewScript = `(() => {
	const v = views.of(MIN, MAX);
	const s = views.series;
	const lines = [
		...s.offered.map((list, c) => views.arriving(list, (t, i) => (t.color[i] === c ? t.length[i] : 0))),
		...s.passed.map((list, c) => views.leaving(list, (t, i) => (t.color[i] === c ? t.length[i] : 0))),
	].map((f) => f(v));
	return v.cells.map((c, k) => ({ from: c.from, to: c.to, packets: c.tile ? c.j - c.i : -1, values: lines.map((l) => l[k]) }));
})()`

// TestViews divides a report into cells at several scales. Cells never overlap, and their bytes
// add up to those of the bins. In a tile, cells have the bytes of their packets.
func TestViews(t *testing.T) {
	b := chrome.Open(t)
	for _, delay := range []int64{0, 5e6} {
		d := burstSample(delay)
		b.Width(t, 1000)
		openPage(t, b, "views", d)
		first := float64(d.Episodes[0].From-d.Start) / 1e9
		for _, view := range [][2]float64{
			{0, 99}, {1, 7}, {first - 0.5, first + 0.5}, {first - 0.01, first + 0.02}, {first, first + 0.0001},
		} {
			script := strings.NewReplacer("MIN", strconv.FormatFloat(view[0], 'f', -1, 64), "MAX",
				strconv.FormatFloat(view[1], 'f', -1, 64)).Replace(viewScript)
			cells := chrome.Evaluate[[]viewCell](t, b, script)
			want := make([]float64, 6)
			for i := range 3 {
				for k := range d.Offered[i] {
					want[i] += float64(d.Offered[i][k])
					want[3+i] += float64(d.Passed[i][k])
				}
			}
			end, narrowest := 0.0, math.Inf(1)
			for _, c := range cells {
				if c.From != end || c.To <= c.From {
					t.Fatalf("view %v: a cell from %v to %v follows %v", view, c.From, c.To, end)
				}
				end = c.To
				for i, n := range c.Values {
					want[i] -= n
				}
				narrowest = min(narrowest, c.To-c.From)
				if c.Packets >= 0 {
					var arrived float64
					for _, p := range d.Tiles[0].Packets {
						if at := float64(p.At - d.Start); at >= c.From && at < c.To {
							arrived += 1000
						}
					}
					if got := c.Values[0] + c.Values[1] + c.Values[2]; got != arrived ||
						c.Packets*1000 != int(arrived) {
						t.Fatalf("view %v: the cell from %v to %v has %v bytes of %d packets, want %v", view,
							c.From, c.To, got, c.Packets, arrived)
					}
				}
			}
			if end != float64(len(d.Offered[0]))*float64(d.BinWidth) {
				t.Errorf("view %v ends at %v", view, end)
			}
			for i, rest := range want {
				if math.Abs(rest) > 1 {
					t.Errorf("view %v: line %d lacks %v bytes", view, i, rest)
				}
			}
			if view[1]-view[0] < 0.001 && narrowest > 2000 || view[1]-view[0] > 90 &&
				narrowest < float64(d.BinWidth) {
				t.Errorf("view %v: the narrowest cell has %v ns", view, narrowest)
			}
		}
		b.Quiet(t)
	}
}

// TestEpisodesInBrowser clicks on the mark of an episode and on its buttons.
func TestEpisodesInBrowser(t *testing.T) {
	b := chrome.Open(t)
	d := burstSample(0)
	b.Width(t, 1000)
	openPage(t, b, "episodes", d)
	b.Charts(t, 5) // offered, sent, two classes, a meter
	b.Shot(t, "episodes")
	canvases := `[...document.querySelectorAll("canvas")].map((c) => c.toDataURL())`
	before := chrome.Evaluate[[]string](t, b, canvases)
	for _, step := range []struct{ name, click string }{
		{"mark", `document.querySelector(".mark")`},
		{"packets", `document.querySelectorAll(".episodes button")[1]`},
	} {
		chrome.Evaluate[bool](t, b, step.click+`.click() || true`)
		b.Settle(t)
		b.Charts(t, 5)
		after := chrome.Evaluate[[]string](t, b, canvases)
		for i := range after {
			if after[i] == before[i] {
				t.Errorf("%s: chart %d did not zoom", step.name, i)
			}
		}
		b.Shot(t, "episodes-"+step.name)
	}
	b.Mouse(t, input.DispatchMouseEventTypeMouseMoved, 0.5)
	if when := chrome.Evaluate[string](t, b,
		`document.querySelector(".when").textContent`); !strings.Contains(when, "packet") {
		t.Errorf("the legend reads %q, want packets", when)
	}
	chrome.Evaluate[bool](t, b, `document.querySelector("button[data-whole]").click() || true`)
	b.Mouse(t, input.DispatchMouseEventTypeMouseMoved, -0.5)
	b.Settle(t)
	if after := chrome.Evaluate[[]string](t, b, canvases); !slices.Equal(after, before) {
		t.Error("the charts differ after \"Show all\"")
	}
	b.Width(t, 360)
	checkFits(t, b)
	b.Shot(t, "episodes-narrow")
	b.Quiet(t)
}

// TestEpisodesEscaped checks that names in episodes and tables are text.
func TestEpisodesEscaped(t *testing.T) {
	d := burstSample(0)
	e := &d.Episodes[0]
	e.Class, e.By, e.Reason, e.Flow, e.Why = hostile, hostile, hostile, hostile, hostile
	d.Flows[0].Name, d.Keys[0].Name, d.Rates[0].Name, d.Rates[1].Limits[0].Text = hostile, hostile, hostile,
		hostile
	html := write(t, d)
	for _, bad := range []string{"<img", "<!--", "onerror=\""} {
		if strings.Contains(html, bad) {
			t.Errorf("the page contains %q", bad)
		}
	}
}

// TestSize bounds the size of a report: with the most bins, charts and packets in tiles, and
// large numbers, it stays below 3 MB.
func TestSize(t *testing.T) {
	const bins = MaxBins
	full := slices.Repeat([]int64{12_345_678}, bins) // bytes per bin of 12 M packets in an hour
	delay := slices.Repeat([]int64{123_456_789}, bins)
	d := Data{Input: "large.pcap", BinWidth: 1, Unmetered: full}
	for i := range d.Offered {
		d.Offered[i], d.Passed[i] = full, full
	}
	for range 4096 {
		d.Rates = append(d.Rates, Rates{Name: "class", Offered: [3][]int64{full, full, full}, Sent: full})
		level := BucketSeries{"Tc", 1e6, full, full}
		d.Meters = append(d.Meters,
			MeterSeries{Name: "meter", C: level, E: level, Packets: slices.Repeat([]int64{5000}, bins)})
		d.Queues = append(d.Queues, QueueSeries{Name: "queue", Delay: delay, Waiting: full})
	}
	for range 5 {
		tile := Tile{}
		for i := range int64(2048) {
			tile.Packets = append(tile.Packets, TilePacket{
				Number: 11_000_000 + i, At: i * 300_000, Length: 1500, Class: 11, Fate: Sent,
				Left: i * 300_000, Levels: []Level{{11, 1_000_000, 1_000_000}},
			})
		}
		d.Tiles = append(d.Tiles, tile)
	}
	if n := len(write(t, d)); n > 3_000_000 {
		t.Errorf("the report has %d bytes, want at most 3,000,000", n)
	} else {
		t.Logf("%d bytes", n)
	}
}
