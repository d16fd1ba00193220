package report

import (
	"bytes"
	"fmt"
	"image/color"
	"io"
	"math"
	"strconv"
	"strings"
	"time"

	xfont "golang.org/x/image/font"
	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
	"gonum.org/v1/plot/vg/vgsvg"
)

// The picture has a panel a meter, one under the other, on common axes.
const (
	pictureWidth = 660 * vg.Length(1) // points
	panelHeight  = 50
	caption      = 26 // above each panel
	above, below = 24, 30
	leftMargin   = 4
	rightMargin  = 10
	pictureDPI   = 144
	maxSeconds   = 14 // numbers on the time axis
)

// The light colors of page.css.
var (
	inkColor     = rgb(0x1b1f24)
	mutedColor   = rgb(0x535b64)
	lineColor    = rgb(0xd5d9de)
	offeredColor = rgb(0xcdd2d8)
	passedColor  = rgb(0x0a6ab0)
	rateColor    = rgb(0xa03f82)
	passedFill   = color.NRGBA{10, 106, 176, 90}
)

func rgb(c uint32) color.Color {
	return color.NRGBA{uint8(c >> 16), uint8(c >> 8), uint8(c), 255}
}

// fallback is what a viewer takes for the font of the picture, which has the
// same widths as Arial.
const (
	pictureFont = "font-family:Liberation Sans"
	fallback    = pictureFont + ",Arial,Helvetica,sans-serif"
)

// WritePicture draws what each meter let through over time, as svg or png.
func WritePicture(w io.Writer, c Comparison, format string) error {
	if err := c.check(); err != nil {
		return err
	}
	return writePicture(w, format, len(c.Meters), c.draw)
}

// writePicture has a picture of some panels drawn.
func writePicture(w io.Writer, format string, panels int, paint func(draw.Canvas)) error {
	size := vg.Length(above + below + panels*(panelHeight+caption))
	var err error
	switch format {
	case "png":
		canvas := vgimg.PngCanvas{Canvas: vgimg.NewWith(vgimg.UseWH(pictureWidth, size), vgimg.UseDPI(pictureDPI))}
		paint(draw.New(canvas))
		_, err = canvas.WriteTo(w)
	case "svg":
		canvas := &fitted{Canvas: vgsvg.New(pictureWidth, size)}
		paint(draw.New(canvas))
		err = canvas.write(w)
	default:
		err = fmt.Errorf("picture format %q is neither svg nor png", format)
	}
	if err != nil {
		return fmt.Errorf("report: %w", err)
	}
	return nil
}

// fitted is an SVG whose texts have the widths that they were laid out with,
// whatever font a viewer takes.
type fitted struct {
	*vgsvg.Canvas
	widths []vg.Length
}

func (f *fitted) FillString(face font.Face, at vg.Point, s string) {
	f.widths = append(f.widths, face.Width(s))
	f.Canvas.FillString(face, at, s)
}

func (f *fitted) write(w io.Writer) error {
	var svg bytes.Buffer
	if _, err := f.WriteTo(&svg); err != nil {
		return err
	}
	head, texts, _ := strings.Cut(strings.ReplaceAll(svg.String(), pictureFont, fallback), "<text ")
	out := bytes.NewBufferString(head)
	for i, text := range strings.Split(texts, "<text ") {
		fmt.Fprintf(out, `<text textLength="%.2f" lengthAdjust="spacingAndGlyphs" %s`, f.widths[i].Points(), text)
	}
	_, err := w.Write(out.Bytes())
	return err
}

// draw fills a canvas, top down.
func (c Comparison) draw(canvas draw.Canvas) {
	head := "bit/s that passed each meter; offered in gray"
	if c.Allowed > 0 {
		head += "; dotted: " + c.Rate
	}
	heading(canvas, c.Input, head)
	if len(c.Meters) == 0 || len(c.Offered) == 0 {
		at := canvas.Center()
		canvas.FillText(style(10, mutedColor, draw.XCenter, false), at, "no packet was metered")
		return
	}
	panels := make([]*plot.Plot, len(c.Meters))
	for i := range panels {
		panels[i] = c.panel(c.Meters[i])
	}
	places := stack(canvas, panels)
	for i, panel := range panels {
		c.caption(places[i], c.Meters[i])
		if i == len(panels)-1 {
			timeAxis(places[i], panel, time.Unix(0, c.Start).UTC().Format("since 2006-01-02 15:04:05.000000 UTC"))
		}
	}
}

