package calendar

import (
	"fmt"
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"
	"time"
)

func schedule(t testing.TB, at, zoneName string) Schedule {
	s, err := ParseSchedule(at, zone(t, zoneName))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestSchedule checks by hand the moments at which schedules change. The first moment of each
// row is where the search begins; +T means that the schedule contains moments from T on, -T
// that it does not.
func TestSchedule(t *testing.T) {
	for _, test := range []struct {
		zone, at, from string
		want           []string
	}{
		{"UTC", "mon-fri 08:00-18:00", "2026-11-20T12:00:00Z", []string{ // a Friday
			"-2026-11-20T18:00:00Z", "+2026-11-23T08:00:00Z", "-2026-11-23T18:00:00Z",
		}},
		{"UTC", "sat,sun 00:00-24:00", "2026-11-20T12:00:00Z", []string{"+2026-11-21T00:00:00Z", "-2026-11-23T00:00:00Z", "+2026-11-28T00:00:00Z"}},
		{"UTC", "22:00-06:00", "2026-11-20T12:00:00Z", []string{"+2026-11-20T22:00:00Z", "-2026-11-21T06:00:00Z", "+2026-11-21T22:00:00Z"}},
		{"UTC", "22:00-00:00", "2026-11-20T12:00:00Z", []string{"+2026-11-20T22:00:00Z", "-2026-11-21T00:00:00Z"}},
		{"UTC", "22:00-24:00", "2026-11-20T22:00:00Z", []string{"-2026-11-21T00:00:00Z", "+2026-11-21T22:00:00Z"}},
		{"UTC", "sat 22:00-06:00", "2026-11-20T12:00:00Z", []string{"+2026-11-21T22:00:00Z", "-2026-11-22T06:00:00Z", "+2026-11-28T22:00:00Z"}},
		{"UTC", "sat-mon,wed 23:59-00:01", "2026-11-20T23:59:59.5Z", []string{ // from Friday on
			"+2026-11-21T23:59:00Z", "-2026-11-22T00:01:00Z", "+2026-11-22T23:59:00Z", "-2026-11-23T00:01:00Z",
			"+2026-11-23T23:59:00Z", "-2026-11-24T00:01:00Z", "+2026-11-25T23:59:00Z", "-2026-11-26T00:01:00Z", "+2026-11-28T23:59:00Z",
		}},
		{"UTC", "00:01-00:00", "2026-11-20T12:00:00Z", []string{"-2026-11-21T00:00:00Z", "+2026-11-21T00:01:00Z"}},
		{"UTC", "mon-sun 00:00-24:00", "2026-11-20T12:00:00Z", []string{""}},
		{"UTC", "00:00-24:00", "2026-11-20T12:00:00Z", []string{""}},
		{"Asia/Kathmandu", "08:00-18:00", "2026-11-20T00:00:00Z", []string{"+2026-11-20T02:15:00Z", "-2026-11-20T12:15:00Z"}},

		// In Berlin 02:30 does not exist on 2026-03-29, and exists twice on 2026-10-25.
		{"Europe/Berlin", "02:30-04:00", "2026-03-29T00:00:00+01:00", []string{"+2026-03-29T03:00:00+02:00", "-2026-03-29T04:00:00+02:00", "+2026-03-30T02:30:00+02:00"}},
		{"Europe/Berlin", "01:00-02:30", "2026-03-29T00:00:00+01:00", []string{"+2026-03-29T01:00:00+01:00", "-2026-03-29T03:00:00+02:00", "+2026-03-30T01:00:00+02:00"}},
		{"Europe/Berlin", "02:00-03:00", "2026-03-29T00:00:00+01:00", []string{"+2026-03-30T02:00:00+02:00"}},
		{"Europe/Berlin", "02:30-04:00", "2026-10-25T00:00:00+02:00", []string{
			"+2026-10-25T02:30:00+02:00", "-2026-10-25T02:00:00+01:00", "+2026-10-25T02:30:00+01:00", "-2026-10-25T04:00:00+01:00",
		}},
		{"Europe/Berlin", "02:00-02:30", "2026-10-25T00:00:00+02:00", []string{
			"+2026-10-25T02:00:00+02:00", "-2026-10-25T02:30:00+02:00", "+2026-10-25T02:00:00+01:00", "-2026-10-25T02:30:00+01:00",
		}},
		{"Europe/Berlin", "02:00-03:00", "2026-10-25T00:00:00+02:00", []string{"+2026-10-25T02:00:00+02:00", "-2026-10-25T03:00:00+01:00"}},
		{"Europe/Berlin", "sat 22:00-06:00", "2026-10-24T12:00:00+02:00", []string{"+2026-10-24T22:00:00+02:00", "-2026-10-25T06:00:00+01:00"}},
		{"Europe/Berlin", "sat 22:00-06:00", "2026-03-28T12:00:00+01:00", []string{"+2026-03-28T22:00:00+01:00", "-2026-03-29T06:00:00+02:00"}},
		{"America/New_York", "mon-fri 08:00-18:00", "2026-03-06T12:00:00-05:00", []string{"-2026-03-06T18:00:00-05:00", "+2026-03-09T08:00:00-04:00"}},
		{"America/New_York", "01:30-02:30", "2026-11-01T00:00:00-04:00", []string{
			"+2026-11-01T01:30:00-04:00", "-2026-11-01T01:00:00-05:00", "+2026-11-01T01:30:00-05:00", "-2026-11-01T02:30:00-05:00",
		}},
		{"America/New_York", "01:30-02:30", "2026-03-08T00:00:00-05:00", []string{"+2026-03-08T01:30:00-05:00", "-2026-03-08T03:00:00-04:00"}},
		{"Australia/Lord_Howe", "01:45-02:15", "2026-04-05T00:00:00+11:00", []string{
			"+2026-04-05T01:45:00+11:00", "-2026-04-05T01:30:00+10:30", "+2026-04-05T01:45:00+10:30", "-2026-04-05T02:15:00+10:30",
		}},
		{"Australia/Lord_Howe", "02:15-03:00", "2026-10-04T00:00:00+10:30", []string{"+2026-10-04T02:30:00+11:00", "-2026-10-04T03:00:00+11:00"}},
		{"America/Havana", "sun 00:00-24:00", "2026-03-07T12:00:00-05:00", []string{"+2026-03-08T01:00:00-04:00", "-2026-03-09T00:00:00-04:00"}},
		{"America/Havana", "sun 00:00-01:00", "2026-10-31T12:00:00-04:00", []string{"+2026-11-01T00:00:00-04:00", "-2026-11-01T01:00:00-05:00"}},
		{"Asia/Beirut", "sat 23:00-24:00", "2026-10-24T12:00:00+03:00", []string{"+2026-10-24T23:00:00+03:00", "-2026-10-25T00:00:00+02:00"}},
		{"Asia/Beirut", "sun 00:00-00:30", "2026-03-28T12:00:00+02:00", []string{"+2026-04-05T00:00:00+03:00"}},
		// Go's ZoneBounds is wrong on the last day of a leap year.
		{"Europe/Berlin", "08:00-18:00", "2072-12-31T12:00:00+01:00", []string{"-2072-12-31T18:00:00+01:00", "+2073-01-01T08:00:00+01:00"}},
		{"Pacific/Apia", "fri 00:00-24:00", "2011-12-29T12:00:00-10:00", []string{"+2012-01-06T00:00:00+14:00"}}, // no 2011-12-30
	} {
		s := schedule(t, test.at, test.zone)
		at := moment(t, test.from)
		for _, want := range test.want {
			was, next := s.Contains(at), s.Next(at)
			if want == "" {
				if !next.IsZero() || !was || !s.Always() {
					t.Errorf("%s %s: changes at %v, want never", test.zone, test.at, next)
				}
				continue
			}
			if to := want[0] == '+'; was == to {
				t.Errorf("%s %s: contains %v: %v, want %v", test.zone, test.at, at, was, !to)
			}
			if !next.Equal(moment(t, want[1:])) {
				t.Errorf("%s %s: after %v it changes at %v, want %s", test.zone, test.at, at, next, want)
			}
			at = next
		}
	}
}

// TestScheduleErrors checks the exact errors of the syntax.
func TestScheduleErrors(t *testing.T) {
	const want = ` is not days and a time, such as mon-fri 08:00-18:00, or a time such as 22:00-06:00`
	const day = ` is not a day or a range of days, such as mon or mon-fri: want mon, tue, wed, thu, fri, sat or sun`
	const clock = ` is not a time from 00:00 to 24:00 with two digits for hours and minutes`
	for at, want := range map[string]string{
		"":                         `""` + want,
		"mon, tue 08:00-18:00":     `"mon, tue 08:00-18:00"` + want,
		"mon-fri":                  `"mon" is not a time from`,
		"mon":                      `"mon" is not a time such as 08:00-18:00 (whole days: 00:00-24:00)`,
		"Mon 08:00-18:00":          `"Mon"` + day,
		"monday 08:00-18:00":       `"monday"` + day,
		"mon-fri-sat 08:00-18:00":  `"mon-fri-sat"` + day,
		"mon, 08:00-18:00":         `""` + day,
		"mon-fri 8:00-18:00":       `"8:00"` + clock,
		"mon-fri 08:00-18":         `"18"` + clock,
		"mon-fri 08:00-18:00:00":   `"18:00:00"` + clock,
		"08:00-24:01":              `"24:01"` + clock,
		"08:00-12:60":              `"12:60"` + clock,
		"08:00-12:00-13:00":        `"12:00-13:00"` + clock,
		"24:00-08:00":              `"24:00-08:00": 24:00 can only be an end: write 00:00, the beginning of the next day`,
		"08:00-08:00":              `"08:00-08:00" begins and ends at the same time: write 00:00-24:00 for whole days`,
		"08:00-18:00 mon":          `"08:00-18:00"` + day,
		"mon-fri 08:00 - 18:00":    `"mon-fri 08:00 - 18:00"` + want,
		"mon-fri 08:00–18:00":      `"08:00–18:00" is not a time such as 08:00-18:00 (whole days: 00:00-24:00)`,
		"08:00-18:00, 19:00-20:00": `"08:00-18:00"` + day,
	} {
		if _, err := ParseSchedule(at, time.UTC); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%q: got %v, want %s", at, err, want)
		}
	}
}

