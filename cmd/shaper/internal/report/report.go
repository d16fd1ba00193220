// Package report writes the result of a replay as one HTML file: totals, a table by
// class, and charts over time of the rate by color, the bucket levels, and the delay
// and backlog of queues. It also draws pictures, as SVG.
//
//	err := report.Write(f, report.Data{
//		Input: "office.pcap", Policy: "office.yaml",
//		Packets: 3, Bytes: 3600, Duration: 2e9,
//		Classes: []report.Class{{Name: "voice", Green: dataplane.Count{Packets: 3, Bytes: 3600}}},
//	})
//
// The file is self-contained, and its Content-Security-Policy keeps a browser from
// loading anything. Without scripts it shows the table and no charts.
//
// The package does no counting: Data holds finished numbers.
package report

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

// maxCharts limits the charts of meters, and those of queues. The page says how many
// are not drawn.
const maxCharts = 12

// MaxBins is a number of bins with which a report stays below 3 MB.
const MaxBins = 1536

// Data is the content of a report. Every series holds one value per bin. The number of bins is the
// length of Offered[0]: 0 for a capture without packets. The last bin holds the last departure.
type Data struct {
	Input   string // capture file
	Policy  string // policy file or one-liner
	Version string // version of shaper

	Start    int64 // ns since the epoch, of the first bin
	BinWidth int64 // ns, above 0 if there are bins

	Offered   [3][]int64 // bytes of the packets arriving in the bin, by color: green, yellow, red
	Passed    [3][]int64 // bytes sent in the bin, by color
	Unmetered []int64    // unclassified bytes, which are sent on arrival; may be nil

	Rates    []Rates // by class, in policy order
	Meters   []MeterSeries
	Queues   []QueueSeries
	Links    []dataplane.LinkState
	Episodes []Episode // the worst one first
	Tiles    []Tile    // packets around episodes, in order
	Flows    []Top     // the largest first
	Keys     []Top     // of meters per key, or customers

	Classes []Class // in policy order; Name say.Unclassified is the unclassified packets

	Packets  int64
	Bytes    int64
	Duration int64 // ns

	Warnings []string
}

// MeterSeries is the bucket levels of one meter.
type MeterSeries struct {
	Name   string
	Kind   string       // "srtcm"
	Params string       // "cir=8mbit/s cbs=64kB ebs=128kB"
	C, E   BucketSeries // E.Size is 0 for a meter with one bucket

	Packets []int64 // metered in the bin
}

// BucketSeries is the level of one bucket over time.
type BucketSeries struct {
	Name   string  // Tc, Te or Tp; "left" of a limit; "below CIR" of an average
	Size   int64   // bytes, the burst size
	Lowest []int64 // bytes, the lowest level after a packet in the bin; -1 without packets
	Mean   []int64 // bytes, the mean level after the packets in the bin; -1 without packets
}

// QueueSeries is the delay and the backlog of one queue over time, and its drops.
type QueueSeries struct {
	Name, Params string
	Delay        []int64 // ns, the longest of the packets sent in the bin; -1 without packets
	Waiting      []int64 // backlog in bytes, averaged over the bin

	Full, WRED, CoDel dataplane.Count // dropped, by reason
}

// Drops describes the dropped packets by reason. It is empty if there are none.
func (q QueueSeries) Drops() string {
	var parts []string
	for _, d := range []struct {
		reason string
		n      dataplane.Count
	}{{"queue-full", q.Full}, {"wred", q.WRED}, {"codel", q.CoDel}} {
		if d.n.Packets > 0 {
			parts = append(parts, d.reason+" "+say.Grouped(d.n.Packets))
		}
	}
	if parts == nil {
		return ""
	}
	return "packets dropped: " + strings.Join(parts, ", ")
}

// Class is a row of the table. Dropped, marked and queued packets are also counted in
// their color.
type Class struct {
	Name, Meter        string
	Green, Yellow, Red dataplane.Count
	Uncolored          dataplane.Count // only in the row of unclassified packets

	Dropped, Marked, Queued dataplane.Count
}

// total is all packets of the class.
func (c Class) total() dataplane.Count {
	return c.Green.Plus(c.Yellow).Plus(c.Red).Plus(c.Uncolored)
}

// Write writes the report of d as one HTML file. If series differ in length or
// the bin width is below 1, it returns an error and writes nothing. It also returns
// an error of w.
func Write(w io.Writer, d Data) error {
	if err := d.check(); err != nil {
		return fmt.Errorf("report: %w", err)
	}
	p, err := d.page()
	if err != nil {
		return err
	}
	return p.writeTo(w)
}

