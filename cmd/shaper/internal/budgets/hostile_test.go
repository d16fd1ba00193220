package budgets

import (
	"fmt"
	"math/rand/v2"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/meter/shared"
	"github.com/a-seed-32e5a53f/shaper/meter/shared/lease"
	"github.com/a-seed-32e5a53f/shaper/meter/shared/storetest"
)

// onServer returns a shaper with a budget of 8 Mbit/s and 64 KiB on a server.
func onServer(t *testing.T, addr string, mtu int, length dataplane.LengthRule, count bool) Host {
	t.Helper()
	m := &dataplane.Meter{Name: "b", Packets: count, Params: meter.TokenBucket{
		Rate: meter.BitRate(8e6), Burst: 64 << 10,
	}, Budget: &dataplane.Budget{
		Name: "b", Address: dataplane.Address{URL: "redis://" + addr}, Interval: 20 * time.Millisecond,
		Rescue: dataplane.Fraction{Num: 1, Den: 100},
	}}
	plan, err := compiled.Compile(
		&dataplane.Policy{Length: length, Classes: []dataplane.Class{{Name: "all", Meter: m}}})
	if err != nil {
		t.Fatal(err)
	}
	return Host{Plan: plan, Name: "host", MTU: mtu}
}

// TestRescuePassesPackets starts a shaper whose server is not there. With 16 hosts and a hundredth
// of 64 KiB, its part of the burst is 40 bytes; it must have a packet of the MTU as it is metered.
func TestRescuePassesPackets(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		mtu    int
		length dataplane.LengthRule
		count  bool
		want   int64
	}{
		{0, dataplane.LengthRule{}, false, 1500},
		{9000, dataplane.LengthRule{}, false, 9000},
		{1500, dataplane.LengthRule{Base: dataplane.L2}, false, 1518},
		{1500, dataplane.LengthRule{Base: dataplane.L1}, false, 1542},
		{1500, dataplane.LengthRule{Overhead: 40}, false, 1540},
		{1500, dataplane.LengthRule{}, true, 40}, // packets: the part is more than one
	} {
		shaper := &leased{}
		s := New(kernel.Now, t.Logf)
		if err := s.Follow(t.Context(), []Host{onServer(t, "127.0.0.1:1", row.mtu, row.length, row.count)},
			[]Leaser{shaper}); err != nil {
			t.Fatal(err)
		}
		shaper.lock.Lock()
		got := shaper.of["b"].Limits[2][0]
		shaper.lock.Unlock()
		if got.Burst != row.want {
			t.Errorf("%+v: got a rescue burst of %d, want %d", row, got.Burst, row.want)
		}
		packet := row.want
		if row.count {
			packet = 1
		}
		// A hundredth of 64 Ki, this host, which the server does not know, and a packet of each of 16 hosts.
		if got, want := s.States("host")[0].Without.Burst[0], 655+row.want+16*packet; got != want {
			t.Errorf("%+v: got a bound of %d without the server, want %d", row, got, want)
		}
		s.End(false)
	}
}

// TestHostileTexts prints the state of a budget, and the lines of events, while a server lies. They
// must be printable and true: no share above the budget, no host too much.
func TestHostileTexts(t *testing.T) {
	t.Parallel()
	var lock sync.Mutex
	r := rand.New(rand.NewPCG(1, 2))
	lies := []any{
		int64(-1), int64(0), int64(5000), int64(1 << 41), int64(1 << 62), "\x1b]0;pwn\a", "\x1b[31m", nil,
		[]any{},
	}
	addr := storetest.Fake(t, func([]string) []byte {
		lock.Lock()
		defer lock.Unlock()
		if r.IntN(4) == 0 {
			return []byte("-ERR \x1b]0;pwn\x07 " + strings.Repeat("x", r.IntN(3000)) + "\r\n")
		}
		reply := []any{
			int64(0), time.Now().UnixMicro(), int64(5), int64(4e6), int64(0), int64(1 << 14), int64(0),
			int64(8e5), int64(0), int64(1 << 12), int64(0), int64(0), int64(0), int64(8e6), int64(0),
			int64(64 << 10), int64(0), int64(3), int64(1), int64(0), int64(0), "",
		}
		if r.IntN(2) == 0 {
			reply[r.IntN(len(reply))] = lies[r.IntN(len(lies))]
		}
		return storetest.Encode([]any{reply})
	})
	var lines []string
	s := New(kernel.Now, func(format string, args ...any) {
		lock.Lock()
		defer lock.Unlock()
		lines = append(lines, fmt.Sprintf(format, args...))
	})
	defer s.End(false)
	if err := s.Follow(t.Context(), []Host{onServer(t, addr, 1500, dataplane.LengthRule{}, false)},
		[]Leaser{&leased{}}); err != nil {
		t.Fatal(err)
	}
	const rate = `[\d.]+ [kMGT]?bit/s( \+ [\d.]+ [kMGT]?bit/s)?`
	whole := regexp.MustCompile(`^(no share|` + rate +
		` of 8 Mbit/s( \+ \S+ \S+)?, [1-9]\d* hosts?(, [1-9]\d* late)?|(` + rate +
		`, then )?the rescue share of ` + rate + `)` +
		`; all together at most 8(\.\d+)? Mbit/s( \+ \S+ \S+)? with a burst of [\d,]+`)
	named := 0
	observe := func() (enough bool) {
		st := s.States("host")[0]
		text := st.String()
		if strings.ContainsFunc(text, func(c rune) bool { return !unicode.IsPrint(c) }) || len(text) > 700 ||
			strings.Contains(text, "internal error") {
			t.Fatalf("the state is %q", text)
		}
		if st.Share.Rate[0] > st.Size.Rate[0] || st.Hosts < 0 || st.Hosts > lease.MaxHosts ||
			st.Size.Rate[0] > lease.MaxRate {
			t.Fatalf("the state is %+v", st)
		}
		if st.Size.Rate[0] == 8e6 && !whole.MatchString(text) {
			t.Fatalf("the state is %q", text)
		}
		if strings.Contains(st.Error, `\x1b]0;pwn`) ||
			strings.HasPrefix(st.Error, "the store replied with ") {
			named++
		}
		lock.Lock()
		defer lock.Unlock()
		return named > 0 && len(lines) > 0
	}
	for end := time.Now().Add(2 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		observe()
	}
	// On a busy machine, calls that get no answer in time hide the lies for longer.
	storetest.Until(t, "a state names a lie, and a line tells an event", observe)
	lock.Lock()
	defer lock.Unlock()
	for _, line := range lines {
		if strings.ContainsFunc(line, func(c rune) bool { return !unicode.IsPrint(c) }) {
			t.Errorf("a line is %q", line)
		}
	}
}

// TestReportPrintable checks that a line about an event is printable, whatever its error says.
func TestReportPrintable(t *testing.T) {
	t.Parallel()
	s := New(kernel.Now, func(format string, args ...any) {
		if line := fmt.Sprintf(format, args...); line != `budget b: \x1b]0;pwn\a` {
			t.Errorf("got %q", line)
		}
	})
	s.report(shared.Event{Budget: "b", Kind: shared.Failed, Err: fmt.Errorf("\x1b]0;pwn\a")})
}
