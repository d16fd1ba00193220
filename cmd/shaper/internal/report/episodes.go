package report

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

// Episode is a run of drops, or of yellow packets, in words.
type Episode struct {
	Kind              string // drop or yellow
	Class, By, Reason string
	At, Length        string
	dataplane.Count
	Lack, Flow, Why string
	From, To        int64 // first and last arrival, ns since the epoch
}

// Rates holds one class's traffic over time.
type Rates struct {
	Name    string
	Offered [3][]int64 // bytes of the packets arriving in the bin, by color
	Sent    []int64    // bytes sent in the bin
	Limits  []RateLine // of its meter, at most two
}

// RateLine is a rate of a meter.
type RateLine struct {
	Text    string // CIR 10mbit
	BitRate float64
}

// Top is a row of a table of flows or keys.
type Top struct {
	Name string
	dataplane.Count
	Dropped dataplane.Count
	AtLeast bool // the counts may lack packets
}

// classSeries, limitSeries and episodeSeries are read by the script. Times are in s since the start.
type classSeries struct {
	Name    string        `json:"name"`
	Index   int           `json:"index"` // class of packets in tiles
	Offered [3][]int64    `json:"offered"`
	Sent    []int64       `json:"sent"`
	Limits  []limitSeries `json:"limits"`
}

type limitSeries struct {
	Text string  `json:"text"`
	Rate float64 `json:"rate"` // bit/s
}

type episodeSeries struct {
	From  float64 `json:"from"`
	To    float64 `json:"to"`
	Title string  `json:"title"`
}

func (e *Episode) series(i int, start int64) episodeSeries {
	title := fmt.Sprintf("episode %d: %s of class %s, %s", i+1, e.Kind, e.Class,
		say.Count(e.Packets, "packet"))
	return episodeSeries{float64(e.From-start) / 1e9, float64(e.To-start) / 1e9, title}
}

// zoomButton writes a button to zoom the charts to a time, in ns since the epoch.
func (p *page) zoomButton(text string, from, to int64) {
	p.printf(`<button type="button" data-from="%d" data-to="%d" data-scroll>%s</button> `, from-p.start,
		to-p.start, text)
}

// episodes writes the section of the episodes.
func (p *page) episodes(d Data) {
	if len(d.Episodes) == 0 {
		return
	}
	p.section("Worst episodes",
		"An episode is a run of drops of a class, or of yellow packets that were not dropped on arrival, with gaps below 100 ms. "+
			"Lack is the most tokens that a packet lacked. A number zooms the charts to its episode, and packets to its first packets.")
	p.printf("<div class=\"table episodes\">\n<table>\n<thead>\n<tr>")
	for _, h := range []string{
		"Episode", "Class", "By", "Reason", "At", "Length", "Packets", "Bytes", "Lack",
	} {
		p.printf(`<th scope="col">%s</th>`, h)
	}
	p.printf("</tr>\n</thead>\n<tbody>\n")
	for i, e := range d.Episodes {
		p.printf(`<tr><th scope="row">`)
		p.zoomButton(fmt.Sprint(i+1), e.From, e.To)
		if to, ok := d.tiled(e); ok {
			p.zoomButton("packets", e.From, to)
		}
		p.printf("</th>")
		for _, c := range []struct{ label, value string }{
			{"Class", e.Class},
			{"By", e.By},
			{"Reason", e.Reason},
			{"At", e.At},
			{"Length", e.Length},
			{"Packets", say.Grouped(e.Packets)},
			{"Bytes", say.Grouped(e.Bytes)},
			{"Lack", e.Lack},
		} {
			p.printf(`<td data-label="%s">%s</td>`, c.label, c.value)
		}
		p.printf("</tr>\n<tr class=\"more\"><td colspan=\"9\"><small>%s</small><code>%s</code></td></tr>\n",
			e.Flow, e.Why)
	}
	p.printf("</tbody>\n</table>\n</div>\n")
	p.endSection()
}

// firstPackets is the number of packets of an episode shown by its second button.
const firstPackets = 32

// tiled returns the end of the first packets of an episode, or false if no tile contains them.
func (d *Data) tiled(e Episode) (to int64, ok bool) {
	for _, t := range d.Tiles {
		at, _ := slices.BinarySearchFunc(t.Packets, e.From,
			func(p TilePacket, at int64) int { return cmp.Compare(p.At, at) })
		if at < len(t.Packets) && t.Packets[0].At <= e.From {
			return min(t.Packets[min(at+firstPackets, len(t.Packets)-1)].At, e.To), true
		}
	}
	return 0, false
}

// rates writes the section of the rates of all packets.
func (p *page) rates(d Data) {
	note := "By color, stacked, both charts on one scale. Time is since the start."
	if len(d.Episodes) > 0 {
		note += " A number marks an episode and zooms to it. Around its first packets, bins become as short as 1 µs when you zoom in."
	}
	p.charts("Rate", note)
	p.printf(
		`<p class="all"><button type="button" data-from="0" data-to="0" data-whole>Show all</button></p>` +
			"\n")
	p.chart("offered", 0, "Offered", "bit/s, on arrival")
	p.chart("passed", 0, "Sent", "bit/s, on departure")
	p.endSection()
}

// classes writes the section of the rates by class, and returns the data of its charts: of the
// classes with most bytes, in policy order. A single class gets no chart, because the chart of all
// packets shows its traffic.
func (p *page) classes(all []Rates) (out []classSeries) {
	var used []int
	bytes := map[int]int64{}
	for i, c := range all {
		for _, color := range c.Offered {
			for _, n := range color {
				bytes[i] += n
			}
		}
		if bytes[i] > 0 {
			used = append(used, i)
		}
	}
	total := len(used)
	slices.SortStableFunc(used, func(a, b int) int { return cmp.Compare(bytes[b], bytes[a]) })
	used = used[:min(total, maxCharts)]
	slices.Sort(used)
	for _, i := range used {
		s := classSeries{Name: all[i].Name, Index: i, Offered: all[i].Offered, Sent: all[i].Sent}
		for _, l := range all[i].Limits {
			s.Limits = append(s.Limits, limitSeries{l.Text, l.BitRate})
		}
		out = append(out, s)
	}
	if total < 2 {
		return out
	}
	p.section("Rate by class",
		"Offered by color, stacked, and sent (line), in bit/s. Dotted lines are the rates of the class's meter, unless they are far above its traffic."+
			classesNotDrawn(total))
	for i, c := range out {
		p.chart("class", i, c.Name)
	}
	p.endSection()
	return out
}

func classesNotDrawn(total int) string {
	if total <= maxCharts {
		return ""
	}
	return fmt.Sprintf(" The %d classes with most bytes are drawn, of %d.", maxCharts, total)
}

// top writes a table of flows or keys.
func (p *page) top(heading, kind string, list []Top, of int64) {
	if len(list) == 0 {
		return
	}
	note := ""
	var rows []row
	for _, t := range list {
		r := row{
			name:  t.Name,
			cells: []cell{counted("Total", "", t.Count, of), counted("Dropped", "", t.Dropped, t.Bytes)},
		}
		if t.AtLeast {
			r.under, note = "at least",
				"There were more than can be counted: counts with \"at least\" may lack packets."
		}
		rows = append(rows, r)
	}
	p.section(heading, note)
	p.table(kind, rows)
	p.endSection()
}
