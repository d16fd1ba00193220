package report

import (
	"io"
	"slices"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"
)

// A picture consists of panels, one below the other, on a common time axis. Lengths are in pixels.
const (
	pictureWidth = 880
	sideMargin   = 8
	rightMargin  = 22 // half of the last label of the time axis
	headHeight   = 58 // title and key
	captionSpace = 34 // above each panel
	eventRow     = 13 // names of events above a panel
	eventRows    = 2
	panelHeight  = 64
	axisHeight   = 46 // below the last panel
	tickCount    = 12 // most labels on the time axis
	levelCount   = 3  // most labels on a rate axis
	headroom     = 1.05
)

// figure is a picture while it is drawn.
type figure struct {
	svg
	seconds     float64 // length of the time axis
	left, width px      // of the panels
}

// panel is one diagram.
type panel struct {
	name, more, result string  // the caption
	top                float64 // end of the axis, bit/s or s
	units              []unit  // of the axis; nil: rates
	events             []Mark  // vertical lines
	named              bool    // name the events above the panel
	under, over        func(p *panel)

	figure *figure
	y      px // upper edge
}

// key is an entry of the key: a sample of a class of the style sheet, and its
// meaning.
type key struct {
	class, text string
}

// drawPicture draws a whole picture. since describes the origin of the time axis. Without panels or
// bins, the picture shows only the text empty.
func drawPicture(title, since, empty string, keys []key, bins int, seconds float64, panels []panel) *figure {
	f := &figure{seconds: seconds}
	if bins == 0 || len(panels) == 0 {
		f.begin(pictureWidth, headHeight+panelHeight, title)
		f.heading(title, nil)
		f.text(pictureWidth/2, headHeight+panelHeight/2, middle, "note", empty)
		f.end()
		return f
	}
	ticks := make([][]tick, len(panels))
	for i := range panels {
		units := panels[i].units
		if units == nil {
			units = rateUnits
		}
		ticks[i] = ticksTo(panels[i].top, units, levelCount)
		for _, t := range ticks[i] {
			f.left = max(f.left, sideMargin+textWidth("note", t.label)+6)
		}
	}
	f.width = pictureWidth - rightMargin - f.left
	bottom := px(headHeight)
	for i := range panels {
		p := &panels[i]
		if p.figure, bottom = f, bottom+captionSpace; p.named {
			bottom += eventRows * eventRow
		}
		p.y, bottom = bottom, bottom+panelHeight
	}
	f.begin(pictureWidth, bottom+axisHeight, title)
	f.heading(title, keys)
	times := ticksTo(seconds, timeUnits, tickCount)
	for i := range panels {
		p := &panels[i]
		p.caption()
		if p.under != nil {
			p.under(p)
		}
		p.grid(ticks[i], times)
		p.over(p)
		p.drawEvents()
	}
	for _, t := range times {
		f.text(f.x(t.at), bottom+18, middle, "note", t.label)
	}
	f.text(f.left+f.width, bottom+36, right, "note", since)
	f.end()
	return f
}

// heading writes the title and, below it, the key.
func (f *figure) heading(title string, keys []key) {
	f.text(sideMargin, 24, left, "title", fitted("title", title, pictureWidth-2*sideMargin))
	x := px(sideMargin)
	for _, k := range keys {
		const sample, y = 22, 44
		switch k.class {
		case "offered", "passed":
			f.printf(`<rect x="%v" y="%d" width="%d" height="10" class="%s"/>`+"\n", x, y-9, sample, k.class)
		default:
			f.printf(`<path d="M%v %dh%d" class="%s"/>`+"\n", x, y-4, sample, k.class)
		}
		x += sample + 6
		text := fitted("note", k.text, pictureWidth-sideMargin-x)
		f.text(x, y, left, "note", text)
		x += textWidth("note", text) + 20
	}
}

// x returns the position of a time in seconds.
func (f *figure) x(seconds float64) px { return f.left + f.width*px(seconds/f.seconds) }

// height returns the position of a rate in bit/s.
func (p *panel) height(rate float64) px { return p.y + panelHeight*px(1-rate/p.top) }

// caption writes the panel's name, description and result above it.
func (p *panel) caption() {
	f, y := p.figure, p.y-10
	if p.named {
		y -= eventRows * eventRow
	}
	end := f.left + f.width
	result := fitted("", p.result, f.width/2)
	f.text(end, y, right, "", result)
	room := f.width - textWidth("", result) - 24
	name := fitted("name", p.name, room)
	f.text(f.left, y, left, "name", name)
	used := textWidth("name", name) + 10
	f.text(f.left+used, y, left, "note", fitted("note", p.more, room-used))
}

