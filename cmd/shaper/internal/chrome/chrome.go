// Package chrome opens pages in Chromium: for tests only.
package chrome

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

// shots is the folder for screenshots; "" for none.
var shots = os.Getenv("REPORT_SHOTS")

// Tab is one tab of Chromium, and the errors in it.
type Tab struct {
	ctx context.Context
	dir string

	mu       sync.Mutex
	page     string // file URL, the only allowed request
	requests int    // number of requests of page
	faults   []string
}

// Open starts Chromium. Without one it skips the test, or fails it in CI.
func Open(t *testing.T) *Tab {
	var path string
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if p, err := exec.LookPath(name); err == nil {
			path = p
			break
		}
	}
	if path == "" {
		const missing = "no Chromium: apt-get install chromium"
		if os.Getenv("CI") != "" {
			t.Fatal(missing)
		}
		t.Skip(missing)
	}
	b := &Tab{dir: t.TempDir()}
	options := []chromedp.ExecAllocatorOption{chromedp.ExecPath(path), chromedp.UserDataDir(t.TempDir())}
	for _, flag := range []string{
		"headless", "no-sandbox", "disable-gpu", "disable-quic", "no-first-run",
		"disable-background-networking", "disable-component-update", "disable-sync", "disable-dev-shm-usage",
		"hide-scrollbars",
	} {
		options = append(options, chromedp.Flag(flag, true))
	}
	ctx, cancel := context.WithTimeout(t.Context(), 40*time.Minute)
	t.Cleanup(cancel)
	ctx, stop := chromedp.NewExecAllocator(ctx, options...)
	t.Cleanup(stop)
	ctx, closeTab := chromedp.NewContext(ctx)
	t.Cleanup(closeTab)
	b.ctx = ctx
	if err := chromedp.Listen(ctx, b.event); err != nil {
		t.Fatalf("start %s: %v", path, err)
	}
	err := chromedp.Do(ctx, command(network.Enable, network.EnableParams{}), command(log.Enable, cdp.Empty{}))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// event collects errors: a request other than that of the page, a message on the console, or
// an exception.
func (b *Tab) event(event any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch e := event.(type) {
	case *network.EventRequestWillBeSent:
		if e.Request.URL == b.page {
			b.requests++
		} else {
			b.faults = append(b.faults, "request of "+e.Request.URL)
		}
	case *log.EventEntryAdded:
		b.faults = append(b.faults, "log: "+e.Entry.Text)
	case *runtime.EventConsoleAPICalled:
		b.faults = append(b.faults, fmt.Sprintf("console.%s", e.Type))
	case *runtime.EventExceptionThrown:
		b.faults = append(b.faults, "exception: "+e.ExceptionDetails.Text)
	}
}

// Load writes a file and loads it.
func (b *Tab) Load(t *testing.T, name, text string) {
	t.Helper()
	path := filepath.Join(b.dir, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	b.mu.Lock()
	b.page = (&url.URL{Scheme: "file", Path: path}).String()
	b.requests, b.faults = 0, nil
	b.mu.Unlock()
	if err := chromedp.Do(b.ctx, chromedp.Navigate(b.page)); err != nil {
		t.Fatal(err)
	}
	b.Settle(t)
}

// Settle waits for two frames. Charts are drawn in the first.
func (b *Tab) Settle(t *testing.T) {
	t.Helper()
	Evaluate[bool](t, b,
		`new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))`)
}

// Quiet fails if event collected errors since Load.
func (b *Tab) Quiet(t *testing.T) {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.requests != 1 {
		t.Errorf("got %d requests of the page, want 1", b.requests)
	}
	for _, fault := range b.faults {
		t.Error(fault)
	}
}

// Scheme emulates a color scheme, light or dark, and a medium: "print", or "" for the screen.
func (b *Tab) Scheme(t *testing.T, scheme, media string) {
	t.Helper()
	err := chromedp.Do(b.ctx, command(emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Media: media, Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}},
	}))
	if err != nil {
		t.Fatal(err)
	}
	b.Settle(t)
}

// Width sets the width of the window.
func (b *Tab) Width(t *testing.T, px int64) {
	t.Helper()
	if err := chromedp.Do(b.ctx, chromedp.EmulateViewport(px, 900)); err != nil {
		t.Fatal(err)
	}
	b.Settle(t)
}