func TestZone(t *testing.T) {
	for name, want := range map[string]string{
		"":              `"" is not a time zone: write a name such as Europe/Berlin, UTC, or local for the host's zone`,
		"Local":         `"Local" is not a time zone: write a name such as Europe/Berlin, UTC, or local for the host's zone`,
		"Europe/Berln":  `"Europe/Berln" is not in the time zone database of this host: write a name such as Europe/Berlin, UTC, or local for the host's zone`,
		"../etc/passwd": `"../etc/passwd" is not in the time zone database of this host: write a name such as Europe/Berlin, UTC, or local for the host's zone`,
	} {
		if _, err := Zone(name); err == nil || err.Error() != want {
			t.Errorf("%q: got %v, want %s", name, err, want)
		}
	}
	for _, name := range []string{"UTC", "local", "Europe/Berlin"} {
		if z := zone(t, name); ZoneName(z) != name {
			t.Errorf("%s: got %s", name, ZoneName(z))
		}
	}
	if zone(t, "local") != time.Local {
		t.Error("local must be the host's zone")
	}
}

// minutes returns the minutes of the week, from Sunday 00:00 on, of a schedule. It reads the
// text again, independently of ParseSchedule.
func minutes(at string) (in [7 * 1440]bool) {
	days, clocks, ok := strings.Cut(at, " ")
	if !ok {
		days, clocks = "sun-sat", at
	}
	var h, m, hh, mm int
	fmt.Sscanf(clocks, "%d:%d-%d:%d", &h, &m, &hh, &mm)
	length := (60*(hh-h) + mm - m + 1440) % 1440
	if length == 0 {
		length = 1440
	}
	for _, part := range strings.Split(days, ",") {
		week := "sunmontuewedthufrisat"
		first := strings.Index(week, part[:3]) / 3
		last := strings.Index(week, part[len(part)-3:]) / 3
		for day := first; ; day = (day + 1) % 7 {
			for i := range length {
				in[(1440*day+60*h+m+i)%len(in)] = true
			}
			if day == last {
				break
			}
		}
	}
	return in
}

