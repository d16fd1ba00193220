// Package report writes what a replay did as one HTML file: totals, a table by
// class, and over time the rate by color, the bucket levels, and the delay and
// occupancy of queues.
//
//	err := report.Write(f, report.Data{
//		Input: "office.pcap", Policy: "office.toml",
//		Packets: 3, Bytes: 3600, Duration: 2e9,
//		Classes: []report.Class{{Name: "voice", Green: report.Count{Packets: 3, Bytes: 3600}}},
//	})
//
// The file needs nothing beside itself, and its Content-Security-Policy keeps
// a browser from loading anything. Without scripts the table stays.
//
// The package counts nothing and bins nothing: Data holds finished numbers.
package report

import (
	"errors"
	"fmt"
	"io"
	"strings"
)

// maxCharts is how many meters, and how many queues, get a chart. The first
// ones do; the page says how many do not.
const maxCharts = 12

// Data is what a report shows. Every series has one value a bin; the number of
// bins is the length of Offered[0], and none is a capture without packets. The
// bins reach to the last departure.
type Data struct {
	Input   string // capture file
	Policy  string // policy file or one-liner
	Version string // of shaper

	Start    int64 // ns since the epoch, of the first bin
	BinWidth int64 // ns, above 0 if there are bins

	Offered   [3][]int64 // bytes that arrived in the bin, by color: green, yellow, red
	Passed    [3][]int64 // bytes that left in the bin, by color, at their departure
	Unmetered []int64    // bytes that no class took: they arrive and leave in the same bin; nil is none

	Meters []Meter
	Queues []Queue

	Classes []Class // in policy order; Name "-" is what no class took

	Packets  int64
	Bytes    int64
	Duration int64 // ns

	Warnings []string
}

// Meter is the bucket levels of one meter.
type Meter struct {
	Name   string
	Kind   string // "srtcm"
	Params string // "cir=8mbit/s cbs=64kB ebs=128kB"
	C, E   Bucket // E.Size 0 is a token bucket, which has no second
}

// Bucket is the level of one bucket over time.
type Bucket struct {
	Name   string  // Tc, Te or Tp; left, of a limit; below CIR, of an average
	Size   int64   // bytes, the burst size
	Lowest []int64 // bytes, the lowest level a packet saw in the bin; -1 where none came
}

// Queue is the delay and the occupancy of one queue over time, and what it
// dropped.
type Queue struct {
	Name, Params string
	Delay        []int64 // ns, the longest wait of a packet that left in the bin; -1 where none did
	Waiting      []int64 // bytes that waited, averaged over the bin

	Full, WRED, CoDel Count // dropped, by reason
}

// Drops tells what the queue dropped, or nothing where it dropped nothing.
func (q Queue) Drops() string {
	var parts []string
	for _, d := range []struct {
		reason string
		n      Count
	}{{"queue-full", q.Full}, {"wred", q.WRED}, {"codel", q.CoDel}} {
		if d.n.Packets > 0 {
			parts = append(parts, d.reason+" "+thousands(d.n.Packets))
		}
	}
	if parts == nil {
		return ""
	}
	return "packets dropped: " + strings.Join(parts, ", ")
}

// Class is a row of the table. What was dropped, marked or queued is counted
// in its color too.
type Class struct {
	Name, Meter        string
	Green, Yellow, Red Count
	Uncolored          Count // what has no color: only in the row "-"

	Dropped, Marked, Queued Count
}

// total is what the class took.
func (c Class) total() Count {
	return c.Green.plus(c.Yellow).plus(c.Red).plus(c.Uncolored)
}

// Count is packets and their metered bytes.
type Count struct{ Packets, Bytes int64 }

func (c Count) plus(d Count) Count {
	return Count{c.Packets + d.Packets, c.Bytes + d.Bytes}
}

// Write writes the report of d as one HTML file. It fails, before it writes,
// on series of different lengths and on a bin width below 1, and on what w
// fails with.
func Write(w io.Writer, d Data) error {
	if err := d.check(); err != nil {
		return fmt.Errorf("report: %w", err)
	}
	return pages.write(w, "page.html.tmpl", newView(d))
}

// check joins every fault of the series.
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
	for _, m := range d.Meters {
		for _, b := range m.buckets() {
			series(fmt.Sprintf("meter %q %s", m.Name, b.Name), b.Lowest)
		}
	}
	for _, q := range d.Queues {
		series(fmt.Sprintf("delay of queue %q", q.Name), q.Delay)
		series(fmt.Sprintf("waiting of queue %q", q.Name), q.Waiting)
	}
	return errors.Join(errs...)
}