// Mouse sends a mouse event to the first chart, at a fraction of its width.
func (b *Tab) Mouse(t *testing.T, kind input.DispatchMouseEventType, at float64) {
	t.Helper()
	p := Evaluate[struct{ X, Y float64 }](t, b, fmt.Sprintf(`(() => {
		const over = document.querySelector(".u-over");
		over.scrollIntoView({ block: "center" });
		const r = over.getBoundingClientRect();
		return { x: r.left + r.width * %v, y: r.top + r.height / 2 };
	})()`, at))
	event := input.DispatchMouseEventParams{Type: kind, X: p.X, Y: p.Y, Button: input.MouseButtonNone}
	if kind != input.DispatchMouseEventTypeMouseMoved {
		event.Button, event.ClickCount = input.MouseButtonLeft, 1
	}
	if err := chromedp.Do(b.ctx, command(input.DispatchMouseEvent, event)); err != nil {
		t.Fatal(err)
	}
	b.Settle(t)
}

// Shot writes a screenshot to the folder in REPORT_SHOTS, if it is set.
func (b *Tab) Shot(t *testing.T, name string) {
	t.Helper()
	if shots == "" {
		return
	}
	png, err := chromedp.Run(b.ctx, chromedp.FullScreenshot(100))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(shots, "report-"+name+".png"), png, 0o644); err != nil {
		t.Fatal(err)
	}
}

// drawnScript counts, for every chart, the pixels that are drawn and their colors, and lists the
// headings of parts of the page without a chart, a row or an item.
const drawnScript = `(() => {
	const charts = [...document.querySelectorAll("figure")].map((figure) => {
		const canvas = figure.querySelector("canvas");
		const chart = figure.dataset.chart + " " + figure.dataset.index;
		if (!canvas || !canvas.width || !canvas.height) return { chart, width: 0, ink: 0, colors: 0 };
		const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d");
		copy.drawImage(canvas, 0, 0);
		const pixels = new Uint32Array(copy.getImageData(0, 0, canvas.width, canvas.height).data.buffer);
		const colors = new Set();
		let ink = 0;
		for (const p of pixels) {
			if (!p) continue; // transparent
			ink++;
			colors.add(p);
		}
		return { chart, width: canvas.clientWidth, ink, colors: colors.size };
	});
	const headings = [...document.querySelectorAll("h2, h3")];
	const empty = headings.filter((h) => !h.closest("figure, section").querySelector("canvas, tbody tr, li"));
	return { charts, empty: empty.map((h) => h.textContent) };
})()`

// Charts fails unless all charts of the page are drawn, and every heading has content. It fails
// unless there are want charts; -1 is any number.
func (b *Tab) Charts(t *testing.T, want int) {
	t.Helper()
	page := Evaluate[struct {
		Charts []struct {
			Chart       string
			Width       float64
			Ink, Colors int
		}
		Empty []string
	}](t, b, drawnScript)
	if want >= 0 && len(page.Charts) != want {
		t.Errorf("got %d charts, want %d", len(page.Charts), want)
	}
	for _, c := range page.Charts {
		if c.Width < 200 || c.Ink < 500 || c.Colors < 3 {
			t.Errorf("chart %s: got %v px wide, with %d drawn pixels in %d colors", c.Chart, c.Width, c.Ink,
				c.Colors)
		}
	}
	for _, heading := range page.Empty {
		t.Errorf("nothing below the heading %q", heading)
	}
}

func command[P any](c cdp.Command[P, cdp.Empty], params P) chromedp.Action[chromedp.Void] {
	return chromedp.Func(func(ctx context.Context, tab *chromedp.Target) error {
		_, err := cdp.Call(ctx, tab, c, params)
		return err
	})
}

// Evaluate returns the value of a script, which may be a promise.
func Evaluate[T any](t *testing.T, b *Tab, script string) T {
	t.Helper()
	v, err := chromedp.Run(b.ctx, chromedp.Evaluate[T](script, chromedp.EvalAwaitPromise))
	if err != nil {
		t.Fatalf("%s: %v", script, err)
	}
	return v
}
