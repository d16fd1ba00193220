package report

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	"github.com/chromedp/cdproto/input"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/chrome"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

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

func openPage(t *testing.T, b *chrome.Tab, name string, d Data) {
	t.Helper()
	b.Load(t, name+".html", write(t, d))
}

func checkFits(t *testing.T, b *chrome.Tab) {
	t.Helper()
	if over := chrome.Evaluate[int](t, b, `document.documentElement.scrollWidth - innerWidth`); over > 0 {
		t.Errorf("the page is %d px wider than the window, want 0", over)
	}
}

func TestBrowser(t *testing.T) {
	b := chrome.Open(t)
	d := sample()

	t.Run("sample", func(t *testing.T) {
		b.Scheme(t, "light", "")
		b.Width(t, 1400)
		openPage(t, b, "sample", d)
		b.Charts(t, 2+len(d.Meters)+2*len(d.Queues))
		checkFits(t, b)
		cells(t, b, d)
		b.Shot(t, "light")

		light := chrome.Evaluate[contrast](t, b, contrastScript)
		before := chrome.Evaluate[string](t, b, `document.querySelector("canvas").toDataURL()`)
		b.Scheme(t, "dark", "")
		dark := chrome.Evaluate[contrast](t, b, contrastScript)
		if light.Back == dark.Back {
			t.Errorf("got background %s for both light and dark", light.Back)
		}
		for _, c := range []contrast{light, dark} {
			if c.Contrast < 4.5 {
				t.Errorf("%q on %s has contrast %.2f, want 4.5 or more", c.Text, c.Back, c.Contrast)
			}
		}
		if chrome.Evaluate[string](t, b, `document.querySelector("canvas").toDataURL()`) == before {
			t.Error("the charts kept their colors when the color scheme changed")
		}
		b.Shot(t, "dark")
		b.Quiet(t)
	})

	t.Run("narrow", func(t *testing.T) {
		b.Width(t, 360) // makes the wide page narrow
		b.Charts(t, 2+len(d.Meters)+2*len(d.Queues))
		checkFits(t, b)
		b.Shot(t, "narrow-dark")
		b.Scheme(t, "light", "")
		openPage(t, b, "narrow", d)
		b.Charts(t, 2+len(d.Meters)+2*len(d.Queues))
		checkFits(t, b)
		cells(t, b, d)
		b.Shot(t, "narrow")
		b.Quiet(t)
	})

	t.Run("cursor", func(t *testing.T) {
		b.Width(t, 1400)
		openPage(t, b, "cursor", d)
		const legends = `[...document.querySelectorAll("figure")].map((f) => f.querySelector(".when").textContent)`
		idle := chrome.Evaluate[[]string](t, b, legends)
		b.Mouse(t, input.DispatchMouseEventTypeMouseMoved, 152.5/sampleBins)
		for i, when := range chrome.Evaluate[[]string](t, b, legends) {
			if when != "at 15.2 s" || idle[i] == when {
				t.Errorf("chart %d: got legend %q with the cursor, %q without", i, when, idle[i])
			}
		}
		got := chrome.Evaluate[string](t, b, `document.querySelector("figure .legend b").textContent`)
		rate := float64(d.Offered[0][152]) * 8 / (float64(sampleBin) / 1e9)
		if want := fmt.Sprintf("%.3g Mbit/s", rate/1e6); got != want {
			t.Errorf("green under the cursor is %q, want %q", got, want)
		}
		b.Shot(t, "cursor")
		b.Quiet(t)
	})

	t.Run("zoom", func(t *testing.T) {
		openPage(t, b, "zoom", d)
		const canvases = `[...document.querySelectorAll("canvas")].map((c) => c.toDataURL())`
		before := chrome.Evaluate[[]string](t, b, canvases)
		b.Mouse(t, input.DispatchMouseEventTypeMouseMoved, 0.35)
		b.Mouse(t, input.DispatchMouseEventTypeMousePressed, 0.35)
		b.Mouse(t, input.DispatchMouseEventTypeMouseMoved, 0.5)
		b.Mouse(t, input.DispatchMouseEventTypeMouseReleased, 0.5)
		for i, c := range chrome.Evaluate[[]string](t, b, canvases) {
			if c == before[i] {
				t.Errorf("chart %d did not zoom with the first one", i)
			}
		}
		b.Shot(t, "zoom")
		b.Quiet(t)
	})

	t.Run("print", func(t *testing.T) {
		b.Scheme(t, "dark", "print")
		b.Width(t, 688) // A4 within the page margins
		openPage(t, b, "print", d)
		chrome.Evaluate[bool](t, b, `dispatchEvent(new Event("beforeprint"))`)
		b.Settle(t)
		b.Charts(t, 2+len(d.Meters)+2*len(d.Queues))
		checkFits(t, b)
		if c := chrome.Evaluate[contrast](t, b, contrastScript); c.Back != "rgb(255, 255, 255)" ||
			c.Contrast < 4.5 {
			t.Errorf("on paper: got %+v, want white and a contrast of 4.5 or more", c)
		}
		b.Shot(t, "print")
		chrome.Evaluate[bool](t, b, `dispatchEvent(new Event("afterprint"))`)
		b.Scheme(t, "light", "")
		b.Quiet(t)
	})

	t.Run("single bin", func(t *testing.T) {
		b.Width(t, 1000)
		openPage(t, b, "single", singleBin())
		b.Charts(t, 5)
		checkFits(t, b)
		b.Shot(t, "single")
		b.Quiet(t)
	})

	t.Run("empty", func(t *testing.T) {
		openPage(t, b, "empty", Data{Input: "empty.pcap", Policy: "uplink.toml", Version: "1.0.0"})
		b.Charts(t, 0)
		checkFits(t, b)
		b.Shot(t, "empty")
		b.Quiet(t)
	})

	t.Run("large", func(t *testing.T) {
		d := sample()
		for i := range d.Classes {
			c := &d.Classes[i]
			for _, n := range []*dataplane.Count{
				&c.Green, &c.Yellow, &c.Red, &c.Dropped, &c.Marked, &c.Queued,
			} {
				*n = dataplane.Count{Packets: 333_333_333, Bytes: 333_333_333_333}
			}
		}
		d.Packets, d.Bytes, d.Duration = 4_000_000_000, 4_000_000_000_000, 100*3600*second+1
		for i := range d.Offered {
			for j := range d.Offered[i] {
				d.Offered[i][j] *= 100_000
			}
		}
		openPage(t, b, "large", d)
		for _, px := range []int64{1400, 900, 360} {
			b.Width(t, px)
			b.Charts(t, 2+len(d.Meters)+2*len(d.Queues))
			checkFits(t, b)
			if em := chrome.Evaluate[float64](t, b,
				`document.querySelector("tbody th").clientWidth / 15`); em < 8 {
				t.Errorf("at %d px: got class names of %.1f em, want 8 or more", px, em)
			}
			b.Shot(t, fmt.Sprintf("large-%d", px))
		}
		b.Quiet(t)
	})

	t.Run("hostile", func(t *testing.T) {
		b.Width(t, 360)
		d := hostileSample()
		openPage(t, b, "hostile", d)
		b.Charts(t, 2+len(d.Meters)+2*len(d.Queues))
		checkFits(t, b)
		if got := chrome.Evaluate[string](t, b, `document.querySelector("h1").textContent`); got != hostile {
			t.Errorf("heading %q, want %q", got, hostile)
		}
		if got := chrome.Evaluate[int](t, b,
			`document.querySelectorAll("img, body script:not([type])").length`); got != 3 {
			t.Errorf("got %d images and scripts, want the 3 scripts of the page", got)
		}
		b.Shot(t, "hostile")
		b.Quiet(t)
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
		openPage(t, b, "policy", d)
		tried := chrome.Evaluate[string](t, b, fmt.Sprintf(`(async () => {
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
func cells(t *testing.T, b *chrome.Tab, d Data) {
	t.Helper()
	got := chrome.Evaluate[[][]string](t, b, `[...document.querySelector("tbody").rows].map((r) =>
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
			want := say.Grouped(n.Packets) + "|" + say.Grouped(n.Bytes) + " B|" +
				percent(n.Bytes, total.Bytes)
			if n.Packets == 0 {
				want = "0"
			}
			if got[i][j+1] != want {
				t.Errorf("%s, column %d: got %q, want %q", c.Name, j+1, got[i][j+1], want)
			}
		}
	}
}
