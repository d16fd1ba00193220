package calendar

import (
	"math/rand/v2"
	"testing"
	"time"
	_ "time/tzdata" // so that the tests need no database on the host
)

// zones have daylight saving time of an hour, of half an hour and of two hours, changes at
// midnight and one minute after it, and a day that was skipped. A change is a moment near one.
var zones = []struct{ name, change string }{
	{"UTC", "2026-03-29T01:00:00Z"},
	{"Europe/Berlin", "2026-03-29T01:00:00Z"},
	{"Europe/Berlin", "2026-10-25T01:00:00Z"},
	{"America/New_York", "2026-03-08T07:00:00Z"},
	{"America/New_York", "2026-11-01T06:00:00Z"},
	{"Australia/Lord_Howe", "2026-04-04T15:00:00Z"},
	{"Australia/Lord_Howe", "2026-10-03T15:30:00Z"},
	{"America/Havana", "2026-03-08T05:00:00Z"},
	{"America/Havana", "2026-11-01T05:00:00Z"},
	{"Asia/Beirut", "2026-03-28T22:00:00Z"},
	{"Asia/Beirut", "2026-10-24T21:00:00Z"},
	{"Asia/Kathmandu", "2026-01-01T00:00:00Z"},
	{"Antarctica/Troll", "2026-10-25T01:00:00Z"},
	{"America/St_Johns", "2006-10-29T02:31:00Z"}, // from 00:01 back to 23:01
	{"Pacific/Apia", "2011-12-30T10:00:00Z"},     // from the 29th to the 31st
}

func zone(t testing.TB, name string) *time.Location {
	z, err := Zone(name)
	if err != nil {
		t.Fatal(err)
	}
	return z
}

