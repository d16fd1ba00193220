package main

import (
	"fmt"
	"io"
	"os"
	"sync/atomic"
	"time"

	"github.com/jedib0t/go-pretty/v6/progress"
	"golang.org/x/term"
)

// isTerminal says whether people look at a stream.
func isTerminal(stream any) bool {
	f, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// colored says whether a stream gets colors (https://no-color.org).
func colored(stream any) bool { return isTerminal(stream) && os.Getenv("NO_COLOR") == "" }

// progressDelay is how long work goes on before it shows how far it is.
const progressDelay = time.Second

// meteredReader counts what was read.
type meteredReader struct {
	io.Reader
	n atomic.Int64
}

func (r *meteredReader) Read(b []byte) (int, error) {
	n, err := r.Reader.Read(b)
	r.n.Add(int64(n))
	return n, err
}

// showProgress draws a bar on stderr while the reader is read, if that takes
// long and people look. size is 0 where it is not known. The returned function
// ends it.
func showProgress(stderr io.Writer, r *meteredReader, size int64) func() {
	terminal, ok := stderr.(*os.File)
	if !ok || !isTerminal(stderr) {
		return func() {}
	}
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		select {
		case <-stop:
			return
		case <-time.After(progressDelay):
		}
		drawProgress(terminal, r, size, stop)
	}()
	return func() {
		close(stop)
		<-done
	}
}

func drawProgress(terminal *os.File, r *meteredReader, size int64, stop chan struct{}) {
	w := progress.NewWriter()
	w.SetOutputWriter(terminal)
	if width, _, err := term.GetSize(int(terminal.Fd())); err == nil {
		w.SetTerminalWidth(width - 1) // a line that wraps cannot be drawn over
	}
	w.SetUpdateFrequency(200 * time.Millisecond)
	w.SetAutoStop(false)
	w.SetStyle(progress.StyleBlocks)
	w.SetTrackerLength(16)
	w.SetTrackerPosition(progress.PositionRight)
	w.Style().Options.TimeInProgressPrecision = time.Second
	w.Style().Options.ETAPrecision = time.Second
	w.Style().Visibility.Speed = true
	w.Style().Visibility.ETA = size > 0
	w.Style().Visibility.Percentage = size > 0
	if !colored(terminal) {
		w.Style().Colors = progress.StyleColors{}
	}
	tracker := &progress.Tracker{Message: "replaying", Total: size, Units: progress.UnitsBytes}
	w.AppendTracker(tracker)
	finished := make(chan struct{})
	go func() {
		w.Render()
		close(finished)
	}()
	for ticker := time.NewTicker(200 * time.Millisecond); ; {
		select {
		case <-ticker.C:
			tracker.SetValue(r.n.Load())
			continue
		case <-stop:
			ticker.Stop()
		}
		break
	}
	w.Stop()
	<-finished
	fmt.Fprint(terminal, "\x1b[1A\r\x1b[2K") // the bar ends with a new line
}
