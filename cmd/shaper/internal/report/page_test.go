package report

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	"github.com/chromedp/cdproto/input"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

// inkScript counts, for every canvas, the colors and the pixels that differ from the most
// frequent color.
const inkScript = `[...document.querySelectorAll("figure")].map((figure) => {
	const canvas = figure.querySelector("canvas");
	if (!canvas || !canvas.width || !canvas.height) return { chart: figure.dataset.chart, width: 0, ink: 0, colors: 0 };
	const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d", { willReadFrequently: true });
	copy.drawImage(canvas, 0, 0);
	const pixels = new Uint32Array(copy.getImageData(0, 0, canvas.width, canvas.height).data.buffer);
	const count = new Map();
	for (const p of pixels) count.set(p, (count.get(p) || 0) + 1);
	return {
		chart: figure.dataset.chart, width: canvas.getBoundingClientRect().width,
		ink: pixels.length - Math.max(...count.values()), colors: count.size,
	};
})`

type chartInk struct {
	Chart       string
	Width       float64
	Ink, Colors int
}

// contrastScript returns the lowest WCAG 2 contrast of any text in the page, and that text.
const contrastScript = `(() => {
	const parse = (s) => s.match(/[\d.]+/g).map(Number);
	const light = ([r, g, b]) => [r, g, b].map((v) => v / 255)
		.map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
		.reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
	const behind = (e) => {
		for (; e; e = e.parentElement) {
			const c = parse(getComputedStyle(e).backgroundColor);
			if (c.length < 4 || c[3] === 1) return c;
		}
	};
	let worst = { contrast: 99, text: "" };
	const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
	while (walk.nextNode()) {
		const e = walk.currentNode.parentElement;
		if (!walk.currentNode.data.trim() || /SCRIPT|STYLE/.test(e.tagName)) continue;
		const [a, b] = [light(parse(getComputedStyle(e).color)), light(behind(e))];
		const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
		if (contrast < worst.contrast) worst = { contrast, text: walk.currentNode.data };
	}
	return { ...worst, back: getComputedStyle(document.body).backgroundColor };
})()`

type contrast struct {
	Contrast   float64
	Text, Back string
}

func (b *browser) charts(t *testing.T, want int) {
	t.Helper()
	inks := evaluate[[]chartInk](t, b, inkScript)
	if len(inks) != want {
		t.Errorf("got %d charts, want %d", len(inks), want)
	}
	for i, c := range inks {
		if c.Width < 200 || c.Ink < 500 || c.Colors < 3 {
			t.Errorf("chart %d (%s): got a width of %v px and %d drawn pixels in %d colors", i, c.Chart, c.Width, c.Ink, c.Colors)
		}
	}
}

func (b *browser) checkFits(t *testing.T) {
	t.Helper()
	if over := evaluate[int](t, b, `document.documentElement.scrollWidth - innerWidth`); over > 0 {
		t.Errorf("the page is %d px wider than the window, want 0", over)
	}
}