// heading clears the canvas and writes the picture's name and legend.
func heading(canvas draw.Canvas, name, shows string) {
	canvas.SetColor(color.White)
	canvas.Fill(canvas.Rectangle.Path())
	at := vg.Point{X: canvas.Min.X + leftMargin, Y: canvas.Max.Y - 18}
	canvas.FillText(style(13, inkColor, draw.XLeft, true), at, name)
	at.X = canvas.Max.X - rightMargin
	canvas.FillText(style(9, mutedColor, draw.XRight, false), at, shows)
}

// stack draws panels below each other and returns their data areas.
func stack(canvas draw.Canvas, panels []*plot.Plot) []draw.Canvas {
	rows := make([][]*plot.Plot, len(panels))
	for i := range panels {
		rows[i] = panels[i : i+1]
	}
	tiles := draw.Tiles{
		Rows: len(rows), Cols: 1, PadY: caption,
		PadTop: above + caption, PadBottom: below, PadLeft: leftMargin, PadRight: rightMargin,
	}
	var data []draw.Canvas
	for i, places := range plot.Align(rows, tiles, canvas) {
		panels[i].Draw(places[0])
		data = append(data, panels[i].DataCanvas(places[0]))
	}
	return data
}

// rates is a plot of rates over so many seconds without the time axis. What is drawn
// before the grid is under it.
func rates(seconds, top float64, under []plot.Plotter, over ...plot.Plotter) *plot.Plot {
	p := plot.New()
	p.BackgroundColor = nil
	p.X.Padding, p.Y.Padding = 0, 0
	p.HideX()
	p.Y.LineStyle.Width = 0
	p.Y.Tick.LineStyle.Width = 0
	p.Y.Tick.Length = 2
	p.Y.Tick.Label = style(8, mutedColor, draw.XRight, false)
	p.Y.Tick.Label.YAlign = draw.YCenter
	p.Y.Tick.Marker = plot.TickerFunc(func(_, high float64) []plot.Tick {
		ticks := evenTicks(high, 3)
		for i := range ticks {
			ticks[i].Label = bitRate(ticks[i].Value)
		}
		return ticks
	})
	grid := plotter.NewGrid()
	grid.Horizontal = draw.LineStyle{Color: lineColor, Width: 0.5}
	p.Add(under...)
	p.Add(grid, secondLines{})
	p.Add(over...)
	p.X.Min, p.X.Max, p.Y.Min, p.Y.Max = 0, seconds, 0, top // Add may have moved them
	return p
}

// limit is a dotted line at a rate.
func limit(rate float64) plot.Plotter {
	line := plotter.NewFunction(func(float64) float64 { return rate })
	line.LineStyle = draw.LineStyle{Color: rateColor, Width: 1, Dashes: []vg.Length{1, 2}}
	return line
}

// panel is the plot of one meter.
func (c Comparison) panel(m Compared) *plot.Plot {
	over := []plot.Plotter{c.steps(m.Passed, passedFill, passedColor)}
	if rate := c.bitRate(); rate > 0 {
		over = append(over, limit(rate))
	}
	return rates(float64(len(c.Offered))*float64(c.BinWidth)/1e9, c.top(), []plot.Plotter{c.steps(c.Offered, offeredColor, nil)}, over...)
}

// top is the end of the common rate axis, in bit/s.
func (c Comparison) top() float64 {
	most := int64(1)
	for _, n := range c.Offered {
		most = max(most, n)
	}
	return max(float64(most)*8e9/float64(c.BinWidth), c.bitRate()) * 1.05
}

// steps are bytes a bin as a rate, each of which holds for its bin.
func (c Comparison) steps(bins []int64, fill, stroke color.Color) *plotter.Line {
	width := float64(c.BinWidth) / 1e9
	values := make([]float64, len(bins))
	for i, n := range bins {
		values[i] = float64(n) * 8 / width
	}
	return steps(values, width, fill, stroke)
}

