package calendar

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Schedule is a time of the day on some days of the week, by the clock of a zone, such as
// mon-fri 08:00-18:00.
type Schedule struct {
	text     string
	zone     *time.Location
	days     uint8 // one bit per time.Weekday
	from, to int   // minutes since midnight; on the next day if to <= from
}

const minutesOfDay = 24 * 60

// weekdays are the names of days, by time.Weekday.
var weekdays = []string{"sun", "mon", "tue", "wed", "thu", "fri", "sat"}

// ParseSchedule reads days and a time: mon-fri 08:00-18:00, sat,sun 00:00-24:00, or 22:00-06:00 for
// every day. A time across midnight belongs to the day on which it begins.
func ParseSchedule(at string, zone *time.Location) (Schedule, error) {
	words := strings.Fields(at)
	s := Schedule{text: strings.Join(words, " "), zone: zone, days: 1<<len(weekdays) - 1}
	var err error
	if len(words) == 2 {
		s.days, err = parseDays(words[0])
		words = words[1:]
	}
	if err != nil {
		return s, err
	}
	if len(words) != 1 {
		return s, fmt.Errorf(
			"%q is not days and a time, such as mon-fri 08:00-18:00, or a time such as 22:00-06:00", at)
	}
	from, to, ok := strings.Cut(words[0], "-")
	if !ok {
		return s, fmt.Errorf("%q is not a time such as 08:00-18:00 (whole days: 00:00-24:00)", words[0])
	}
	if s.from, err = parseClock(from); err != nil {
		return s, err
	}
	if s.to, err = parseClock(to); err != nil {
		return s, err
	}
	switch {
	case s.from == minutesOfDay:
		return s, fmt.Errorf("%q: 24:00 can only be an end: write 00:00, the beginning of the next day",
			words[0])
	case s.from == s.to:
		return s, fmt.Errorf("%q begins and ends at the same time: write 00:00-24:00 for whole days",
			words[0])
	}
	return s, nil
}

// parseDays reads a list of days and ranges of days, such as mon-wed,sat.
func parseDays(list string) (days uint8, err error) {
	for word := range strings.SplitSeq(list, ",") {
		first, last, through := strings.Cut(word, "-")
		if !through {
			last = first
		}
		day, end := slices.Index(weekdays, first), slices.Index(weekdays, last)
		if day < 0 || end < 0 {
			return 0,
				fmt.Errorf("%q is not a day or a range of days, such as mon or mon-fri: want mon, tue, wed, thu, fri, sat or sun",
					word)
		}
		for days |= 1 << day; day != end; days |= 1 << day {
			day = (day + 1) % len(weekdays)
		}
	}
	return days, nil
}

// parseClock reads a time such as 08:00 and returns the minutes since midnight. 24:00 is
// allowed.
func parseClock(s string) (int, error) {
	if s == "24:00" {
		return minutesOfDay, nil
	}
	t, err := time.Parse("15:04", s)
	if err != nil || len(s) != len("15:04") {
		return 0, fmt.Errorf("%q is not a time from 00:00 to 24:00 with two digits for hours and minutes", s)
	}
	return 60*t.Hour() + t.Minute(), nil
}

// String returns the schedule as it was written, with single blanks.
func (s Schedule) String() string { return s.text }

// Zone returns the zone whose clock counts.
func (s Schedule) Zone() *time.Location { return s.zone }

// Always reports whether the schedule contains all time.
func (s Schedule) Always() bool {
	return s.days == 1<<len(weekdays)-1 && s.from == 0 && s.to == minutesOfDay
}

// Contains reports whether the clock shows a time of the schedule at t. A time shown twice is
// contained twice, and a skipped time never.
func (s Schedule) Contains(t time.Time) bool {
	t = t.In(s.zone)
	minute := 60*t.Hour() + t.Minute()
	if s.from < s.to {
		return s.on(t.Weekday()) && s.from <= minute && minute < s.to
	}
	return s.on(t.Weekday()) && s.from <= minute || s.on((t.Weekday()+6)%7) && minute < s.to
}

// on reports whether the schedule includes a day.
func (s Schedule) on(day time.Weekday) bool { return s.days&(1<<day) != 0 }

// Next returns the first moment after t at which Contains changes, or the zero time if it
// never does.
func (s Schedule) Next(t time.Time) time.Time {
	if s.Always() {
		return time.Time{}
	}
	for was := s.Contains(t); ; {
		if t = s.boundary(t); s.Contains(t) != was {
			return t
		}
	}
}

// boundary returns the first moment after t at which the clock shows the beginning or the end
// of the schedule on any day, or is set.
func (s Schedule) boundary(t time.Time) time.Time {
	t = t.In(s.zone)
	clock := shown(t)
	wait := 24 * time.Hour
	for _, minute := range []int{s.from, s.to} {
		at := Day.begin(clock).Add(time.Duration(minute) * time.Minute)
		for !at.After(clock) {
			at = at.AddDate(0, 0, 1)
		}
		wait = min(wait, at.Sub(clock))
	}
	if set := sameOffset(t); !set.IsZero() && set.Sub(t) < wait {
		return set
	}
	return t.Add(wait)
}
