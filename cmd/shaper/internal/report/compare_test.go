package report

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/chrome"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

// sampleComparison is the offered traffic of sample through three meters: one passes
// everything, one half, and one nothing.
func sampleComparison() Comparison {
	d := sample()
	c := Comparison{
		Input: d.Input, Version: d.Version, Start: d.Start, BinWidth: d.BinWidth,
		Offered: d.Offered[0], Window: second, Rate: "4mbit", Allowed: 500_000,
		Packets: d.Packets, Bytes: d.Bytes, Duration: d.Duration,
		Unmetered: dataplane.Count{Packets: 17, Bytes: 1020}, Warnings: d.Warnings,
	}
	for i, name := range []string{"fixed-window", "token-bucket+warmup", "sliding-counter-2"} {
		m := Compared{
			Name: name, Params: "limit=500kB window=1s", Passed: make([]int64, len(c.Offered)),
			Worst: 1_000_000 / int64(i+1), Starved: int64(i) * 12_345_678, State: int64(32 << (4 * i)),
		}
		for j, n := range c.Offered {
			m.Passed[j] = n * int64(2-i) / 2
			m.Green = m.Green.Plus(dataplane.Count{Packets: 1, Bytes: m.Passed[j]})
			m.Dropped = m.Dropped.Plus(dataplane.Count{Packets: 1, Bytes: n - m.Passed[j]})
		}
		c.Meters = append(c.Meters, m)
	}
	return c
}