// grid draws the lines of both axes and the labels of the rate axis.
func (p *panel) grid(rates, times []tick) {
	f := p.figure
	f.printf(`<path class="grid" d="`)
	for _, t := range rates {
		f.printf("M%v %vh%v", f.left, p.height(t.at), f.width)
	}
	for _, t := range times {
		f.printf("M%v %vv%d", f.x(t.at), p.y, panelHeight)
	}
	f.printf(`"/>` + "\n")
	for _, t := range rates {
		f.text(f.left-6, p.height(t.at)+4, right, "note", t.label)
	}
}

// area fills the space below values, one per bin. Its upper edge is a line if the class defines a
// stroke.
func (p *panel) area(class string, values []float64) {
	f := p.figure
	path := steps(f.left, f.width/px(len(values)), values, p.height)
	f.printf(`<path class="%s" d="%sV%vH%vZ"/>`+"\n", class, path, p.height(0), f.left)
}

// line draws values, one per bin.
func (p *panel) line(class string, values []float64) {
	f := p.figure
	f.printf(`<path class="%s" d="%s"/>`+"\n", class,
		steps(f.left, f.width/px(len(values)), values, p.height))
}

// band fills the space between two lines.
func (p *panel) band(class string, low, high []float64) {
	f := p.figure
	step := f.width / px(len(low))
	back := slices.Clone(low)
	slices.Reverse(back)
	// The lower line is drawn backwards from the end of the upper one.
	f.printf(`<path class="%s" d="%s%sZ"/>`+"\n", class, steps(f.left, step, high, p.height),
		"L"+steps(f.left+f.width, -step, back, p.height)[1:])
}

// limit draws a rate, unless it is 0.
func (p *panel) limit(rate float64) {
	if rate > 0 {
		p.figure.printf(`<path class="limit" d="M%v %vh%v"/>`+"\n", p.figure.left, p.height(rate),
			p.figure.width)
	}
}

// drawEvents draws a line for each event, and its name if a row leaves room.
func (p *panel) drawEvents() {
	f := p.figure
	var free [eventRows]px // beginning of the free space of each row
	for _, e := range p.events {
		x := f.x(e.At)
		f.printf(`<path class="event" d="M%v %vv%d"/>`+"\n", x, p.y, panelHeight)
		end := x + textWidth("event-name", e.What)
		if !p.named || end > pictureWidth {
			continue
		}
		for row := range free {
			if x >= free[row] {
				f.text(x, p.y-4-px(row*eventRow), left, "event-name", e.What)
				free[row] = end + 4
				break
			}
		}
	}
}

// WritePicture draws the rate passed by each meter over time, as SVG.
func WritePicture(w io.Writer, c Comparison) error {
	if err := c.check(); err != nil {
		return err
	}
	return c.draw().writeTo(w)
}

func (c Comparison) draw() *figure {
	width := float64(c.BinWidth) / 1e9
	rates := func(bins []int64) []float64 {
		out := make([]float64, len(bins))
		for i, n := range bins {
			out[i] = float64(n) * 8 / width
		}
		return out
	}
	offered := rates(c.Offered)
	top := max(1, c.bitRate(), slices.Max(append(offered, 0))) * headroom
	keys := []key{{"offered", "offered"}, {"passed", "passed"}}
	if c.Allowed > 0 {
		keys = append(keys, key{"limit", "rate " + c.Rate})
	}
	panels := make([]panel, len(c.Meters))
	for i, m := range c.Meters {
		panels[i] = panel{
			name: m.Name, more: m.Params, result: c.result(m), top: top,
			under: func(p *panel) { p.area("offered", offered) },
			over:  func(p *panel) { p.area("passed", rates(m.Passed)); p.limit(c.bitRate()) },
		}
	}
	since := time.Unix(0, c.Start).UTC().Format("time since 2006-01-02 15:04:05.000000 UTC")
	return drawPicture(c.title(), since, "no packet was metered", keys, len(offered),
		float64(len(offered))*width, panels)
}

// result summarizes the result of a meter.
func (c Comparison) result(m Compared) string {
	worst := c.times(m.Worst)
	if worst == "" {
		worst = say.Grouped(m.Worst) + " B"
	}
	text := "worst " + duration(c.Window) + ": " + worst
	if m.Starved > 0 {
		text += ", starved " + brief(m.Starved)
	}
	return text
}
