package main

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// chart is a diagram with a logarithmic x axis.
type chart struct {
	title, x string // x names the x axis; y is ns a packet
	lines    []line
}

// line is a series of measurements.
type line struct {
	name   string
	points []point
}

type point struct{ x, y float64 }

// Sizes in pixels.
const (
	chartWidth, chartHeight = 420, 270
	chartLeft, chartTop     = 48, 44 // of the plot in a chart
	plotWidth, plotHeight   = chartWidth - chartLeft - 20, chartHeight - chartTop - 70
	chartColumns            = 2
)

var lineColors = []string{"#0a6ab0", "#a03f82", "#3a7d34", "#b06000"}

// draw draws charts side by side as SVG.
func draw(charts []chart) string {
	rows := (len(charts) + chartColumns - 1) / chartColumns
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %[1]d %[2]d" role="img">
<title>Cost of a packet against packets, classes, keys, queued packets and CPUs</title>
<style>
text { font: 12px Liberation Sans, Arial, Helvetica, sans-serif; fill: #1b1f24; }
.title { font-weight: bold; }
.grid { stroke: #d5d9de; stroke-width: .7; }
polyline { fill: none; stroke-width: 1.5; }
</style>
<rect width="100%%" height="100%%" fill="#fff"/>
`, chartColumns*chartWidth, rows*chartHeight)
	for i := range charts {
		fmt.Fprintf(&b, "<g transform=\"translate(%d %d)\">\n", i%chartColumns*chartWidth,
			i/chartColumns*chartHeight)
		charts[i].draw(&b)
		b.WriteString("</g>\n")
	}
	b.WriteString("</svg>\n")
	return b.String()
}

func (c *chart) draw(b *strings.Builder) {
	xs, top := c.xs(), 0.0
	for _, l := range c.lines {
		for _, p := range l.points {
			top = max(top, p.y)
		}
	}
	first, last := math.Log(xs[0]), math.Log(xs[len(xs)-1])
	atX := func(x float64) float64 { return chartLeft + plotWidth*(math.Log(x)-first)/max(last-first, 1e-9) }
	step := math.Pow(10, math.Floor(math.Log10(top)))
	for top/step < 3 {
		step /= 2
	}
	top = math.Ceil(top/step) * step
	atY := func(y float64) float64 { return chartTop + plotHeight*(1-y/top) }

	fmt.Fprintf(b, `<text x="8" y="18" class="title">%s</text><text x="8" y="35">ns a packet</text>`+"\n",
		c.title)
	for y := 0.0; y <= top; y += step {
		fmt.Fprintf(b,
			`<path class="grid" d="M%d %.1fh%d"/><text x="%d" y="%.1f" text-anchor="end">%s</text>`+"\n",
			chartLeft, atY(y), plotWidth, chartLeft-6, atY(y)+4, plain(y))
	}
	for _, x := range xs {
		fmt.Fprintf(b, `<text x="%.1f" y="%d" text-anchor="middle">%s</text>`+"\n", atX(x),
			chartTop+plotHeight+18, short(x))
	}
	fmt.Fprintf(b, `<text x="%d" y="%d" text-anchor="middle">%s</text>`+"\n", chartLeft+plotWidth/2,
		chartTop+plotHeight+35, c.x)
	at := chartLeft
	for i, l := range c.lines {
		color := lineColors[i%len(lineColors)]
		fmt.Fprintf(b, `<polyline stroke="%s" points="`, color)
		for _, p := range l.points {
			fmt.Fprintf(b, "%.1f,%.1f ", atX(p.x), atY(p.y))
		}
		b.WriteString("\"/>")
		for _, p := range l.points {
			fmt.Fprintf(b, `<circle cx="%.1f" cy="%.1f" r="2.5" fill="%s"/>`, atX(p.x), atY(p.y), color)
		}
		y := chartTop + plotHeight + 54
		fmt.Fprintf(b,
			"\n"+`<path d="M%d %dh14" stroke="%s" stroke-width="2"/><text x="%d" y="%d">%s</text>`+"\n", at,
			y-4, color, at+18, y, l.name)
		at += 34 + 6*len(l.name)
	}
}

// chartTables returns the numbers of the charts as tables in Markdown.
func chartTables(charts []chart) string {
	var b strings.Builder
	for _, c := range charts {
		fmt.Fprintf(&b, "| %s |", c.x)
		for _, l := range c.lines {
			fmt.Fprintf(&b, " %s, ns |", l.name)
		}
		b.WriteString("\n|---|" + strings.Repeat("---|", len(c.lines)) + "\n")
		for _, at := range c.xs() {
			fmt.Fprintf(&b, "| %s |", short(at))
			for _, l := range c.lines {
				text := ""
				for _, p := range l.points {
					if p.x == at {
						text = plain(p.y)
					}
				}
				b.WriteString(" " + text + " |")
			}
			b.WriteString("\n")
		}
		b.WriteString("\n")
	}
	return strings.TrimSpace(b.String())
}

// xs returns the values on the x axis, in order.
func (c *chart) xs() []float64 {
	var xs []float64
	for _, l := range c.lines {
		for _, p := range l.points {
			xs = append(xs, p.x)
		}
	}
	slices.Sort(xs)
	return slices.Compact(xs)
}

// short returns a number of things, such as 64k: of 1024 if it is a multiple of it.
func short(v float64) string {
	n, k := int64(v), int64(1000)
	if n%1024 == 0 {
		k = 1024
	}
	switch {
	case n >= k*k:
		return plain(v/float64(k*k)) + "M"
	case n >= k:
		return plain(v/float64(k)) + "k"
	}
	return plain(v)
}

// plain returns a number with three digits and no exponent.
func plain(v float64) string {
	v, _ = strconv.ParseFloat(number(v), 64)
	return strconv.FormatFloat(v, 'f', -1, 64)
}