func TestBrowser(t *testing.T) {
	b := newBrowser(t)
	d := sample()

	t.Run("sample", func(t *testing.T) {
		b.scheme(t, "light", "")
		b.width(t, 1400)
		b.openPage(t, "sample", d)
		b.charts(t, 2+len(d.Meters)+2*len(d.Queues))
		b.checkFits(t)
		b.cells(t, d)
		b.shot(t, "light")

		light := evaluate[contrast](t, b, contrastScript)
		before := evaluate[string](t, b, `document.querySelector("canvas").toDataURL()`)
		b.scheme(t, "dark", "")
		dark := evaluate[contrast](t, b, contrastScript)
		if light.Back == dark.Back {
			t.Errorf("got background %s for both light and dark", light.Back)
		}
		for _, c := range []contrast{light, dark} {
			if c.Contrast < 4.5 {
				t.Errorf("%q on %s has contrast %.2f, want 4.5 or more", c.Text, c.Back, c.Contrast)
			}
		}
		if evaluate[string](t, b, `document.querySelector("canvas").toDataURL()`) == before {
			t.Error("the charts kept their colors when the color scheme changed")
		}
		b.shot(t, "dark")
		b.quiet(t)
	})

	t.Run("narrow", func(t *testing.T) {
		b.width(t, 360) // makes the wide page narrow
		b.charts(t, 2+len(d.Meters)+2*len(d.Queues))
		b.checkFits(t)
		b.shot(t, "narrow-dark")
		b.scheme(t, "light", "")
		b.openPage(t, "narrow", d)
		b.charts(t, 2+len(d.Meters)+2*len(d.Queues))
		b.checkFits(t)
		b.cells(t, d)
		b.shot(t, "narrow")
		b.quiet(t)
	})

	t.Run("cursor", func(t *testing.T) {
		b.width(t, 1400)
		b.openPage(t, "cursor", d)
		const legends = `[...document.querySelectorAll("figure")].map((f) => f.querySelector(".when").textContent)`
		idle := evaluate[[]string](t, b, legends)
		b.mouse(t, input.DispatchMouseEventTypeMouseMoved, 152.5/sampleBins)
		for i, when := range evaluate[[]string](t, b, legends) {
			if when != "at 15.2 s" || idle[i] == when {
				t.Errorf("chart %d: got legend %q with the cursor, %q without", i, when, idle[i])
			}
		}
		got := evaluate[string](t, b, `document.querySelector("figure .legend b").textContent`)
		rate := float64(d.Offered[0][152]) * 8 / (float64(sampleBin) / 1e9)
		if want := fmt.Sprintf("%.3g Mbit/s", rate/1e6); got != want {
			t.Errorf("green under the cursor is %q, want %q", got, want)
		}
		b.shot(t, "cursor")
		b.quiet(t)
	})

	t.Run("zoom", func(t *testing.T) {
		b.openPage(t, "zoom", d)
		const canvases = `[...document.querySelectorAll("canvas")].map((c) => c.toDataURL())`
		before := evaluate[[]string](t, b, canvases)
		b.mouse(t, input.DispatchMouseEventTypeMouseMoved, 0.35)
		b.mouse(t, input.DispatchMouseEventTypeMousePressed, 0.35)
		b.mouse(t, input.DispatchMouseEventTypeMouseMoved, 0.5)
		b.mouse(t, input.DispatchMouseEventTypeMouseReleased, 0.5)
		for i, c := range evaluate[[]string](t, b, canvases) {
			if c == before[i] {
				t.Errorf("chart %d did not zoom with the first one", i)
			}
		}
		b.shot(t, "zoom")
		b.quiet(t)
	})

	t.Run("print", func(t *testing.T) {
		b.scheme(t, "dark", "print")
		b.width(t, 688) // A4 within the page margins
		b.openPage(t, "print", d)
		evaluate[bool](t, b, `dispatchEvent(new Event("beforeprint"))`)
		b.settle(t)
		b.charts(t, 2+len(d.Meters)+2*len(d.Queues))
		b.checkFits(t)
		if c := evaluate[contrast](t, b, contrastScript); c.Back != "rgb(255, 255, 255)" || c.Contrast < 4.5 {
			t.Errorf("on paper: got %+v, want white and a contrast of 4.5 or more", c)
		}
		b.shot(t, "print")
		evaluate[bool](t, b, `dispatchEvent(new Event("afterprint"))`)
		b.scheme(t, "light", "")
		b.quiet(t)
	})

	t.Run("single bin", func(t *testing.T) {
		b.width(t, 1000)
		b.openPage(t, "single", singleBin())
		b.charts(t, 5)
		b.checkFits(t)
		b.shot(t, "single")
		b.quiet(t)
	})

	t.Run("empty", func(t *testing.T) {
		b.openPage(t, "empty", Data{Input: "empty.pcap", Policy: "uplink.toml", Version: "1.0.0"})
		b.charts(t, 0)
		b.checkFits(t)
		b.shot(t, "empty")
		b.quiet(t)
	})

	t.Run("large", func(t *testing.T) {
		d := sample()
		for i := range d.Classes {
			c := &d.Classes[i]
			for _, n := range []*dataplane.Count{&c.Green, &c.Yellow, &c.Red, &c.Dropped, &c.Marked, &c.Queued} {
				*n = dataplane.Count{Packets: 333_333_333, Bytes: 333_333_333_333}
			}
		}
		d.Packets, d.Bytes, d.Duration = 4_000_000_000, 4_000_000_000_000, 100*3600*second+1
		for i := range d.Offered {
			for j := range d.Offered[i] {
				d.Offered[i][j] *= 100_000
			}
		}
		b.openPage(t, "large", d)
		for _, px := range []int64{1400, 900, 360} {
			b.width(t, px)
			b.charts(t, 2+len(d.Meters)+2*len(d.Queues))
			b.checkFits(t)
			if em := evaluate[float64](t, b, `document.querySelector("tbody th").clientWidth / 15`); em < 8 {
				t.Errorf("at %d px: got class names of %.1f em, want 8 or more", px, em)
			}
			b.shot(t, fmt.Sprintf("large-%d", px))
		}
		b.quiet(t)
	})

	t.Run("hostile", func(t *testing.T) {
		b.width(t, 360)
		d := hostileSample()
		b.openPage(t, "hostile", d)
		b.charts(t, 2+len(d.Meters)+2*len(d.Queues))
		b.checkFits(t)
		if got := evaluate[string](t, b, `document.querySelector("h1").textContent`); got != hostile {
			t.Errorf("heading %q, want %q", got, hostile)
		}
		if got := evaluate[int](t, b, `document.querySelectorAll("img, body script:not([type])").length`); got != 2 {
			t.Errorf("got %d images and scripts, want the 2 scripts of the page", got)
		}
		b.shot(t, "hostile")
		b.quiet(t)
	})

	// A page could not load anything.
	t.Run("policy", func(t *testing.T) {
		var mu sync.Mutex
		hits := 0
		server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			mu.Lock()
			hits++
			mu.Unlock()
		}))
		defer server.Close()
		b.openPage(t, "policy", d)
		tried := evaluate[string](t, b, fmt.Sprintf(`(async () => {
			const image = new Image();
			const refused = new Promise((done) => image.onerror = () => done("image "));
			image.src = %[1]q;
			const script = document.createElement("script");
			script.textContent = "window.ran = true";
			document.body.append(script);
			const fetched = await fetch(%[1]q).then(() => "", () => "fetch ");
			return await refused + fetched + (window.ran ? "" : "script");
		})()`, server.URL))
		if tried != "image fetch script" {
			t.Errorf("the policy refused %q, want image, fetch and script", tried)
		}
		mu.Lock()
		defer mu.Unlock()
		if hits > 0 {
			t.Errorf("got %d requests from the page, want 0", hits)
		}
	})
}

// cells compares the table with d.
func (b *browser) cells(t *testing.T, d Data) {
	t.Helper()
	got := evaluate[[][]string](t, b, `[...document.querySelector("tbody").rows].map((r) =>
		[r.cells[0].firstChild.data, ...[...r.querySelectorAll("td")].map((c) => [...c.children].map((e) => e.textContent).join("|"))])`)
	if len(got) != len(d.Classes) {
		t.Fatalf("got %d rows, want %d", len(got), len(d.Classes))
	}
	for i, c := range d.Classes {
		total := c.total()
		if got[i][0] != c.Name {
			t.Errorf("row %d is %q, want %q", i, got[i][0], c.Name)
		}
		for j, n := range []dataplane.Count{total, c.Green, c.Yellow, c.Red, c.Dropped, c.Marked, c.Queued} {
			want := say.Grouped(n.Packets) + "|" + say.Grouped(n.Bytes) + " B|" + percent(n.Bytes, total.Bytes)
			if n.Packets == 0 {
				want = "0"
			}
			if got[i][j+1] != want {
				t.Errorf("%s, column %d: got %q, want %q", c.Name, j+1, got[i][j+1], want)
			}
		}
	}
}
