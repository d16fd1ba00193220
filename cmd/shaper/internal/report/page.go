package report

import (
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"reflect"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

//go:embed page.css
var pageCSS string

//go:embed error.js
var errorJS string

//go:embed chart.js
var chartJS string

//go:embed view.js
var viewJS string

//go:embed page.js
var replayJS string

//go:embed compare.js
var compareJS string

//go:embed uplot/uPlot.min.css
var uplotCSS string

//go:embed uplot/uPlot.iife.min.js
var uplotJS string

// page is an HTML page while it is written.
type page struct {
	document
	script   string // draws the charts
	bins     int
	start    int64 // ns since the epoch, of the first bin
	binWidth int64 // ns
	version  string
}

// begin writes the beginning of the page up to the header's first line.
func (p *page) begin(title string) {
	scripts := source(errorJS) + " " + source(uplotJS) + " " + source(p.script)
	policy := "default-src 'none'; script-src " + scripts + "; style-src " + source(uplotCSS) + " " +
		source(pageCSS) +
		"; base-uri 'none'; form-action 'none'"
	p.printf(`<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="%s">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>%s – shaper</title>
<style>%s</style>
<style>%s</style>
</head>
<body>
<header>
`, policy, title, markup(uplotCSS), markup(pageCSS))
}

// main ends the header with a note, and begins the content.
func (p *page) main() {
	p.printf(`<p class="note">`)
	if p.bins > 0 {
		start := time.Unix(0, p.start).UTC().Format("2006-01-02 15:04:05.000000")
		p.printf("Starts %s UTC · bins of %s · ", start, duration(p.binWidth))
	}
	p.printf("shaper %s</p>\n</header>\n<main>\n", p.version)
}

// end writes the rest of the page: series points to the data of the charts, if there are any.
func (p *page) end(series any) error {
	p.printf("</main>\n")
	if p.bins > 0 {
		fill(reflect.ValueOf(series).Elem())
		data, err := json.Marshal(series) // escapes <, > and &
		if err != nil {
			return fmt.Errorf("report: %w", err)
		}
		p.printf("<script type=\"application/json\" id=\"series\">%s</script>\n", markup(data))
		for _, script := range []string{errorJS, uplotJS, p.script} {
			p.printf("<script>%s</script>\n", markup(script))
		}
	}
	p.printf("</body>\n</html>\n")
	return nil
}

// fill replaces nil slices in v, at any depth, by empty ones. JSON writes null for a nil slice, but
// scripts read a list.
func fill(v reflect.Value) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			fill(v.Field(i))
		}
	case reflect.Slice:
		if v.IsNil() {
			v.Set(reflect.MakeSlice(v.Type(), 0, 0))
		}
		fallthrough
	case reflect.Array:
		switch v.Type().Elem().Kind() {
		case reflect.Struct, reflect.Slice, reflect.Array:
			for i := range v.Len() {
				fill(v.Index(i))
			}
		}
	}
}

// source is the CSP source expression to allow exactly this inline text.
func source(inline string) string {
	sum := sha256.Sum256([]byte(inline))
	return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
}

// section begins a section; endSection ends it.
func (p *page) section(heading, note string) {
	p.printf("<section>\n<h2>%s</h2>\n", heading)
	if note != "" {
		p.printf(`<p class="note">%s</p>`+"\n", note)
	}
}

func (p *page) endSection() { p.printf("</section>\n") }

// charts begins the section of the first charts.
func (p *page) charts(heading, note string) {
	p.printf(`<noscript><p class="note">The charts need scripts.</p></noscript>
<section>
<h2>%s</h2>
<p class="note">%s<span class="mouse"> Drag across a chart to zoom all of them, double-click to zoom out.</span></p>
`, heading, note)
}

// chart writes the place of a chart. The script draws it by kind and index. Empty notes are
// omitted.
func (p *page) chart(kind string, index int, name string, notes ...string) {
	p.printf(`<figure data-chart="%s" data-index="%d">`, kind, index)
	if name != "" {
		p.printf("<figcaption><h3>%s</h3>", name)
		for _, note := range notes {
			if note != "" {
				p.printf("<span>%s</span>", note)
			}
		}
		p.printf("</figcaption>")
	}
	p.printf("</figure>\n")
}

func (p *page) warnings(list []string) {
	if len(list) == 0 {
		return
	}
	p.printf(`<section class="warnings">` + "\n<h2>Warnings</h2>\n<ul>\n")
	for _, w := range list {
		p.printf("<li>%s</li>\n", w)
	}
	p.printf("</ul>\n</section>\n")
}

// tile is one number at the top of the page.
type tile struct{ label, value, detail, swatch string }

func (p *page) tiles(tiles []tile) {
	p.printf(`<dl class="tiles">` + "\n")
	for _, t := range tiles {
		p.printf("<div><dt>")
		p.swatch(t.swatch)
		p.printf("%s</dt><dd>%s", t.label, t.value)
		p.small(t.detail)
		p.printf("</dd></div>\n")
	}
	p.printf("</dl>\n")
}

func totals(packets, bytes, ns int64) []tile {
	return []tile{
		{label: "Packets", value: say.Grouped(packets)},
		{label: "Bytes", value: say.Grouped(bytes)},
		{label: "Duration", value: duration(ns), detail: meanRate(bytes, ns)},
	}
}

// swatch is the sample of a color, a class of page.css; small is a line of small text.
// Both write nothing for an empty string.
func (p *page) swatch(class string) {
	if class != "" {
		p.printf(`<i class="swatch %s"></i>`, class)
	}
}

func (p *page) small(text string) {
	if text != "" {
		p.printf("<small>%s</small>", text)
	}
}

// row is a row of a table, with its name and a line of small text below it.
type row struct {
	name, under string
	cells       []cell
}

// cell is a number as text, with lines of small text below it.
type cell struct {
	label, swatch, value string
	under                []string
	zero                 bool
}

// table writes rows of one kind. All have the same columns.
func (p *page) table(kind string, rows []row) {
	p.printf("<div class=\"table\">\n<table>\n<thead>\n<tr><th scope=\"col\">%s</th>", kind)
	for _, c := range rows[0].cells {
		p.printf(`<th scope="col">`)
		p.swatch(c.swatch)
		p.printf("%s</th>", c.label)
	}
	p.printf("</tr>\n</thead>\n<tbody>\n")
	for _, r := range rows {
		p.printf("<tr>\n<th scope=\"row\">%s", r.name)
		p.small(r.under)
		p.printf("</th>\n")
		for _, c := range r.cells {
			zero := markup("")
			if c.zero {
				zero = ` class="zero"`
			}
			p.printf(`<td data-label="%s"%s><span>%s</span>`, c.label, zero, c.value)
			for _, line := range c.under {
				p.small(line)
			}
			p.printf("</td>\n")
		}
		p.printf("</tr>\n")
	}
	p.printf("</tbody>\n</table>\n</div>\n")
}

// counted returns the cell of a count, with its share of the bytes of.
func counted(label, swatch string, n dataplane.Count, of int64) cell {
	c := cell{label: label, swatch: swatch, value: say.Grouped(n.Packets), zero: n.Packets == 0}
	if !c.zero {
		c.under = []string{say.Grouped(n.Bytes) + " B", percent(n.Bytes, of)}
	}
	return c
}
