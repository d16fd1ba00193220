package meter

import (
	"encoding"
	"encoding/binary"
	"encoding/hex"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

var (
	_ encoding.BinaryAppender    = (*Meter)(nil)
	_ encoding.BinaryUnmarshaler = (*Meter)(nil)
)

// restored returns a meter restored from the saved state of m, in a meter that was zero, had the
// same parameters or had others.
func restored(t testing.TB, r *rand.Rand, m *Meter) *Meter {
	t.Helper()
	prefix := make([]byte, r.IntN(3))
	data, err := m.AppendBinary(slices.Clone(prefix))
	if err != nil {
		t.Fatal(err)
	}
	out := new(Meter)
	switch r.IntN(3) {
	case 0:
		*out = New(m.Profile())
	case 1:
		*out = NewWithTokens(compileProfile(t, contractParams(r)), 5, 5)
	}
	had := out.Profile()
	if err := out.UnmarshalBinary(data[len(prefix):]); err != nil {
		t.Fatalf("%+v: %v", m.Profile().Params(), err)
	}
	if out.Profile().Params() != m.Profile().Params() || had != nil && had.Params() == m.Profile().Params() &&
		had != out.Profile() {
		t.Fatalf("got the parameters %+v, want %+v and the same Profile if it has them",
			out.Profile().Params(), m.Profile().Params())
	}
	return out
}

// compareRestored makes the same calls of a meter and of one that is saved and restored in between,
// and compares all results.
func compareRestored(t testing.TB, r *rand.Rand, calls int) {
	t.Helper()
	params := contractParams(r)
	p := compileProfile(t, params)
	c, e := p.Bursts()
	m := new(Meter)
	if *m = New(p); r.IntN(2) == 0 {
		*m = NewWithTokens(p, r.Int64N(c+1), r.Int64N(e+1))
	}
	n := restored(t, r, m)
	now := firstTime(r, params)
	for i := range calls {
		length, in, at := nextLength(r, params, c, e, c+1), Color(r.IntN(3)), now
		if r.IntN(10) == 0 {
			at -= r.Int64N(1e9)
		}
		call := r.IntN(6)
		each := func(m *Meter) any {
			switch call {
			case 0:
				return m.Explain(at, length, in)
			case 1:
				return m.Decide(at, length)
			case 2:
				return m.Peek(at, length, in)
			case 3:
				r := m.Reserve(at, length, math.MaxInt64)
				r.profile = nil
				return r
			}
			return m.Color(at, length, in)
		}
		if got, want := each(n), each(m); got != want {
			t.Fatalf("%+v: call %d, kind %d: got %+v, want %+v", params, i, call, got, want)
		}
		if r.IntN(5) == 0 {
			n = restored(t, r, n)
		}
		if r.IntN(50) == 0 {
			params = contractParams(r)
			p = compileProfile(t, params)
			c, e = p.Bursts()
			m.SetProfile(now, p)
			n.SetProfile(now, p)
		}
		now = nextTime(r, params, now)
	}
}

func TestMeterSaved(t *testing.T) {
	r := logged(t)
	for range 3000 {
		compareRestored(t, r, 60)
	}
}

// TestMeterRestoreErrors has data that are not a saved meter. The meter stays as it was.
func TestMeterRestoreErrors(t *testing.T) {
	p := compileProfile(t, SlidingLog{Limit: 3000, Window: time.Second, Entries: 10})
	m := New(p)
	m.Color(1000, 500, Green)
	m.Color(2000, 600, Green)
	good, _ := m.AppendBinary(nil)
	had := New(compileProfile(t, SRTCM{CIR: BitRate(8e6), CBS: 3000, EBS: 4000}))
	had.Color(5, 700, Green)
	before := had.Clone()
	check := func(data []byte, want string) {
		t.Helper()
		err := had.UnmarshalBinary(data)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
		if had.profile != before.profile || had.state != before.state {
			t.Errorf("%v: the meter changed", err)
		}
	}
	for i := range good {
		bad := slices.Clone(good)
		bad[i] ^= 1 << (i % 8)
		check(bad, "")
		check(good[:i], "")
	}
	check(append(slices.Clone(good), 0), "corrupt")
	newer := slices.Clone(good)
	newer[3]++
	check(newer, "format 3, this program reads formats 1 and 2")
	check([]byte("mtt\x01 a table of keys"), "not a saved meter")
	resum := func(change func(b []byte) []byte) []byte {
		return appendChecksum(change(slices.Clone(good[:len(good)-4])), 0)
	}
	check(resum(func(b []byte) []byte { return b[:len(b)-1] }), "corrupt")
	check(resum(func(b []byte) []byte { return append(b, 0) }), "corrupt")
	check(resum(func(b []byte) []byte { b[5]++; return b }), `unknown kind "tliding-log"`)
	const limit = 4 + 1 + len("sliding-log") + 1 + 1 + len("limit")
	check(resum(func(b []byte) []byte { b[limit+7] = 0x80; return b }), "invalid: Limit must be above zero")
	const epoch = limit + 8 + 1 + len("window") + 8 + 1 + len("entries") + 8
	for i, word := range []int64{math.MinInt64, 1101, 3} { // the epoch, the sum and the number of entries
		check(resum(func(b []byte) []byte {
			binary.LittleEndian.PutUint64(b[epoch+8*i:], uint64(word))
			return b
		}), "corrupt")
	}
}

// FuzzRestoreMeter restores a meter from any bytes, with their checksum. If that succeeds, all
// calls work, and the meter can be saved and restored again.
func FuzzRestoreMeter(f *testing.F) {
	for _, saved := range savedMeters {
		m := New(compileProfile(f, saved.params))
		m.Color(1000, 500, Green)
		data, _ := m.AppendBinary(nil)
		f.Add(data[:len(data)-4], int64(2000), 700)
		old, _ := hex.DecodeString(saved.format1)
		f.Add(old[:len(old)-4], int64(2000), 700)
	}
	f.Fuzz(func(t *testing.T, data []byte, now int64, n int) {
		var m Meter
		if m.UnmarshalBinary(data) == nil {
			t.Error("bytes without a checksum were restored")
		}
		if err := m.UnmarshalBinary(appendChecksum(slices.Clone(data), 0)); err != nil {
			if m.Profile() != nil {
				t.Errorf("%v: the meter changed", err)
			}
			return
		}
		again, err := m.AppendBinary(nil)
		if err != nil {
			t.Fatal(err)
		}
		var same Meter
		if err := same.UnmarshalBinary(again); err != nil {
			t.Fatalf("saved again: %v", err)
		}
		for _, m := range []*Meter{&m, &same} {
			clone := m.Clone()
			useRestored(t, &clone, now, n)
		}
		for i := range 4 {
			if got, want := same.Explain(now, n, Green), m.Explain(now, n, Green); got != want {
				t.Fatalf("%+v: call %d after the meter was saved again: got %+v, want %+v",
					m.Profile().Params(), i, got, want)
			}
			now += int64(n)
		}
	})
}

// useRestored makes calls whose results are within bounds for any state.
func useRestored(t *testing.T, m *Meter, now int64, n int) {
	t.Helper()
	c, e := m.Profile().Bursts()
	for range 4 {
		if tc, te := m.Tokens(now); tc < 0 || tc > c || te < 0 || te > e {
			t.Fatalf("%+v has %d and %d tokens", m.Profile().Params(), tc, te)
		}
		if d := m.Decide(now, n); d.Remaining < 0 || d.RetryAfter < 0 || d.ResetAfter < 0 {
			t.Fatalf("%+v: got %+v", m.Profile().Params(), d)
		}
		m.Reserve(now, n, time.Hour)
		m.Colors(now, []int{n, n}, nil, make([]Color, 2))
		now += int64(n)
	}
	m.Shift(now, time.Duration(n)<<20)
	m.SetProfile(now, compileProfile(t, TRTCM{CIR: BitRate(8e6), CBS: 3000, PIR: BitRate(9e6), PBS: 4000}))
	if tc, te := m.Tokens(now); tc < 0 || tc > 3000 || te < 0 || te > 4000 {
		t.Fatalf("got %d and %d tokens after SetProfile", tc, te)
	}
}

// TestRestoreBounds has states and logs on both sides of their bounds.
func TestRestoreBounds(t *testing.T) {
	bucket := TokenBucket{Rate: BitRate(8e6), Burst: 3000}
	warm := TokenBucket{Rate: BitRate(8e6), Burst: 3000, Warmup: time.Second}
	full := compileProfile(t, warm).rule.(warmUp).unit * 3000
	wide1 := TokenBucket{Rate: BitRate(1), Burst: 1 << 59}                   // 8e9 units in a byte
	wide2 := TRTCM{CIR: BitRate(1), CBS: 1 << 59, PIR: BitRate(2), PBS: 100} // 8e9 and 4e9
	const most, far = maxGained + maxUnits, math.MaxInt64
	log := SlidingLog{Limit: 3000, Window: time.Second, Entries: 3}
	slots := SlidingWindow{Limit: 3000, Window: time.Second, Slots: 10}
	for _, test := range []struct {
		params compiler
		ok     bool
		state  state
		log    []entry
	}{
		{bucket, true, state{longAgo, 0, 0}, nil},
		{bucket, true, state{far, most, most}, nil},
		{bucket, false, state{0, most + 1, 0}, nil},
		{bucket, false, state{0, 0, most + 1}, nil},
		{bucket, false, state{0, -1, 0}, nil},
		{bucket, false, state{0, 0, -1}, nil},
		{warm, true, state{5, full, 5}, nil},
		{warm, true, state{notBegun, 0, 0}, nil},
		{warm, false, state{longAgo, 0, longAgo}, nil},
		{warm, false, state{5, full + 1, 5}, nil},
		{warm, false, state{5, -1, 5}, nil},
		{warm, false, state{5, 0, 6}, nil},
		{wide1, true, state{0, 1 << 59, 8e9 - 1}, nil},
		{wide1, true, state{0, -maxGained, 0}, nil},
		{wide1, false, state{0, 1<<59 + 1, 0}, nil},
		{wide1, false, state{0, -maxGained - 1, 0}, nil},
		{wide1, false, state{0, 0, 8e9}, nil},
		{wide1, false, state{0, 0, -1}, nil},
		{wide2, true, state{0, 1 << 59, 100}, []entry{{8e9 - 1, 4e9 - 1}}},
		{wide2, true, state{notBegun, 1 << 59, 100}, nil},
		{wide2, false, state{0, 1<<59 + 1, 100}, []entry{{0, 0}}},
		{wide2, false, state{0, 0, 101}, []entry{{0, 0}}},
		{wide2, false, state{0, 0, 0}, []entry{{8e9, 0}}},
		{wide2, false, state{0, 0, 0}, []entry{{0, 4e9}}},
		{wide2, false, state{0, 0, 0}, []entry{{-1, 0}}},
		{wide2, false, state{0, 0, 0}, []entry{{0, -1}}},
		{wide2, false, state{0, -1, 0}, []entry{{0, 0}}},
		{wide2, false, state{0, 0, -1}, []entry{{0, 0}}},
		{wide2, false, state{0, 0, 0}, nil},
		{wide2, false, state{0, 0, 0}, []entry{{0, 0}, {0, 0}}},
		{FixedWindow{Limit: 9, Window: time.Second}, true, state{0, 9, 0}, nil},
		{FixedWindow{Limit: 9, Window: time.Second}, false, state{0, 10, 0}, nil},
		{FixedWindow{Limit: 9, Window: time.Second}, false, state{0, -1, 0}, nil},
		{FixedWindow{Limit: 9, Window: time.Second}, false, state{0, 0, 1}, nil},
		{SlidingCounter{Limit: 9, Window: time.Second}, true, state{0, 9, 9}, nil},
		{SlidingCounter{Limit: 9, Window: time.Second}, false, state{0, 10, 9}, nil},
		{SlidingCounter{Limit: 9, Window: time.Second}, false, state{0, 9, 10}, nil},
		{SlidingCounter{Limit: 9, Window: time.Second}, false, state{0, -1, 0}, nil},
		{SlidingCounter{Limit: 9, Window: time.Second}, false, state{0, 0, -1}, nil},
		{
			TSWTCM{CIR: BitRate(8), PIR: BitRate(8), Window: time.Second, Seed: 1},
			true,
			state{0, maxAvg, -1},
			nil,
		},
		{
			TSWTCM{CIR: BitRate(8), PIR: BitRate(8), Window: time.Second, Seed: 1},
			false,
			state{0, maxAvg + 1, 0},
			nil,
		},
		{TSWTCM{CIR: BitRate(8), PIR: BitRate(8), Window: time.Second, Seed: 1}, false, state{0, -1, 0}, nil},
		{log, true, state{far, 3000, 3}, []entry{{1, 1}, {5, 1000}, {far, 1999}}},
		{log, true, state{notBegun, 3000, 0}, nil},
		{log, false, state{notBegun, 3001, 0}, nil},
		{log, false, state{notBegun, -1, 0}, nil},
		{log, false, state{notBegun, 1, 1}, []entry{{0, 1}}},
		{log, false, state{9, 3001, 1}, []entry{{1, 3001}}},
		{log, false, state{9, 4, 4}, []entry{{1, 1}, {2, 1}, {3, 1}, {4, 1}}},
		{log, false, state{9, 4, 2}, []entry{{1, 1}, {2, 2}}},
		{log, false, state{9, 3, 2}, []entry{{2, 1}, {2, 2}}},
		{log, false, state{9, 3, 1}, []entry{{10, 3}}},
		{log, false, state{9, 3, 2}, []entry{{1, 3}, {2, 0}}},
		{log, false, state{9, 3, 2}, []entry{{1, 4}, {2, -1}}},
		{log, false, state{9, 1, 3}, []entry{{1, far}, {2, far}, {3, 3}}},
		{slots, true, state{far / 100_000_000, 0, 0}, nil},
		{slots, false, state{far/100_000_000 + 1, 0, 0}, nil},
		{slots, true, state{-far / 100_000_000, 0, 0}, nil},
		{slots, false, state{-far/100_000_000 - 1, 0, 0}, nil},
	} {
		if got := compileProfile(t, test.params).validState(test.state, test.log); got != test.ok {
			t.Errorf("%+v: state %+v with the log %v is valid: %v, want %v", test.params, test.state,
				test.log, got, test.ok)
		}
	}
}