func moment(t testing.TB, text string) time.Time {
	m, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// TestWindows checks windows by hand. The offsets are those of the zone at each moment.
func TestWindows(t *testing.T) {
	for _, test := range []struct{ zone, window, at, start, end string }{
		{"UTC", "hour", "2026-11-24T03:50:09.5Z", "2026-11-24T03:00:00Z", "2026-11-24T04:00:00Z"},
		{"UTC", "day", "2026-11-24T23:59:59.999999999Z", "2026-11-24T00:00:00Z", "2026-11-25T00:00:00Z"},
		{"UTC", "week", "2026-11-24T12:00:00Z", "2026-11-23T00:00:00Z", "2026-11-30T00:00:00Z"},
		{"UTC", "week", "2026-11-29T23:59:59Z", "2026-11-23T00:00:00Z", "2026-11-30T00:00:00Z"}, // a Sunday
		{"UTC", "week", "2026-11-30T00:00:00Z", "2026-11-30T00:00:00Z", "2026-12-07T00:00:00Z"},
		{"UTC", "week", "2027-01-01T00:00:00Z", "2026-12-28T00:00:00Z", "2027-01-04T00:00:00Z"},
		{"UTC", "month", "2026-12-31T23:59:59Z", "2026-12-01T00:00:00Z", "2027-01-01T00:00:00Z"},
		{"UTC", "month", "2028-02-29T12:00:00Z", "2028-02-01T00:00:00Z", "2028-03-01T00:00:00Z"},

		// Berlin: 02:00 to 03:00 on 2026-03-29, 03:00 to 02:00 on 2026-10-25.
		{"Europe/Berlin", "day", "2026-03-29T12:00:00+02:00", "2026-03-29T00:00:00+01:00", "2026-03-30T00:00:00+02:00"},
		{"Europe/Berlin", "day", "2026-10-25T12:00:00+01:00", "2026-10-25T00:00:00+02:00", "2026-10-26T00:00:00+01:00"},
		{"Europe/Berlin", "hour", "2026-03-29T01:59:59+01:00", "2026-03-29T01:00:00+01:00", "2026-03-29T03:00:00+02:00"},
		{"Europe/Berlin", "hour", "2026-03-29T03:00:00+02:00", "2026-03-29T03:00:00+02:00", "2026-03-29T04:00:00+02:00"},
		{"Europe/Berlin", "hour", "2026-10-25T02:30:00+02:00", "2026-10-25T02:00:00+02:00", "2026-10-25T03:00:00+01:00"},
		{"Europe/Berlin", "hour", "2026-10-25T02:30:00+01:00", "2026-10-25T02:00:00+02:00", "2026-10-25T03:00:00+01:00"},
		{"Europe/Berlin", "week", "2026-03-29T23:00:00+02:00", "2026-03-23T00:00:00+01:00", "2026-03-30T00:00:00+02:00"},
		{"Europe/Berlin", "month", "2026-10-31T23:30:00Z", "2026-11-01T00:00:00+01:00", "2026-12-01T00:00:00+01:00"},
		{"Europe/Berlin", "month", "2026-10-31T22:30:00Z", "2026-10-01T00:00:00+02:00", "2026-11-01T00:00:00+01:00"},

		// New York: 02:00 to 03:00 on 2026-03-08, 02:00 to 01:00 on 2026-11-01.
		{"America/New_York", "month", "2026-03-20T00:00:00-04:00", "2026-03-01T00:00:00-05:00", "2026-04-01T00:00:00-04:00"},
		{"America/New_York", "day", "2026-11-01T23:59:59-05:00", "2026-11-01T00:00:00-04:00", "2026-11-02T00:00:00-05:00"},
		{"America/New_York", "hour", "2026-11-01T01:30:00-05:00", "2026-11-01T01:00:00-04:00", "2026-11-01T02:00:00-05:00"},

		// Lord Howe: 02:00 to 01:30 on 2026-04-05, 02:00 to 02:30 on 2026-10-04.
		{"Australia/Lord_Howe", "hour", "2026-04-05T01:45:00+10:30", "2026-04-05T01:00:00+11:00", "2026-04-05T02:00:00+10:30"},
		{"Australia/Lord_Howe", "hour", "2026-10-04T02:45:00+11:00", "2026-10-04T02:30:00+11:00", "2026-10-04T03:00:00+11:00"},
		{"Australia/Lord_Howe", "day", "2026-10-04T12:00:00+11:00", "2026-10-04T00:00:00+10:30", "2026-10-05T00:00:00+11:00"},

		// Havana: 00:00 to 01:00 on 2026-03-08, 01:00 to 00:00 on 2026-11-01.
		{"America/Havana", "day", "2026-03-08T12:00:00-04:00", "2026-03-08T01:00:00-04:00", "2026-03-09T00:00:00-04:00"},
		{"America/Havana", "day", "2026-03-07T23:59:59-05:00", "2026-03-07T00:00:00-05:00", "2026-03-08T01:00:00-04:00"},
		{"America/Havana", "day", "2026-11-01T00:30:00-05:00", "2026-11-01T00:00:00-04:00", "2026-11-02T00:00:00-05:00"},
		{"America/Havana", "month", "2026-11-01T00:30:00-05:00", "2026-11-01T00:00:00-04:00", "2026-12-01T00:00:00-05:00"},
		{"America/Havana", "month", "2026-10-31T23:30:00-04:00", "2026-10-01T00:00:00-04:00", "2026-11-01T00:00:00-04:00"},

		// Beirut: 00:00 to 01:00 on 2026-03-29, 00:00 to 23:00 on 2026-10-25.
		{"Asia/Beirut", "day", "2026-03-29T01:00:00+03:00", "2026-03-29T01:00:00+03:00", "2026-03-30T00:00:00+03:00"},
		{"Asia/Beirut", "day", "2026-10-24T23:30:00+02:00", "2026-10-24T00:00:00+03:00", "2026-10-25T00:00:00+02:00"},
		{"Asia/Beirut", "week", "2026-03-29T12:00:00+03:00", "2026-03-23T00:00:00+02:00", "2026-03-30T00:00:00+03:00"},

		// St. John's: the 29th begins at 00:00, and the clock shows the 28th again from 00:01 on.
		{"America/St_Johns", "day", "2006-10-28T23:30:00-03:30", "2006-10-29T00:00:00-02:30", "2006-10-30T00:00:00-03:30"},
		{"America/St_Johns", "day", "2006-10-28T23:30:00-02:30", "2006-10-28T00:00:00-02:30", "2006-10-29T00:00:00-02:30"},

		// Go's ZoneBounds is wrong on the last day of a leap year.
		{"Europe/Berlin", "day", "2072-12-31T12:00:00+01:00", "2072-12-31T00:00:00+01:00", "2073-01-01T00:00:00+01:00"},

		// Apia had no 2011-12-30.
		{"Pacific/Apia", "day", "2011-12-29T23:00:00-10:00", "2011-12-29T00:00:00-10:00", "2011-12-31T00:00:00+14:00"},
	} {
		w, err := ParseWindow(test.window)
		if err != nil {
			t.Fatal(err)
		}
		at, z := moment(t, test.at), zone(t, test.zone)
		if got, want := w.Start(at, z), moment(t, test.start); !got.Equal(want) {
			t.Errorf("%s, %s of %s: begins at %v, want %v", test.zone, w, test.at, got, want)
		}
		if got, want := w.End(at, z), moment(t, test.end); !got.Equal(want) {
			t.Errorf("%s, %s of %s: ends at %v, want %v", test.zone, w, test.at, got, want)
		}
	}
	if _, err := ParseWindow("year"); err == nil ||
		err.Error() != `"year" is not one of hour, day, week, month` {
		t.Error(err)
	}
}

// TestWindowsTile walks over the minutes around changes of the clock. A window begins at each
// minute at which the largest clock time so far enters another hour, day, week or month, and
// nowhere else.
func TestWindowsTile(t *testing.T) {
	labels := map[Window]func(time.Time) [4]int{
		Hour:  func(c time.Time) [4]int { return [4]int{c.Year(), int(c.Month()), c.Day(), c.Hour()} },
		Day:   func(c time.Time) [4]int { return [4]int{c.Year(), int(c.Month()), c.Day()} },
		Week:  func(c time.Time) [4]int { y, w := c.ISOWeek(); return [4]int{y, w} },
		Month: func(c time.Time) [4]int { return [4]int{c.Year(), int(c.Month())} },
	}
	clock := func(m time.Time) time.Time {
		return time.Date(m.Year(), m.Month(), m.Day(), m.Hour(), m.Minute(), 0, 0, time.UTC)
	}
	for _, test := range zones {
		z, change := zone(t, test.name), moment(t, test.change)
		for w, label := range labels {
			var begun time.Time // the current window, if its beginning was seen
			first := change.Add(-50 * time.Hour)
			largest := clock(first.In(z))
			for m := first; m.Before(change.Add(50 * time.Hour)); m = m.Add(time.Minute) {
				before := label(largest)
				if c := clock(m.In(z)); c.After(largest) {
					largest = c
				}
				if label(largest) != before {
					if !begun.IsZero() && !w.End(m.Add(-1), z).Equal(m) {
						t.Fatalf("%s: the %v before %v ends at %v", test.name, w, m.In(z),
							w.End(m.Add(-1), z))
					}
					begun = m
				}
				if begun.IsZero() {
					continue
				}
				for _, at := range []time.Time{m, m.Add(time.Minute - 1)} {
					if got := w.Start(at, z); !got.Equal(begun) {
						t.Fatalf("%s: the %v of %v begins at %v, want %v", test.name, w, at.In(z), got,
							begun.In(z))
					}
				}
			}
		}
	}
}

// TestRandomWindows checks at random moments of 300 years that a window contains its moment,
// that both of its ends are consistent with its neighbors, and that its length is possible.
func TestRandomWindows(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	longest := map[Window]time.Duration{
		Hour: 25 * time.Hour, Day: 48 * time.Hour, Week: 8 * 24 * time.Hour, Month: 32 * 24 * time.Hour,
	}
	for range 20_000 {
		z := zone(t, zones[random.IntN(len(zones))].name)
		at := time.Unix(random.Int64N(300*365*86400)-100*365*86400, random.Int64N(1e9))
		for w := Hour; w <= Month; w++ {
			start, end := w.Bounds(at, z)
			if start.After(at) || !end.After(at) || end.Sub(start) > longest[w] {
				t.Fatalf("%v: the %v of %v is from %v to %v", z, w, at.In(z), start, end)
			}
			if !w.Start(start, z).Equal(start) || !w.Start(end, z).Equal(end) ||
				!w.End(end.Add(-1), z).Equal(end) || !w.End(start.Add(-1), z).Equal(start) {
				t.Fatalf("%v: the %v from %v to %v and its neighbors do not tile", z, w, start, end)
			}
		}
	}
}
