package report

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/input"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/chrome"
)

// marksScript returns the marks of episodes that are visible, in px from the upper left corner of the
// plot, and the bottom of the legend above it.
const marksScript = `(() => {
	const over = document.querySelector(".u-over").getBoundingClientRect();
	return {
		width: over.width, height: over.height,
		legend: document.querySelector("figure .legend").getBoundingClientRect().bottom - over.top,
		marks: [...document.querySelectorAll(".mark:not([hidden])")].map((m) => {
			const { left, right, top, bottom } = m.getBoundingClientRect();
			const [x, y] = [over.left, over.top];
			return { name: m.textContent, left: left - x, right: right - x, top: top - y, bottom: bottom - y };
		}),
	};
})()`

type marks struct {
	Width, Height, Legend float64
	Marks                 []mark
}

type mark struct {
	Name                     string
	Left, Right, Top, Bottom float64
}

// TestMarks zooms in several ways. Marks are above the plot and below the legend. None overlaps another
// one, each is in the lowest lane that is free, and the plot keeps its height.
func TestMarks(t *testing.T) {
	b := chrome.Open(t)
	d := burstSample(0)
	first := d.Episodes[0]
	d.Episodes = nil
	// ms after the start
	after := [][2]int64{{0, 4000}, {10, 10}, {500, 600}, {1000, 1900}, {3000, 7000}, {4105, 4106}}
	for _, ms := range after {
		e := first
		e.From, e.To = d.Start+ms[0]*1e6, d.Start+ms[1]*1e6
		d.Episodes = append(d.Episodes, e)
	}
	click := func(selector string) func() {
		return func() {
			chrome.Evaluate[bool](t, b, fmt.Sprintf(`document.querySelector(%q).click() || true`, selector))
			b.Settle(t)
		}
	}
	dispatch := func(event string) func() {
		return func() { chrome.Evaluate[bool](t, b, fmt.Sprintf(`dispatchEvent(new Event(%q))`, event)) }
	}
	b.Width(t, 1000)
	openPage(t, b, "marks", d)
	height := 0.0
	for _, step := range []struct {
		name string
		do   func()
		seen []string
	}{
		{"whole", func() {}, []string{"1", "2", "3", "4", "5", "6"}},
		{"dragged", func() { drag(t, b, 0.31, 0.35) }, []string{"1"}}, // 2.5 to 2.9 s of 8
		{"dragged again", func() { drag(t, b, 0.2, 0.8) }, []string{"1"}},
		{"all", click("button[data-whole]"), []string{"1", "2", "3", "4", "5", "6"}},
		{"episode 5", click(".mark:nth-of-type(5)"), []string{"1", "5", "6"}},
		{"narrow", func() { b.Width(t, 360) }, []string{"1", "5", "6"}},
		{"all, narrow", click("button[data-whole]"), []string{"1", "2", "3", "4", "5", "6"}},
		{"wide", func() { b.Width(t, 1000) }, []string{"1", "2", "3", "4", "5", "6"}},
		{"printed", dispatch("beforeprint"), []string{"1", "2", "3", "4", "5", "6"}},
		{"after printing", dispatch("afterprint"), []string{"1", "2", "3", "4", "5", "6"}},
	} {
		step.do()
		b.Settle(t)
		b.Shot(t, "marks-"+strings.ReplaceAll(step.name, " ", "-"))
		page := chrome.Evaluate[marks](t, b, marksScript)
		if height == 0 {
			height = page.Height
		}
		if page.Height != height {
			t.Errorf("%s: the plot is %v px high, want %v", step.name, page.Height, height)
		}
		var seen []string
		for _, m := range page.Marks {
			seen = append(seen, m.Name)
			if m.Bottom > 0 || m.Top < page.Legend || m.Left < -1 || m.Right > page.Width+1 {
				t.Errorf("%s: mark %+v is not between the legend at %v px and the plot", step.name, m,
					page.Legend)
			}
			below := map[float64]bool{}
			for _, other := range page.Marks {
				switch beside := m.Right <= other.Left || other.Right <= m.Left; {
				case other == m || beside:
				case m.Top == other.Top:
					t.Errorf("%s: marks %s and %s overlap", step.name, m.Name, other.Name)
				case other.Top > m.Top:
					below[other.Top] = true
				}
			}
			if lane := int(-m.Bottom / 20); len(below) != lane {
				t.Errorf("%s: mark %s is in lane %d, above %d others", step.name, m.Name, lane, len(below))
			}
		}
		if !slices.Equal(seen, step.seen) {
			t.Errorf("%s: got marks %v in view, want %v", step.name, seen, step.seen)
		}
	}
	b.Quiet(t)
}

func drag(t *testing.T, b *chrome.Tab, from, to float64) {
	b.Mouse(t, input.DispatchMouseEventTypeMouseMoved, from)
	b.Mouse(t, input.DispatchMouseEventTypeMousePressed, from)
	b.Mouse(t, input.DispatchMouseEventTypeMouseMoved, to)
	b.Mouse(t, input.DispatchMouseEventTypeMouseReleased, to)
}
