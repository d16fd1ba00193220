package report

import (
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"fmt"
	"html/template"
	"io"
	"time"
)

//go:embed *.html.tmpl
var templates embed.FS

//go:embed page.css
var pageCSS string

//go:embed chart.js
var chartJS string

//go:embed page.js
var replayJS string

//go:embed compare.js
var compareJS string

//go:embed uplot/uPlot.min.css
var uplotCSS string

//go:embed uplot/uPlot.iife.min.js
var uplotJS string

var pages = pageSet{template.Must(template.ParseFS(templates, "*.html.tmpl"))}

type pageSet struct{ *template.Template }

func (p pageSet) write(w io.Writer, name string, view any) error {
	if err := p.ExecuteTemplate(w, name, view); err != nil {
		return fmt.Errorf("report: %w", err)
	}
	return nil
}

// frame is what all pages have around what they show.
type frame struct {
	Title             string
	ContentPolicy     string
	UplotCSS, PageCSS template.CSS
	UplotJS, PageJS   template.JS

	Bins      int
	From, Bin string
	Totals    []tile
	Table     table
	Series    any // what the script draws, as JSON
}

// newFrame is the frame of a page whose charts script draws.
func newFrame(title, script string, bins int, start, binWidth int64) frame {
	script = chartJS + script
	return frame{
		Title: title,
		ContentPolicy: "default-src 'none'; script-src " + source(uplotJS) + " " + source(script) +
			"; style-src " + source(uplotCSS) + " " + source(pageCSS) + "; base-uri 'none'; form-action 'none'",
		UplotCSS: template.CSS(uplotCSS), PageCSS: template.CSS(pageCSS),
		UplotJS: template.JS(uplotJS), PageJS: template.JS(script),
		Bins: bins,
		From: time.Unix(0, start).UTC().Format("2006-01-02 15:04:05.000000"),
		Bin:  duration(binWidth),
	}
}

// source is the CSP source expression that allows exactly this inline text.
func source(inline string) string {
	sum := sha256.Sum256([]byte(inline))
	return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
}

// tile is one number of the heading.
type tile struct{ Label, Value, Detail, Swatch string }

func totals(packets, bytes, ns int64) []tile {
	return []tile{
		{Label: "Packets", Value: thousands(packets)},
		{Label: "Bytes", Value: thousands(bytes)},
		{Label: "Duration", Value: duration(ns), Detail: meanRate(bytes, ns)},
	}
}

// table is rows of one kind, which Of names.
type table struct {
	Of   string
	Rows []row
}

type row struct {
	Name, Under string
	Cells       []cell
}

// cell is a number as text, with what stands under it.
type cell struct {
	Label, Swatch, Value string
	Under                []string
	Zero                 bool
}

// counted is the cell of a count, with its share of some bytes.
func counted(label, swatch string, n Count, of int64) cell {
	c := cell{Label: label, Swatch: swatch, Value: thousands(n.Packets), Zero: n.Packets == 0}
	if !c.Zero {
		c.Under = []string{thousands(n.Bytes) + " B", percent(n.Bytes, of)}
	}
	return c
}