// check returns all errors of the series, joined.
func (d Data) check() error {
	var errs []error
	bins := len(d.Offered[0])
	series := func(name string, s []int64) {
		if len(s) != bins {
			errs = append(errs, fmt.Errorf("%s has %d bins, Offered[0] has %d", name, len(s), bins))
		}
	}
	if bins > 0 && d.BinWidth < 1 {
		errs = append(errs, fmt.Errorf("BinWidth is %d ns, want 1 or more", d.BinWidth))
	}
	for i := range d.Offered {
		series(fmt.Sprintf("Offered[%d]", i), d.Offered[i])
		series(fmt.Sprintf("Passed[%d]", i), d.Passed[i])
	}
	if d.Unmetered != nil {
		series("Unmetered", d.Unmetered)
	}
	for _, c := range d.Rates {
		for i := range c.Offered {
			series(fmt.Sprintf("Offered[%d] of class %q", i, c.Name), c.Offered[i])
		}
		series(fmt.Sprintf("Sent of class %q", c.Name), c.Sent)
	}
	for _, m := range d.Meters {
		for _, b := range m.buckets() {
			series(fmt.Sprintf("meter %q %s", m.Name, b.Name), b.Lowest)
			series(fmt.Sprintf("mean of meter %q %s", m.Name, b.Name), b.Mean)
		}
		series(fmt.Sprintf("packets of meter %q", m.Name), m.Packets)
	}
	for _, q := range d.Queues {
		series(fmt.Sprintf("delay of queue %q", q.Name), q.Delay)
		series(fmt.Sprintf("waiting of queue %q", q.Name), q.Waiting)
	}
	return errors.Join(errs...)
}

// buckets returns the buckets to draw.
func (m MeterSeries) buckets() []BucketSeries {
	if m.E.Size == 0 {
		return []BucketSeries{m.C}
	}
	return []BucketSeries{m.C, m.E}
}

// burst is the name of the size of a bucket, as in the RFCs.
func (b BucketSeries) burst() string {
	switch b.Name {
	case "Tc":
		return "CBS"
	case "Te":
		return "EBS"
	case "Tp":
		return "PBS"
	case "left":
		return "limit"
	}
	if target, ok := strings.CutPrefix(b.Name, "below "); ok {
		return target + " in a window"
	}
	return "size of " + b.Name
}

// series is the data of the charts. Units are those of Data.
type series struct {
	Bins      int              `json:"bins"`
	BinWidth  int64            `json:"binWidth"`
	Offered   [3][]int64       `json:"offered"`
	Passed    [3][]int64       `json:"passed"`
	Unmetered []int64          `json:"unmetered"`
	Classes   []classSeries    `json:"classes"`
	Meters    [][]bucketSeries `json:"meters"`
	Packets   [][]int64        `json:"packets"` // by meter
	Queues    []queueSeries    `json:"queues"`
	Episodes  []episodeSeries  `json:"episodes"`
	Tiles     []tileSeries     `json:"tiles"`
}

type queueSeries struct {
	Delay   []int64 `json:"delay"`
	Waiting []int64 `json:"waiting"`
}

type bucketSeries struct {
	Name   string  `json:"name"`
	Burst  string  `json:"burst"`
	Size   int64   `json:"size"`
	Lowest []int64 `json:"lowest"`
	Mean   []int64 `json:"mean"`
}

// page returns the page of the whole report.
func (d Data) page() (*page, error) {
	p := &page{
		script: viewJS + chartJS + replayJS, bins: len(d.Offered[0]), start: d.Start, binWidth: d.BinWidth,
		version: d.Version,
	}
	title := d.Input
	if d.Policy != "" {
		title += " through " + d.Policy
	}
	p.begin(title)
	p.printf("<h1>%s</h1>\n", d.Input)
	if d.Policy != "" {
		p.printf(`<p class="policy">through <code>%s</code></p>`+"\n", d.Policy)
	}
	p.main()
	p.tiles(totals(d.Packets, d.Bytes, d.Duration))
	p.tiles(shares(d))
	p.warnings(d.Warnings)
	if len(d.Classes) > 0 {
		p.section("Classes",
			"Packets, bytes, and share of the bytes of the class. Dropped, marked and queued packets are also counted in their color.")
		var rows []row
		for _, c := range d.Classes {
			rows = append(rows, newRow(c))
		}
		p.table("Class", rows)
		p.endSection()
	}
	p.links(d)
	p.episodes(d)
	if p.bins == 0 {
		p.printf(`<p class="empty">The capture holds no packet: there is nothing to draw.</p>` + "\n")
		return p, p.end(nil)
	}
	p.rates(d)
	s := series{
		Bins: p.bins, BinWidth: d.BinWidth, Offered: d.Offered, Passed: d.Passed, Unmetered: d.Unmetered,
		Classes: p.classes(d.Rates), Meters: p.meters(d.Meters), Queues: p.queues(d.Queues),
	}
	for _, m := range d.Meters[:min(len(d.Meters), maxCharts)] {
		s.Packets = append(s.Packets, m.Packets)
	}
	for i, e := range d.Episodes {
		s.Episodes = append(s.Episodes, e.series(i, d.Start))
	}
	for i := range d.Tiles {
		s.Tiles = append(s.Tiles, d.Tiles[i].series(d.Start, len(s.Packets)))
	}
	p.top("Top flows", "Flow", d.Flows, d.Bytes)
	p.top("Top keys", "Key", d.Keys, d.Bytes)
	return p, p.end(&s)
}

