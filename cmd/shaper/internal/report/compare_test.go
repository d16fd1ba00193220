package report

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"image/png"
	"io"
	"strings"
	"testing"
)

// sampleComparison is what is offered in sample through a meter that passes all,
// one that passes half, and one that passes nothing.
func sampleComparison() Comparison {
	d := sample()
	c := Comparison{
		Input: d.Input, Version: d.Version, Start: d.Start, BinWidth: d.BinWidth,
		Offered: d.Offered[0], Window: second, Rate: "4mbit", Allowed: 500_000,
		Packets: d.Packets, Bytes: d.Bytes, Duration: d.Duration,
		Unmetered: Count{17, 1020}, Warnings: d.Warnings,
	}
	for i, name := range []string{"fixed-window", "token-bucket+warmup", "sliding-counter-2"} {
		m := Compared{
			Name: name, Params: "limit=500kB window=1s", Passed: make([]int64, len(c.Offered)),
			Worst: 1_000_000 / int64(i+1), Starved: int64(i) * 12_345_678, State: int64(32 << (4 * i)),
		}
		for j, n := range c.Offered {
			m.Passed[j] = n * int64(2-i) / 2
			m.Green = m.Green.plus(Count{1, m.Passed[j]})
			m.Dropped = m.Dropped.plus(Count{1, n - m.Passed[j]})
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

func picture(t *testing.T, c Comparison, format string) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := WritePicture(&b, c, format); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestBrowserCompare(t *testing.T) {
	b := newBrowser(t)
	c := sampleComparison()
	for _, tt := range []struct {
		name, scheme string
		px           int64
	}{{"light", "light", 1200}, {"dark", "dark", 1200}, {"narrow", "light", 360}} {
		t.Run(tt.name, func(t *testing.T) {
			b.scheme(t, tt.scheme, "")
			b.width(t, tt.px)
			b.load(t, "compare.html", comparisonPage(t, c))
			b.charts(t, len(c.Meters))
			b.fits(t)
			if got := evaluate[contrast](t, b, contrastScript); got.Contrast < 4.5 {
				t.Errorf("%q on %s has contrast %.2f, want 4.5 or more", got.Text, got.Back, got.Contrast)
			}
			b.shot(t, "compare-"+tt.name)
			b.quiet(t)
		})
	}
	t.Run("table", func(t *testing.T) {
		got := evaluate[[]string](t, b, `[...document.querySelectorAll("tbody tr")].map((r) => [...r.cells].map((c) => c.textContent).join(" "))`)
		want := "fixed-windowlimit=500kB window=1s " + fmt.Sprintf("300%s B100 %%", thousands(c.Meters[0].Green.Bytes)) +
			" 0 3000 B0 % 1,000,000 B2.00 × the rate 0 32 B"
		if len(got) != len(c.Meters) || got[0] != want {
			t.Errorf("the table is %q, want a first row %q", got, want)
		}
	})
	t.Run("svg", func(t *testing.T) {
		b.scheme(t, "light", "")
		b.width(t, 900)
		b.load(t, "compare.svg", string(picture(t, c, "svg")))
		// All text is within the picture.
		if out := evaluate[[]string](t, b, `(() => {
			const all = document.documentElement.getBoundingClientRect();
			return [...document.querySelectorAll("text")].filter((e) => {
				const r = e.getBoundingClientRect();
				return r.left < all.left || r.right > all.right || r.top < all.top || r.bottom > all.bottom;
			}).map((e) => e.textContent);
		})()`); len(out) > 0 {
			t.Errorf("outside the picture: %q", out)
		}
		if n := evaluate[int](t, b, `document.querySelectorAll("path").length`); n < 3*len(c.Meters) {
			t.Errorf("%d paths", n)
		}
		b.quiet(t)
	})
}

func TestPicture(t *testing.T) {
	c := sampleComparison()
	one := picture(t, c, "png")
	image, err := png.Decode(bytes.NewReader(one))
	if err != nil {
		t.Fatal(err)
	}
	colors := map[any]bool{}
	for y := range image.Bounds().Dy() {
		for x := range image.Bounds().Dx() {
			colors[image.At(x, y)] = true
		}
	}
	if size := image.Bounds().Size(); size.X < 1000 || size.Y < 400 || len(colors) < 5 {
		t.Errorf("%v with %d colors", size, len(colors))
	}
	if !bytes.Equal(one, picture(t, c, "png")) || !bytes.Equal(picture(t, c, "svg"), picture(t, c, "svg")) {
		t.Error("the same numbers give another picture")
	}

	c.Input, c.Rate, c.Meters[1].Name, c.Meters[1].Params = hostile, hostile, hostile, hostile
	c.Rate = "<b>"
	wellFormed(t, picture(t, c, "svg"))
	picture(t, c, "png")

	for _, c := range []Comparison{
		{Window: 1},
		{Window: 1, Meters: []Compared{{Name: "none"}}},
		{Window: 1, BinWidth: 1, Offered: []int64{0}, Meters: []Compared{{Passed: []int64{0}}}},
		{Window: 1, BinWidth: 1 << 60, Offered: []int64{1 << 60}, Allowed: 1 << 62, Meters: []Compared{{Passed: []int64{1 << 60}}}},
	} {
		wellFormed(t, picture(t, c, "svg"))
		picture(t, c, "png")
	}
	if err := WritePicture(io.Discard, c, "gif"); err == nil {
		t.Error("draws a gif")
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
			t.Errorf("the page holds %q", bad)
		}
	}
	if n := strings.Count(html, "<script"); n != 3 {
		t.Errorf("%d scripts, want 3", n)
	}
	empty := comparisonPage(t, Comparison{Window: 1})
	if strings.Contains(empty, "<script") || !strings.Contains(empty, "nothing to draw") {
		t.Error("the page of no packets has scripts, or does not say so")
	}
}

func TestCompareChecks(t *testing.T) {
	c := sampleComparison()
	c.BinWidth, c.Window = 0, 0
	c.Meters[1].Passed = c.Meters[1].Passed[1:]
	for _, err := range []error{WriteComparison(io.Discard, c), WritePicture(io.Discard, c, "svg")} {
		for _, want := range []string{"BinWidth is 0", "window is 0", `"token-bucket+warmup" has 299`} {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("error %v does not hold %q", err, want)
			}
		}
	}
}