func comparisonPage(t *testing.T, c Comparison) string {
	t.Helper()
	var b strings.Builder
	if err := WriteComparison(&b, c); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func picture(t *testing.T, c Comparison) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := WritePicture(&b, c); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestBrowserCompare(t *testing.T) {
	b := chrome.Open(t)
	c := sampleComparison()
	for _, tt := range []struct {
		name, scheme string
		px           int64
	}{{"light", "light", 1200}, {"dark", "dark", 1200}, {"narrow", "light", 360}} {
		t.Run(tt.name, func(t *testing.T) {
			b.Scheme(t, tt.scheme, "")
			b.Width(t, tt.px)
			b.Load(t, "compare.html", comparisonPage(t, c))
			b.Charts(t, len(c.Meters))
			checkFits(t, b)
			if got := chrome.Evaluate[contrast](t, b, contrastScript); got.Contrast < 4.5 {
				t.Errorf("%q on %s has contrast %.2f, want 4.5 or more", got.Text, got.Back, got.Contrast)
			}
			b.Shot(t, "compare-"+tt.name)
			b.Quiet(t)
		})
	}
	t.Run("table", func(t *testing.T) {
		got := chrome.Evaluate[[]string](t, b,
			`[...document.querySelectorAll("tbody tr")].map((r) => [...r.cells].map((c) => c.textContent).join(" "))`)
		want := "fixed-windowlimit=500kB window=1s " +
			fmt.Sprintf("300%s B100 %%", say.Grouped(c.Meters[0].Green.Bytes)) +
			" 0 3000 B0 % 1,000,000 B2.00 × the rate 0 32 B"
		if len(got) != len(c.Meters) || got[0] != want {
			t.Errorf("the table is %q, want a first row %q", got, want)
		}
	})
	t.Run("svg", func(t *testing.T) {
		b.Scheme(t, "light", "")
		b.Width(t, 900)
		b.Load(t, "compare.svg", string(picture(t, c)))
		// All texts are within the picture.
		if out := chrome.Evaluate[[]string](t, b, `(() => {
			const all = document.documentElement.getBoundingClientRect();
			return [...document.querySelectorAll("text")].filter((e) => {
				const r = e.getBoundingClientRect();
				return r.left < all.left || r.right > all.right || r.top < all.top || r.bottom > all.bottom;
			}).map((e) => e.textContent);
		})()`); len(out) > 0 {
			t.Errorf("text outside the picture: %q", out)
		}
		// No text overlaps another one or a panel.
		if over := chrome.Evaluate[[]string](t, b, `(() => {
			const boxes = [...document.querySelectorAll("text, .grid")].map((e) => [e.getBoundingClientRect(), e.textContent]);
			const out = [];
			boxes.forEach(([a, text], i) => boxes.slice(i + 1).forEach(([b, other]) => {
				if (a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom && (text || other)) out.push(text + " and " + other);
			}));
			return out;
		})()`); len(over) > 0 {
			t.Errorf("texts that overlap: %q", over)
		}
		b.Quiet(t)
	})
}

func TestPicture(t *testing.T) {
	c := sampleComparison()
	one := picture(t, c)
	if !bytes.Equal(one, picture(t, c)) {
		t.Error("got different pictures of the same numbers")
	}
	for _, text := range []string{
		">office-uplink.pcapng through 3 meters<", ">offered<", ">passed<", ">rate 4mbit<", ">fixed-window<", ">limit=500kB window=1s<",
		">worst 1 s: 2.00 ×<", ">worst 1 s: 1.00 ×, starved 12.3 ms<", ">15 Mbit/s<", ">5 s<", ">time since 2026-03-01 12:00:00.123456 UTC<",
	} {
		if !strings.Contains(string(one), text) {
			t.Errorf("the picture contains no %q", text)
		}
	}
	if n := strings.Count(string(one), `<path class="limit"`); n != len(c.Meters) {
		t.Errorf("%d panels have the line of the rate, want %d", n, len(c.Meters))
	}

	c.Input, c.Rate, c.Meters[1].Name, c.Meters[1].Params = hostile, hostile, hostile, hostile
	c.Meters[0].Name = "control \x00\x1b\xff\ufffe characters"
	wellFormed(t, picture(t, c))

	for _, c := range []Comparison{
		{Window: 1},
		{Window: 1, Meters: []Compared{{Name: "none"}}},
		{Window: 1, BinWidth: 1, Offered: []int64{0}, Meters: []Compared{{Passed: []int64{0}}}},
		{Window: 1, BinWidth: 1 << 60, Offered: []int64{1 << 60}, Allowed: 1 << 62, Meters: []Compared{{Passed: []int64{1 << 60}}}},
	} {
		wellFormed(t, picture(t, c))
	}
}

// TestPictureShape compares the outline of a panel with numbers worked out by hand.
func TestPictureShape(t *testing.T) {
	svg := string(picture(t, Comparison{
		Input: "in", Window: second, BinWidth: second, Offered: []int64{1000, 1000, 0, 500},
		Meters: []Compared{{Name: "half", Passed: []int64{500, 500, 0, 500}}},
	}))
	// The axis ends 5 % above 8 kbit/s. Its longest label is 5 kbit/s, 38 pixels.
	for class, want := range map[string]string{
		"offered": "M52 95H455V156H656.5V125.5H858V156H52Z",
		"passed":  "M52 125.5H455V156H656.5V125.5H858V156H52Z",
	} {
		if !strings.Contains(svg, `<path class="`+class+`" d="`+want+`"/>`) {
			t.Errorf("got %s: want %s in\n%s", class, want, svg)
		}
	}
}

func wellFormed(t *testing.T, svg []byte) {
	t.Helper()
	for d := xml.NewDecoder(bytes.NewReader(svg)); ; {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			t.Fatal(err)
		}
	}
}

func TestCompareEscapes(t *testing.T) {
	c := sampleComparison()
	c.Input, c.Version, c.Rate, c.Warnings = hostile, hostile, hostile, []string{hostile}
	c.Meters[0].Name, c.Meters[0].Params = hostile, hostile
	html := comparisonPage(t, c)
	for _, bad := range []string{"<img", "<!--", "onerror=\""} {
		if strings.Contains(html, bad) {
			t.Errorf("the page contains %q", bad)
		}
	}
	if n := strings.Count(html, "<script"); n != 4 {
		t.Errorf("got %d scripts, want 4", n)
	}
	empty := comparisonPage(t, Comparison{Window: 1})
	if strings.Contains(empty, "<script") || !strings.Contains(empty, "nothing to draw") {
		t.Error("the page without packets has scripts, or no \"nothing to draw\"")
	}
}

func TestCompareChecks(t *testing.T) {
	c := sampleComparison()
	c.BinWidth, c.Window = 0, 0
	c.Meters[1].Passed = c.Meters[1].Passed[1:]
	for _, err := range []error{WriteComparison(io.Discard, c), WritePicture(io.Discard, c)} {
		for _, want := range []string{"BinWidth is 0", "window is 0", `"token-bucket+warmup" has 299`} {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("error %v does not hold %q", err, want)
			}
		}
	}
}
