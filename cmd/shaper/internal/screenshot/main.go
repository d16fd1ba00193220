// Command screenshot writes a part of a report as a PNG, for the README:
//
//	screenshot [-from SELECTOR] [-to SELECTOR] PAGE.html OUT.png
//
// The part extends from the top of one element to the bottom of another. The command needs
// Chromium.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"image"
	"image/draw"
	"image/png"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/chromedp/chromedp"
)

const (
	width   = 1000 // width of the page, px: about that of a README on GitHub
	margin  = 12   // margin around the part, px
	timeout = time.Minute
)

func main() {
	from := flag.String("from", "body", "CSS `selector` of the first element")
	to := flag.String("to", "body", "CSS `selector` of the last element")
	flag.Parse()
	if flag.NArg() != 2 {
		fmt.Fprintln(os.Stderr, "usage: screenshot [-from SELECTOR] [-to SELECTOR] PAGE.html OUT.png")
		os.Exit(2)
	}
	if err := run(flag.Arg(0), flag.Arg(1), *from, *to); err != nil {
		fmt.Fprintln(os.Stderr, "screenshot:", err)
		os.Exit(1)
	}
}

func run(page, out, from, to string) error {
	page, err := filepath.Abs(page)
	if err != nil {
		return err
	}
	if _, err := os.Stat(page); err != nil { // Chromium would show its error page
		return err
	}
	full, part, err := capture((&url.URL{Scheme: "file", Path: page}).String(), from, to)
	if err != nil {
		return fmt.Errorf("%s: %w", page, err)
	}
	picture, err := crop(full, part)
	if err != nil {
		return fmt.Errorf("%s: %w", page, err)
	}
	return os.WriteFile(out, picture, 0o644)
}

// capture returns a PNG of the whole page, and the rectangle of the part.
func capture(page, from, to string) (full []byte, part image.Rectangle, err error) {
	chromium, err := find()
	if err != nil {
		return nil, part, err
	}
	profile, err := os.MkdirTemp("", "screenshot-")
	if err != nil {
		return nil, part, err
	}
	defer os.RemoveAll(profile)
	options := []chromedp.ExecAllocatorOption{chromedp.ExecPath(chromium), chromedp.UserDataDir(profile)}
	for _, name := range []string{
		"headless", "no-sandbox", "disable-gpu", "no-first-run", "disable-dev-shm-usage", "hide-scrollbars",
	} {
		options = append(options, chromedp.Flag(name, true))
	}
	options = append(options, chromedp.Flag("force-color-profile", "srgb"))

	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	ctx, stop := chromedp.NewExecAllocator(ctx, options...)
	defer stop()
	ctx, closeTab := chromedp.NewContext(ctx)
	defer closeTab()
	if err := chromedp.Do(ctx, chromedp.EmulateViewport(width, 900), chromedp.Navigate(page)); err != nil {
		return nil, part, err
	}
	type span struct{ Top, Bottom float64 }
	// Charts are drawn in the first frame.
	s, err := chromedp.Run(ctx, chromedp.Evaluate[span](fmt.Sprintf(`new Promise((done, fail) =>
		requestAnimationFrame(() => requestAnimationFrame(() => {
			const first = document.querySelector(%q), last = document.querySelector(%q);
			if (!first || !last) fail(new Error("no such element"));
			else done({ top: first.getBoundingClientRect().top + scrollY, bottom: last.getBoundingClientRect().bottom + scrollY });
		})))`, from, to), chromedp.EvalAwaitPromise))
	if err != nil {
		return nil, part, fmt.Errorf("%s to %s: %w", from, to, err)
	}
	full, err = chromedp.Run(ctx, chromedp.FullScreenshot(100))
	return full, image.Rect(0, int(s.Top)-margin, width, int(s.Bottom)+margin), err
}

func find() (string, error) {
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", errors.New("no Chromium: apt-get install chromium")
}

// crop cuts the part out of a PNG.
func crop(full []byte, part image.Rectangle) ([]byte, error) {
	whole, err := png.Decode(bytes.NewReader(full))
	if err != nil {
		return nil, err
	}
	part = part.Intersect(whole.Bounds())
	if part.Empty() {
		return nil, errors.New("the part is empty")
	}
	picture := image.NewRGBA(image.Rect(0, 0, part.Dx(), part.Dy()))
	draw.Draw(picture, picture.Bounds(), whole, part.Min, draw.Src)
	var out bytes.Buffer
	encoder := png.Encoder{CompressionLevel: png.BestCompression}
	err = encoder.Encode(&out, picture)
	return out.Bytes(), err
}