// buckets is what is drawn of m.
func (m Meter) buckets() []Bucket {
	if m.E.Size == 0 {
		return []Bucket{m.C}
	}
	return []Bucket{m.C, m.E}
}

// burst names the size of a bucket as the RFCs do.
func (b Bucket) burst() string {
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

// view is what the template sees: text, and the series for the script.
type view struct {
	frame
	Data
	Shares      []tile
	Meters      []Meter
	Queues      []Queue
	MetersAbove int // how many meters are not drawn
	QueuesAbove int
}

// series is what the script draws. Units are those of Data.
type series struct {
	Bins      int        `json:"bins"`
	BinWidth  int64      `json:"binWidth"`
	Offered   [3][]int64 `json:"offered"`
	Passed    [3][]int64 `json:"passed"`
	Unmetered []int64    `json:"unmetered"`
	Meters    [][]level  `json:"meters"`
	Queues    []room     `json:"queues"`
}

type room struct {
	Delay   []int64 `json:"delay"`
	Waiting []int64 `json:"waiting"`
}

type level struct {
	Name   string  `json:"name"`
	Burst  string  `json:"burst"`
	Size   int64   `json:"size"`
	Lowest []int64 `json:"lowest"`
}

func newView(d Data) view {
	title := d.Input
	if d.Policy != "" {
		title += " through " + d.Policy
	}
	v := view{
		Data:   d,
		Shares: shares(d),
		Meters: d.Meters[:min(len(d.Meters), maxCharts)],
		Queues: d.Queues[:min(len(d.Queues), maxCharts)],
	}
	v.frame = newFrame(title, replayJS, len(d.Offered[0]), d.Start, d.BinWidth)
	v.Totals = totals(d.Packets, d.Bytes, d.Duration)
	drawn := series{Bins: v.Bins, BinWidth: d.BinWidth, Offered: d.Offered, Passed: d.Passed, Unmetered: d.Unmetered}
	v.MetersAbove = len(d.Meters) - len(v.Meters)
	v.QueuesAbove = len(d.Queues) - len(v.Queues)
	for _, m := range v.Meters {
		var levels []level
		for _, b := range m.buckets() {
			levels = append(levels, level{b.Name, b.burst(), b.Size, b.Lowest})
		}
		drawn.Meters = append(drawn.Meters, levels)
	}
	for _, q := range v.Queues {
		drawn.Queues = append(drawn.Queues, room{q.Delay, q.Waiting})
	}
	v.Series = drawn
	v.Table.Of = "Class"
	for _, c := range d.Classes {
		v.Table.Rows = append(v.Table.Rows, newRow(c))
	}
	return v
}

// shares is of all bytes.
func shares(d Data) []tile {
	var sum Class
	for _, c := range d.Classes {
		sum.Green = sum.Green.plus(c.Green)
		sum.Yellow = sum.Yellow.plus(c.Yellow)
		sum.Red = sum.Red.plus(c.Red)
		sum.Uncolored = sum.Uncolored.plus(c.Uncolored)
		sum.Dropped = sum.Dropped.plus(c.Dropped)
	}
	var tiles []tile
	share := func(label, swatch string, c Count) {
		tiles = append(tiles, tile{label, percent(c.Bytes, d.Bytes), thousands(c.Bytes) + " bytes", swatch})
	}
	share("Green", "green", sum.Green)
	share("Yellow", "yellow", sum.Yellow)
	share("Red", "red", sum.Red)
	if sum.Uncolored.Packets > 0 {
		share("No class", "none", sum.Uncolored)
	}
	share("Dropped", "", sum.Dropped)
	return tiles
}

func newRow(c Class) row {
	total := c.total()
	r := row{Name: c.Name, Under: c.Meter}
	if c.Name == "-" {
		r.Under = "no class took it"
	}
	for _, k := range []struct {
		label, swatch string
		n             Count
	}{
		{"Total", "", total},
		{"Green", "green", c.Green},
		{"Yellow", "yellow", c.Yellow},
		{"Red", "red", c.Red},
		{"Dropped", "", c.Dropped},
		{"Marked", "", c.Marked},
		{"Queued", "", c.Queued},
	} {
		r.Cells = append(r.Cells, counted(k.label, k.swatch, k.n, total.Bytes))
	}
	return r
}
