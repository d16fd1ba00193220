// Package calendar computes the windows of quotas and the schedules of plans, by the clock of a
// time zone. It follows daylight saving time.
package calendar

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Window is a kind of calendar window, over which a quota counts. The windows of a kind cover
// all time without gaps.
type Window uint8

const (
	Hour  Window = iota
	Day          // begins at midnight
	Week         // begins on Monday
	Month        // begins on the first
)

var windowNames = []string{"hour", "day", "week", "month"}

// String returns the name of the window in policies, such as month.
func (w Window) String() string { return windowNames[w] }

// ParseWindow reads a name such as month.
func ParseWindow(s string) (Window, error) {
	i := slices.Index(windowNames, s)
	if i < 0 {
		return 0, fmt.Errorf("%q is not one of %s", s, strings.Join(windowNames, ", "))
	}
	return Window(i), nil
}

// Start returns the beginning of the window that contains t. A window begins at the first moment at
// which the clock of the zone shows its beginning, or a later time if the clock skips it. So an
// hour shown twice is one window of two hours, and a day without a midnight begins at 01:00.
func (w Window) Start(t time.Time, zone *time.Location) time.Time {
	start, _ := w.Bounds(t, zone)
	return start
}

// End returns the beginning of the window after the one that contains t. It is after t.
func (w Window) End(t time.Time, zone *time.Location) time.Time {
	_, end := w.Bounds(t, zone)
	return end
}

// Bounds returns the beginning of the window that contains t, and the beginning of the next window.
func (w Window) Bounds(t time.Time, zone *time.Location) (start, end time.Time) {
	begin := w.begin(shown(t.In(zone)))
	next := w.after(begin)
	start, end = firstShown(begin, zone), firstShown(next, zone)
	for !t.Before(end) { // the clock was set back to the previous window
		next = w.after(next)
		start, end = end, firstShown(next, zone)
	}
	return start, end
}

// begin returns the beginning of the window of a clock time.
func (w Window) begin(clock time.Time) time.Time {
	year, month, day := clock.Date()
	switch w {
	case Hour:
		return time.Date(year, month, day, clock.Hour(), 0, 0, 0, time.UTC)
	case Week:
		day -= int(clock.Weekday()+6) % 7 // days since Monday
	case Month:
		day = 1
	}
	return time.Date(year, month, day, 0, 0, 0, 0, time.UTC)
}

// after returns the beginning of the window after the one beginning at a clock time.
func (w Window) after(begin time.Time) time.Time {
	switch w {
	case Hour:
		return begin.Add(time.Hour)
	case Week:
		return begin.AddDate(0, 0, 7)
	case Month:
		return begin.AddDate(0, 1, 0)
	}
	return begin.AddDate(0, 0, 1)
}
