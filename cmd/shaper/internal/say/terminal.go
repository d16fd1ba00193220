package say

import (
	"fmt"
	"io"
	"os"
	"sync/atomic"
	"time"

	"github.com/jedib0t/go-pretty/v6/progress"
	"golang.org/x/term"
)

// IsTerminal reports whether a stream is a terminal.
func IsTerminal(stream any) bool {
	f, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// Width returns the number of columns of a terminal, or 80 for other streams.
func Width(stream any) int {
	if f, ok := stream.(*os.File); ok {
		if width, _, err := term.GetSize(int(f.Fd())); err == nil && width > 0 {
			return width
		}
	}
	return Columns
}

// Colored reports whether output to a stream is colored: on a terminal, unless NO_COLOR is set
// (https://no-color.org).
func Colored(stream any) bool { return IsTerminal(stream) && os.Getenv("NO_COLOR") == "" }

// progressDelay is the time before work shows its progress.
const progressDelay = time.Second

// MeteredReader counts the bytes read.
type MeteredReader struct {
	io.Reader
	n atomic.Int64
}

func (r *MeteredReader) Read(b []byte) (int, error) {
	n, err := r.Reader.Read(b)
	r.n.Add(int64(n))
	return n, err
}

// Work is a task whose progress can be shown.
type Work struct {
	Name  string
	Units progress.Units
	Done  *atomic.Int64 // units done so far
	All   int64         // units in total; 0 if unknown
}

// Reading returns the task of reading size bytes from r; 0 if the size is unknown.
func (r *MeteredReader) Reading(size int64) Work {
	return Work{"replaying", progress.UnitsBytes, &r.n, size}
}

// ShowProgress draws a progress bar on stderr if it is a terminal and the work takes more
// than a second. The returned function removes the bar.
func ShowProgress(stderr io.Writer, on Work) func() {
	terminal, ok := stderr.(*os.File)
	if !ok || !IsTerminal(stderr) {
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
		drawProgress(terminal, on, stop)
	}()
	return func() {
		close(stop)
		<-done
	}
}

func drawProgress(terminal *os.File, on Work, stop chan struct{}) {
	w := progress.NewWriter()
	w.SetOutputWriter(terminal)
	if width, _, err := term.GetSize(int(terminal.Fd())); err == nil {
		w.SetTerminalWidth(width - 1) // a wrapped line cannot be drawn over
	}
	w.SetUpdateFrequency(200 * time.Millisecond)
	w.SetAutoStop(false)
	w.SetStyle(progress.StyleBlocks)
	w.SetTrackerLength(16)
	w.SetTrackerPosition(progress.PositionRight)
	w.Style().Options.TimeInProgressPrecision = time.Second
	w.Style().Options.ETAPrecision = time.Second
	w.Style().Visibility.Speed = true
	w.Style().Visibility.ETA = on.All > 0
	w.Style().Visibility.Percentage = on.All > 0
	if !Colored(terminal) {
		w.Style().Colors = progress.StyleColors{}
	}
	tracker := &progress.Tracker{Message: on.Name, Total: on.All, Units: on.Units}
	w.AppendTracker(tracker)
	finished := make(chan struct{})
	go func() {
		w.Render()
		close(finished)
	}()
	for ticker := time.NewTicker(200 * time.Millisecond); ; {
		select {
		case <-ticker.C:
			tracker.SetValue(on.Done.Load())
			continue
		case <-stop:
			ticker.Stop()
		}
		break
	}
	w.Stop()
	<-finished
	fmt.Fprint(terminal, "\x1b[1A\r\x1b[2K") // the bar ends with a newline
}