func randomSchedule(random *rand.Rand) string {
	names := []string{"mon", "tue", "wed", "thu", "fri", "sat", "sun"}
	name := func() string { return names[random.IntN(7)] }
	clock := func() string { return fmt.Sprintf("%02d:%02d", random.IntN(24), 15*random.IntN(4)) }
	for {
		from, to := clock(), clock()
		if random.IntN(4) == 0 {
			to = "24:00"
		}
		at := from + "-" + to
		for i := range random.IntN(4) {
			word := name()
			if random.IntN(2) == 0 {
				word += "-" + name()
			}
			at = word + map[bool]string{true: " ", false: ","}[i == 0] + at
		}
		if from != to {
			return at
		}
	}
}

// TestRandomSchedules compares Contains with a list of the minutes of the week, and Next with
// a walk over all minutes, near changes of the clock.
func TestRandomSchedules(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	for range 2000 {
		test := zones[random.IntN(len(zones))]
		at := randomSchedule(random)
		s, in, z := schedule(t, at, test.name), minutes(at), zone(t, test.name)
		contains := func(m time.Time) bool {
			m = m.In(z)
			return in[1440*int(m.Weekday())+60*m.Hour()+m.Minute()]
		}
		begin := moment(t, test.change).Add(time.Duration(random.Int64N(int64(20*time.Hour))) - 10*time.Hour)
		next := s.Next(begin)
		if s.Contains(begin) != contains(begin) {
			t.Fatalf("%s %s: contains %v: %v", test.name, at, begin.In(z), s.Contains(begin))
		}
		m := begin.Truncate(time.Minute).Add(time.Minute)
		for ; contains(m) == contains(begin) && m.Sub(begin) < 9*24*time.Hour; m = m.Add(time.Minute) {
			if s.Contains(m) != contains(m) || s.Contains(m.Add(time.Minute-1)) != contains(m) {
				t.Fatalf("%s %s: contains %v: %v", test.name, at, m.In(z), s.Contains(m))
			}
		}
		if contains(m) == contains(begin) {
			m = time.Time{} // within 9 days it does not change
		}
		if !next.Equal(m) {
			t.Fatalf("%s %s: after %v it changes at %v, want %v", test.name, at, begin.In(z), next, m.In(z))
		}
	}
}

