package report

import (
	"errors"
	"fmt"
	"io"
	"math"
	"slices"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"
)

// Frontier is the loss of a policer by its burst.
type Frontier struct {
	Input, Rate string
	Bursts      []int64   // bytes, above zero and rising
	Loss        []float64 // part of the packets, 0 to 1
}

// WriteFrontier draws the loss over the burst, as SVG. The axis of the burst is logarithmic.
func WriteFrontier(w io.Writer, f Frontier) error {
	bad := len(f.Bursts) != len(f.Loss)
	for i, last := 0, int64(0); i < len(f.Bursts); i++ {
		bad = bad || f.Bursts[i] <= last
		last = f.Bursts[i]
	}
	if bad {
		return errors.New("report: a frontier needs rising bursts, each with a loss")
	}
	return f.draw().writeTo(w)
}

const (
	frontierHeight = 240
	percentTicks   = 5
)

func (f Frontier) draw() *svg {
	s := &svg{}
	title := fmt.Sprintf("%s: loss of a policer of %s", f.Input, f.Rate)
	const bottom = headHeight + frontierHeight
	s.begin(pictureWidth, bottom+axisHeight, title)
	s.text(sideMargin, 24, left, "title", fitted("title", title, pictureWidth-2*sideMargin))
	if len(f.Bursts) == 0 {
		s.text(pictureWidth/2, headHeight+frontierHeight/2, middle, "note", "no packet was metered")
		s.end()
		return s
	}
	top := max(slices.Max(f.Loss)*100, 0.01) * headroom
	ticks := ticksTo(top, []unit{{"%", 1, 0}}, percentTicks)
	start := px(sideMargin)
	for _, t := range ticks {
		start = max(start, sideMargin+textWidth("note", t.label)+6)
	}
	width := pictureWidth - rightMargin - start
	low, high := math.Log2(float64(f.Bursts[0])), math.Log2(float64(f.Bursts[len(f.Bursts)-1]))
	x := func(burst float64) px { return start + width*px((math.Log2(burst)-low)/max(high-low, 0.01)) }
	y := func(percent float64) px { return headHeight + frontierHeight*px(1-percent/top) }
	for _, t := range ticks {
		s.printf(`<path class="grid" d="M%v %vh%v"/>`+"\n", start, y(t.at), width)
		s.text(start-6, y(t.at)+4, right, "note", t.label)
	}
	step := max(1, math.Ceil((high-low)/10)) // doublings between labels
	for e := math.Ceil(low); e <= high; e += step {
		burst := math.Exp2(e)
		s.printf(`<path class="grid" d="M%v %dv%d"/>`+"\n", x(burst), headHeight, frontierHeight)
		s.text(x(burst), bottom+18, middle, "note", say.Bytes(int64(burst)))
	}
	for i, b := range f.Bursts {
		if i == 0 {
			s.printf(`<path class="line" d="M%v %v`, x(float64(b)), y(f.Loss[i]*100))
			continue
		}
		s.printf("L%v %v", x(float64(b)), y(f.Loss[i]*100))
	}
	s.printf(`"/>` + "\n")
	last := f.Bursts[len(f.Bursts)-1]
	s.text(start+width, bottom+36, right, "note",
		fmt.Sprintf("burst; packets dropped. No loss from %s bytes", say.Grouped(last)))
	s.end()
	return s
}