// steps are values each of which holds for some seconds.
func steps(values []float64, width float64, fill, stroke color.Color) *plotter.Line {
	points := make(plotter.XYs, len(values)+1)
	for i, v := range values {
		points[i] = plotter.XY{X: float64(i) * width, Y: v}
	}
	points[len(values)] = plotter.XY{X: float64(len(values)) * width, Y: points[len(values)-1].Y}
	line := &plotter.Line{XYs: points, StepStyle: plotter.PostStep, FillColor: fill}
	if stroke != nil {
		line.LineStyle = draw.LineStyle{Color: stroke, Width: 1}
	}
	return line
}

// caption says above a panel which meter it is, and what it did.
func (c Comparison) caption(data draw.Canvas, m Compared) {
	did := "worst " + duration(c.Window) + ": " + thousands(m.Worst) + " B"
	if times := c.times(m.Worst); times != "" {
		did = "worst " + duration(c.Window) + ": " + times
	}
	if m.Starved > 0 {
		did += ", starved " + brief(m.Starved)
	}
	captionOf(data, m.Name, m.Params, did)
}

// captionOf writes a panel's name, description and result above it.
func captionOf(data draw.Canvas, what, more, did string) {
	at := vg.Point{X: data.Min.X, Y: data.Max.Y + 5}
	name := style(10, inkColor, draw.XLeft, true)
	data.FillText(name, at, what)
	at.X += name.Width(what) + 6
	data.FillText(style(9, mutedColor, draw.XLeft, false), at, more)
	at.X = data.Max.X
	data.FillText(style(9, inkColor, draw.XRight, false), at, did)
}

// evenTicks are multiples of 1, 2 or 5 times a power of ten from 0 up to high,
// at most so many beside 0.
func evenTicks(high float64, most int) []plot.Tick {
	step := math.Pow(10, math.Floor(math.Log10(high))-2)
	for i := 0; high/step >= float64(most+1); i++ {
		step *= []float64{2, 2.5, 2}[i%3]
	}
	var ticks []plot.Tick
	for i := 0; float64(i)*step <= high; i++ {
		at := float64(i) * step
		ticks = append(ticks, plot.Tick{Value: at, Label: strconv.FormatFloat(at, 'g', 4, 64)})
	}
	return ticks
}

// secondLines are the vertical lines of the grid: the panels' own axis is hidden.
type secondLines struct{}

func (secondLines) Plot(data draw.Canvas, p *plot.Plot) {
	for _, tick := range evenTicks(p.X.Max, maxSeconds) {
		x := data.X(p.X.Norm(tick.Value))
		data.StrokeLine2(draw.LineStyle{Color: lineColor, Width: 0.5}, x, data.Min.Y, x, data.Max.Y)
	}
}

// timeAxis writes seconds under the last panel.
func timeAxis(data draw.Canvas, p *plot.Plot, since string) {
	for _, tick := range evenTicks(p.X.Max, maxSeconds) {
		at := vg.Point{X: data.X(p.X.Norm(tick.Value)), Y: data.Min.Y - 12}
		data.FillText(style(8, mutedColor, draw.XCenter, false), at, tick.Label+" s")
	}
	data.FillText(style(8, mutedColor, draw.XRight, false), vg.Point{X: data.Max.X, Y: data.Min.Y - 24}, since)
}

// bitRate is bit/s with three digits.
func bitRate(v float64) string {
	prefix := ""
	for _, p := range []string{"k", "M", "G", "T"} {
		if v < 1000 {
			break
		}
		v, prefix = v/1000, p
	}
	return strconv.FormatFloat(v, 'g', 3, 64) + prefix
}

func style(size float64, c color.Color, x text.XAlignment, bold bool) text.Style {
	f := font.Font{Typeface: "Liberation", Variant: "Sans", Size: vg.Length(size)}
	if bold {
		f.Weight = xfont.WeightBold
	}
	return text.Style{Color: c, Font: f, XAlign: x, YAlign: draw.YBottom, Handler: plot.DefaultTextHandler}
}