// FuzzSchedule checks which texts are schedules, and Contains around the next changes.
func FuzzSchedule(f *testing.F) {
	for _, at := range []string{
		"mon-fri 08:00-18:00", "sat,sun 00:00-24:00", "22:00-06:00", "sat-mon,wed 23:59-00:01",
		"mon 08:00-08:00", "1:2-3:4",
	} {
		f.Add(at, int64(1774746000))
	}
	const day, clock = `(mon|tue|wed|thu|fri|sat|sun)`, `([01][0-9]|2[0-3]):[0-5][0-9]`
	days := day + `(-` + day + `)?`
	valid := regexp.MustCompile(`^(` + days + `(,` + days + `)* )?` + clock + `-(` + clock + `|24:00)$`)
	f.Fuzz(func(t *testing.T, at string, second int64) {
		s, err := ParseSchedule(at, zone(t, "Australia/Lord_Howe"))
		at = strings.Join(strings.Fields(at), " ")
		clocks := at[strings.LastIndex(at, " ")+1:]
		from, to, _ := strings.Cut(clocks, "-")
		if ok := valid.MatchString(at) && from != to; ok != (err == nil) {
			t.Fatalf("%q: got %v", at, err)
		}
		if err != nil {
			return
		}
		if s.String() != at {
			t.Fatalf("got %q, want %q", s, at)
		}
		in := minutes(at)
		m := time.Unix(second%1e10, 0)
		for range 4 {
			local := m.In(s.Zone())
			if got := s.Contains(m); got != in[1440*int(local.Weekday())+60*local.Hour()+local.Minute()] {
				t.Fatalf("%q: contains %v: %v", at, local, got)
			}
			next := s.Next(m)
			if next.IsZero() {
				break
			}
			if !next.After(m) || s.Contains(next) == s.Contains(m) ||
				s.Contains(next.Add(-1)) != s.Contains(m) {
				t.Fatalf("%q: after %v it changes at %v", at, local, next)
			}
			m = next
		}
	})
}

// BenchmarkCalendar has the costs of a plan with a quota and a schedule, at one moment.
func BenchmarkCalendar(b *testing.B) {
	z := zone(b, "Europe/Berlin")
	s, at := schedule(b, "mon-fri 08:00-18:00", "Europe/Berlin"), moment(b, "2026-11-24T03:50:09Z")
	b.Run("Bounds", func(b *testing.B) {
		for b.Loop() {
			Month.Bounds(at, z)
		}
	})
	b.Run("Contains", func(b *testing.B) {
		for b.Loop() {
			s.Contains(at)
		}
	})
	b.Run("Next", func(b *testing.B) {
		for b.Loop() {
			s.Next(at)
		}
	})
}
