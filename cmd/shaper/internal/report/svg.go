package report

import (
	"strconv"
	"strings"
)

// svg is a picture. Lengths are in pixels from the top left corner.
type svg struct{ document }

// px is a length in pixels, which is written with one decimal.
type px float64

func (p px) String() string {
	return strings.TrimSuffix(strconv.FormatFloat(float64(p), 'f', 1, 64), ".0")
}

const fontSize = px(12)

// begin writes the root element with the styles, and a white background: the picture must
// be readable on a dark page.
func (s *svg) begin(width, height px, title string) {
	s.printf(`<svg xmlns="http://www.w3.org/2000/svg" width="%v" height="%v" viewBox="0 0 %[1]v %[2]v" role="img">
<title>%s</title>
<style>%s</style>
<rect width="100%%" height="100%%" fill="#fff"/>
`, width, height, title, markup(pictureCSS))
}

func (s *svg) end() { s.printf("</svg>\n") }

// The colors are those of page.css in light mode. Offered, passed and limit
// differ in lightness and form too, for people who cannot tell hues apart.
const pictureCSS = `
text { font: 12px Liberation Sans, Arial, Helvetica, sans-serif; fill: #1b1f24; white-space: pre; }
.title { font-size: 17px; font-weight: bold; }
.name { font-weight: bold; }
.note { fill: #535b64; }
.grid { stroke: #d5d9de; stroke-width: .7; fill: none; }
.offered { fill: #cdd2d8; }
.passed { fill: #0a6ab0; fill-opacity: .35; stroke: #0a6ab0; stroke-width: 1.3; }
.line { fill: none; stroke: #0a6ab0; stroke-width: 1.3; }
.limit { fill: none; stroke: #a03f82; stroke-width: 1.6; stroke-dasharray: 2 3; }
.event-name { font-size: 11px; fill: #535b64; }
.event { fill: none; stroke: #a03f82; stroke-width: .7; }
`

// anchor is the point of a text that lies at its position.
type anchor string

const (
	left   anchor = "start"
	middle anchor = "middle"
	right  anchor = "end"
)

// text writes a line of text on a baseline, in a class of the style sheet. Its width is the result
// of textWidth, whatever font the viewer uses.
func (s *svg) text(x, y px, at anchor, class, text string) {
	if text == "" {
		return
	}
	s.printf(`<text x="%v" y="%v" text-anchor="%s" class="%s" textLength="%v" lengthAdjust="spacingAndGlyphs">%s</text>`+"\n",
		x, y, string(at), class, textWidth(class, text), text)
}

// fitted shortens a text to a maximum width.
func fitted(class, text string, width px) string {
	if textWidth(class, text) <= width {
		return text
	}
	const cut = "…"
	runes := []rune(text)
	for len(runes) > 0 && textWidth(class, string(runes)+cut) > width {
		runes = runes[:len(runes)-1]
	}
	if len(runes) == 0 {
		return ""
	}
	return string(runes) + cut
}

// textWidth is the width of a text in Liberation Sans or Arial.
func textWidth(class, text string) px {
	size, bold := fontSize, px(1)
	switch class {
	case "title":
		size, bold = 17, 1.08
	case "name":
		bold = 1.08
	case "event-name":
		size = 11
	}
	sum := 0
	for _, r := range text {
		sum += glyphWidth(r)
	}
	return px(sum) / 1000 * size * bold
}

// glyphWidths are the widths of the characters from space to tilde, in 1/1000 of the font
// size.
var glyphWidths = [...]int16{
	278, 278, 355, 556, 556, 889, 667, 191, 333, 333, 389, 584, 278, 333, 278, 278,
	556, 556, 556, 556, 556, 556, 556, 556, 556, 556, 278, 278, 584, 584, 584, 556,
	1015, 667, 667, 722, 722, 667, 611, 778, 722, 278, 500, 667, 556, 833, 722, 778,
	667, 778, 722, 667, 611, 722, 667, 944, 667, 667, 611, 278, 278, 278, 469, 556,
	333, 556, 556, 500, 556, 556, 278, 556, 556, 222, 222, 500, 222, 833, 556, 556,
	556, 556, 333, 500, 278, 556, 500, 722, 500, 500, 500, 334, 260, 334, 584,
}

func glyphWidth(r rune) int {
	switch {
	case r >= ' ' && int(r-' ') < len(glyphWidths):
		return int(glyphWidths[r-' '])
	case r < 0x370: // about right for most Latin letters
		return 580
	}
	return 1000
}

// steps returns the path of a step function from x on. Each value is step wide; y maps a
// value to a height.
func steps(x, step px, values []float64, y func(float64) px) string {
	var path strings.Builder
	last := ""
	for i, v := range values {
		at := y(v).String()
		switch {
		case i == 0:
			path.WriteString("M" + x.String() + " " + at)
		case at != last:
			path.WriteString("H" + (x + px(i)*step).String() + "V" + at)
		}
		last = at
	}
	path.WriteString("H" + (x + px(len(values))*step).String())
	return path.String()
}
