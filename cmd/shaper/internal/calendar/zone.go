package calendar

import (
	"errors"
	"fmt"
	"time"
)

// Local is the name of the host's own zone in policies.
const Local = "local"

// Zone returns the zone of a name: an IANA name such as Europe/Berlin, UTC, or local. It reads
// the time zone database of the host.
func Zone(name string) (*time.Location, error) {
	switch name {
	case Local:
		return time.Local, nil
	case "", "Local": // LoadLocation would return UTC and the host's zone
		return nil, fmt.Errorf(
			"%q is not a time zone: write a name such as Europe/Berlin, UTC, or local for the host's zone",
			name)
	}
	zone, err := time.LoadLocation(name)
	if err == nil {
		return zone, nil
	}
	if _, err := time.LoadLocation("Europe/London"); err != nil {
		return nil, errors.New("this host has no time zone database: install tzdata, or write UTC or local")
	}
	return nil,
		fmt.Errorf("%q is not in the time zone database of this host: write a name such as Europe/Berlin, UTC, or local for the host's zone",
			name)
}

// ZoneName returns the name of a zone in policies.
func ZoneName(zone *time.Location) string {
	if zone == time.Local {
		return Local
	}
	return zone.String()
}

// A clock time is a reading of the clock of a zone: a time.Time in UTC with the same date, hour,
// minute, second and nanosecond.

// shown returns the clock time at t, in the zone of t.
func shown(t time.Time) time.Time {
	_, offset := t.Zone()
	return t.UTC().Add(time.Duration(offset) * time.Second)
}

// firstShown returns the first moment at which the clock of a zone shows a clock time or a
// later one. time.Date does not say which moment it returns if there are several.
func firstShown(clock time.Time, zone *time.Location) time.Time {
	// No zone is more than a day from UTC, so the clock shows an earlier time then.
	t := clock.AddDate(0, 0, -2).In(zone)
	for {
		_, offset := t.Zone()
		at := clock.Add(-time.Duration(offset) * time.Second).In(zone)
		if at.Before(t) { // the clock was set to a later time at t
			return t
		}
		end := sameOffset(t)
		if end.IsZero() || at.Before(end) {
			return at
		}
		t = end
	}
}

// sameOffset returns a moment after t before which the clock is not set, or the zero time if it
// is never set again.
func sameOffset(t time.Time) time.Time {
	_, end := t.ZoneBounds()
	if !end.IsZero() && !end.After(t) {
		// For the last day of a leap year, Go 1.26 returns the beginning of the day.
		end = end.Add(24 * time.Hour)
	}
	return end
}
