package report

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

// shots is the folder for screenshots of TestBrowser; "" for none.
var shots = os.Getenv("REPORT_SHOTS")

// browser is one tab of Chromium, and the errors in it.
type browser struct {
	ctx context.Context
	dir string

	mu       sync.Mutex
	page     string // file URL, the only allowed request
	requests int    // number of requests of page
	faults   []string
}

func newBrowser(t *testing.T) *browser {
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
	b := &browser{dir: t.TempDir()}
	options := []chromedp.ExecAllocatorOption{chromedp.ExecPath(path), chromedp.UserDataDir(t.TempDir())}
	for _, flag := range []string{
		"headless", "no-sandbox", "disable-gpu", "disable-quic", "no-first-run", "disable-background-networking",
		"disable-component-update", "disable-sync", "disable-dev-shm-usage", "hide-scrollbars",
	} {
		options = append(options, chromedp.Flag(flag, true))
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
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
func (b *browser) event(event any) {
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

// openPage writes the report of d and loads it.
func (b *browser) openPage(t *testing.T, name string, d Data) {
	t.Helper()
	b.load(t, name+".html", write(t, d))
}

// load writes a file and loads it.
func (b *browser) load(t *testing.T, name, text string) {
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
	b.settle(t)
}

// settle waits for two frames. Charts are drawn in the first.
func (b *browser) settle(t *testing.T) {
	t.Helper()
	evaluate[bool](t, b, `new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))`)
}

// quiet fails if event collected errors since openPage.
func (b *browser) quiet(t *testing.T) {
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

func (b *browser) scheme(t *testing.T, scheme, media string) {
	t.Helper()
	err := chromedp.Do(b.ctx, command(emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Media: media, Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}},
	}))
	if err != nil {
		t.Fatal(err)
	}
	b.settle(t)
}

func (b *browser) width(t *testing.T, px int64) {
	t.Helper()
	if err := chromedp.Do(b.ctx, chromedp.EmulateViewport(px, 900)); err != nil {
		t.Fatal(err)
	}
	b.settle(t)
}

// mouse sends a mouse event to the first chart, at a fraction of its width.
func (b *browser) mouse(t *testing.T, kind input.DispatchMouseEventType, at float64) {
	t.Helper()
	p := evaluate[struct{ X, Y float64 }](t, b, fmt.Sprintf(`(() => {
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
	b.settle(t)
}

func (b *browser) shot(t *testing.T, name string) {
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

func command[P any](c cdp.Command[P, cdp.Empty], params P) chromedp.Action[chromedp.Void] {
	return chromedp.Func(func(ctx context.Context, tab *chromedp.Target) error {
		_, err := cdp.Call(ctx, tab, c, params)
		return err
	})
}

func evaluate[T any](t *testing.T, b *browser, script string) T {
	t.Helper()
	v, err := chromedp.Run(b.ctx, chromedp.Evaluate[T](script, chromedp.EvalAwaitPromise))
	if err != nil {
		t.Fatalf("%s: %v", script, err)
	}
	return v
}