// meters writes the section of the meters, and returns the data of its charts.
func (p *page) meters(meters []MeterSeries) (out [][]bucketSeries) {
	if len(meters) == 0 {
		return nil
	}
	p.section("Bucket levels",
		"The lowest and the mean level after the packets in each bin; gaps are bins without packets. Dotted lines are burst sizes and limits."+
			notDrawn(len(meters), "meter"))
	for i, m := range meters[:min(len(meters), maxCharts)] {
		p.chart("meter", i, m.Name, m.Kind+" "+m.Params)
		var buckets []bucketSeries
		for _, b := range m.buckets() {
			buckets = append(buckets, bucketSeries{b.Name, b.burst(), b.Size, b.Lowest, b.Mean})
		}
		out = append(out, buckets)
	}
	p.endSection()
	return out
}

// queues writes the section of the queues, and returns the data of its charts.
func (p *page) queues(queues []QueueSeries) (out []queueSeries) {
	if len(queues) == 0 {
		return nil
	}
	p.section("Queues",
		"Delay is the longest queueing delay of the packets sent in each bin; gaps are bins in which none was sent. "+
			"Backlog is the bytes in the queue, averaged over each bin."+notDrawn(len(queues), "queue"))
	for i, q := range queues[:min(len(queues), maxCharts)] {
		p.chart("delay", i, q.Name, q.Params, q.Drops())
		p.chart("waiting", i, "")
		out = append(out, queueSeries{q.Delay, q.Waiting})
	}
	p.endSection()
	return out
}

// notDrawn says how many of n have no chart.
func notDrawn(n int, what string) string {
	switch more := n - maxCharts; {
	case more < 1:
		return ""
	case more == 1:
		return " 1 more " + what + " is not drawn."
	default:
		return fmt.Sprintf(" %d more %ss are not drawn.", more, what)
	}
}

// shares returns the share of each color, and of drops, in all bytes.
func shares(d Data) []tile {
	var sum Class
	for _, c := range d.Classes {
		sum.Green = sum.Green.Plus(c.Green)
		sum.Yellow = sum.Yellow.Plus(c.Yellow)
		sum.Red = sum.Red.Plus(c.Red)
		sum.Uncolored = sum.Uncolored.Plus(c.Uncolored)
		sum.Dropped = sum.Dropped.Plus(c.Dropped)
	}
	var tiles []tile
	share := func(label, swatch string, c dataplane.Count) {
		tiles = append(tiles, tile{label, percent(c.Bytes, d.Bytes), say.Grouped(c.Bytes) + " bytes", swatch})
	}
	share("Green", "green", sum.Green)
	share("Yellow", "yellow", sum.Yellow)
	share("Red", "red", sum.Red)
	if sum.Uncolored.Packets > 0 {
		share("Unclassified", "none", sum.Uncolored)
	}
	share("Dropped", "", sum.Dropped)
	return tiles
}

func newRow(c Class) row {
	total := c.total()
	r := row{name: c.Name, under: c.Meter}
	if c.Name == say.Unclassified {
		r.under = "unclassified"
	}
	for _, k := range []struct {
		label, swatch string
		n             dataplane.Count
	}{
		{"Total", "", total},
		{"Green", "green", c.Green},
		{"Yellow", "yellow", c.Yellow},
		{"Red", "red", c.Red},
		{"Dropped", "", c.Dropped},
		{"Marked", "", c.Marked},
		{"Queued", "", c.Queued},
	} {
		r.cells = append(r.cells, counted(k.label, k.swatch, k.n, total.Bytes))
	}
	return r
}
