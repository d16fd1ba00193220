package shared

import (
	"errors"
	"math"
	"math/big"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/a-seed-32e5a53f/shaper/meter"
)

// idleStore returns a store that never connects.
func idleStore(t testing.TB) *Backend {
	client := redis.NewClient(
		&redis.Options{Addr: "127.0.0.1:1", ContextTimeoutEnabled: true, DialerRetries: 1, MaxRetries: -1})
	t.Cleanup(func() { _ = client.Close() })
	return newTestStore(t, client, Config{})
}

// TestLimitErrors checks limits that a script cannot count exactly, and invalid
// names. The error must have the field and the remedy. A limit at the bound is
// valid.
func TestLimitErrors(t *testing.T) {
	t.Parallel()
	s := idleStore(t)
	fine := meter.TokenBucket{Rate: meter.Per(1, time.Second), Burst: 1}
	for _, c := range []struct {
		limit Limit
		want  []string // none if the limit is valid
	}{
		{Limit{Name: "a", Params: fine}, nil},
		{Limit{Name: strings.Repeat("a", 64), Params: fine}, nil},
		{Limit{Name: strings.Repeat("a", 65), Params: fine}, []string{"Name has 65 bytes", "the maximum is 64"}},
		{Limit{Name: "", Params: fine}, []string{"Name is empty"}},
		{Limit{Name: "a}b", Params: fine}, []string{"Name", "leave them out"}},
		{Limit{Name: "a{b", Params: fine}, []string{"Name", "leave them out"}},
		{Limit{Name: "a:b", Params: fine}, []string{"Name", "leave them out"}},
		{Limit{Name: "a\nb", Params: fine}, []string{"Name", `"a\nb"`, "line break"}},
		{Limit{Name: "a\xff", Params: fine}, []string{"Name", "UTF-8"}},
		{Limit{Name: "a"}, []string{"Params is missing"}},
		{Limit{Name: "{", Params: meter.TokenBucket{}}, []string{"Name", "Rate", "Burst"}},
		{Limit{Name: "a", Params: meter.SRTCM{CIR: meter.Per(1, 1), CBS: 1}}, []string{"Params meter.SRTCM", "use TokenBucket"}},
		{Limit{Name: "a", Params: meter.TokenBucket{Rate: meter.Per(1, time.Second), Burst: 1, Warmup: time.Second}}, []string{"Warmup", "leave it out"}},
		{Limit{Name: "a", Params: meter.TokenBucket{Rate: meter.Unlimited, Burst: 1}}, []string{"Rate is unlimited"}},

		// 1/1000000 token per µs: 10^6 ticks per token, and at most 2^50 ticks.
		{Limit{Name: "a", Params: meter.TokenBucket{Rate: meter.Per(1, time.Second), Burst: 1<<50/1_000_000 + 0}}, nil},
		{Limit{Name: "a", Params: meter.TokenBucket{Rate: meter.Per(1, time.Second), Burst: 1<<50/1_000_000 + 1}}, []string{"Burst of 1125899907 is above 1125899906", "1/1000000 tokens per µs", "smaller Burst"}},
		{Limit{Name: "a", Params: meter.TokenBucket{Rate: meter.Per(1<<36, time.Microsecond), Burst: 1}}, nil},
		{Limit{Name: "a", Params: meter.TokenBucket{Rate: meter.Per(1<<36+1, time.Microsecond), Burst: 1}}, []string{"Rate of 68719476737/1 tokens per µs", "too fast"}},
		{Limit{Name: "a", Params: meter.TokenBucket{Rate: meter.Per(math.MaxInt64-1, time.Nanosecond), Burst: 1}}, []string{"Rate", "too fast"}},
		{Limit{Name: "a", Params: meter.TokenBucket{Rate: meter.BitRate(10_000_000_000), Burst: 100 << 20}}, nil},
		{Limit{Name: "a", Params: meter.TokenBucket{Rate: meter.Per(10_000, 24*time.Hour), Burst: 10_000}}, nil},

		{Limit{Name: "a", Params: meter.FixedWindow{Limit: 1 << 47, Window: 366 * 24 * time.Hour}}, nil},
		{Limit{Name: "a", Params: meter.FixedWindow{Limit: 1, Window: 1500}}, []string{"Window of 1.5µs", "whole number of microseconds"}},
		{Limit{Name: "a", Params: meter.SlidingCounter{Limit: 853_999_616, Window: 24 * time.Hour}}, nil},
		{Limit{Name: "a", Params: meter.SlidingCounter{Limit: 853_999_617, Window: 24 * time.Hour}}, []string{"Limit of 853999617 is above 853999616", "24h0m0s", "shorter Window"}},
		{Limit{Name: "a", Params: meter.SlidingLog{Limit: 1, Window: time.Second, Entries: 1 << 16}}, nil},
		{Limit{Name: "a", Params: meter.SlidingLog{Limit: 1, Window: time.Second, Entries: 1<<16 + 1}}, []string{"Entries 65537 are above 65536", "use meter.SlidingCounter"}},

		{Limit{Name: "a", Params: fine, Fail: 3}, []string{"Fail 3"}},
		{Limit{Name: "a", Params: fine, Share: 0.5}, []string{"Share of 0.5 needs FailRescue"}},
		{Limit{Name: "a", Params: fine, Fail: FailRescue, Share: 1}, nil},
		{Limit{Name: "a", Params: fine, Fail: FailRescue}, []string{"Share of 0 must be above 0 and at most 1"}},
		{Limit{Name: "a", Params: fine, Fail: FailRescue, Share: 1.1}, []string{"Share of 1.1"}},
		{Limit{Name: "a", Params: fine, Fail: FailRescue, Share: math.NaN()}, []string{"Share of NaN"}},
		{Limit{Name: "a", Params: fine, Fail: FailRescue, Share: 0.5}, []string{"Share of 0.5 leaves less than 1 of 1", "larger share"}},
		{Limit{Name: "a", Params: meter.TokenBucket{Rate: meter.Per(1, 24*time.Hour), Burst: 100}, Fail: FailRescue, Share: 0.1234567890123}, []string{"Share", "too many digits"}},
	} {
		_, err := s.Limiter(c.limit)
		if (err != nil) != (c.want != nil) {
			t.Errorf("%+v: got %v, want %q", c.limit, err, c.want)
			continue
		}
		var field *meter.FieldError
		if err != nil && !errors.As(err, &field) {
			t.Errorf("%+v: got %T, want a FieldError", c.limit, err)
		}
		for _, want := range c.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%+v: %q lacks %q", c.limit, err, want)
			}
		}
	}
}

// TestRequestErrors checks invalid requests, without a store.
func TestRequestErrors(t *testing.T) {
	t.Parallel()
	s := idleStore(t)
	l := newTestLimiter(t, s, Limit{Name: "a", Params: family[0]})
	other := newTestLimiter(t, idleStore(t), Limit{Name: "a", Params: family[0]})
	fine := Request{Limiter: l, Budget: "b", N: 1}
	for _, c := range []struct {
		all  bool
		r    []Request
		want string
	}{
		{false, []Request{{Limiter: l, Budget: "", N: 1}}, "Budget is empty"},
		{false, []Request{fine, {Limiter: l, Budget: "b}c", N: 1}}, "Budget"},
		{false, []Request{{Limiter: l, Budget: "b\r\nc", N: 1}}, `Budget "b\r\nc" contains a line break`},
		{false, []Request{{Limiter: l, Budget: strings.Repeat("b", 257), N: 1}}, "Budget has 257 bytes: the maximum is 256"},
		{false, []Request{{Limiter: l, Budget: "b", Key: "{", N: 1}}, "Key"},
		{false, []Request{{Limiter: l, Budget: "b", N: -1}}, "N of -1 is negative"},
		{false, []Request{{Budget: "b"}}, "Limiter is missing"},
		{false, []Request{{Limiter: other, Budget: "b"}}, "belongs to another store"},
		{true, []Request{fine, {Limiter: l, Budget: "c"}}, `"b" and "c" differ`},
		{true, []Request{{Limiter: l, Budget: "b", Part: true}}, "Part is set"},
		{true, []Request{fine, fine}, "occurs twice"},
		{true, make257(l), "Requests are 257"},
	} {
		decide := s.Each
		if c.all {
			decide = s.All
		}
		if d, err := decide(ctx, c.r); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %+v, %v", c.want, d, err)
		}
	}
	for _, decide := range []func() ([]Decision, error){
		func() ([]Decision, error) { return s.Each(ctx, nil) },
		func() ([]Decision, error) { return s.All(ctx, nil) },
	} {
		if d, err := decide(); len(d) != 0 || err != nil {
			t.Errorf("no requests: got %+v, %v, want no decision and no error", d, err)
		}
	}
	if stats := s.Stats(); stats.Lost != 0 {
		t.Errorf("%+v: the store was called", stats)
	}
}

func make257(l *Limiter) (r []Request) {
	for i := range 257 {
		r = append(r, Request{Limiter: l, Budget: "b", Key: strconv.Itoa(i)})
	}
	return r
}

// TestNewErrors checks clients and configurations that New rejects.
func TestNewErrors(t *testing.T) {
	t.Parallel()
	patient := redis.NewClient(&redis.Options{})
	cluster := redis.NewClusterClient(&redis.ClusterOptions{})
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": "127.0.0.1:1"}})
	t.Cleanup(func() { _, _, _ = patient.Close(), cluster.Close(), ring.Close() })
	fine := idleStore(t).client
	for _, c := range []struct {
		client redis.UniversalClient
		config Config
		want   []string
	}{
		{nil, Config{}, []string{"Client is missing"}},
		{patient, Config{}, []string{"Client", "set ContextTimeoutEnabled"}},
		{cluster, Config{}, []string{"set ContextTimeoutEnabled"}},
		{ring, Config{Deadline: 1, Retry: 1}, []string{"set ContextTimeoutEnabled", "Deadline of 1ns", "Retry of 1ns"}},
		{fine, Config{Deadline: 11 * time.Second}, []string{"Deadline of 11s is not between 1ms and 10s"}},
		{fine, Config{Retry: 2 * time.Minute}, []string{"Retry of 2m0s is not between 10ms and 1m"}},
	} {
		_, err := New(c.client, c.config)
		for _, want := range c.want {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%+v: %v lacks %q", c.config, err, want)
			}
		}
	}
}

// TestOpenURLErrors checks invalid URLs. The error must not contain the password.
func TestOpenURLErrors(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]string{
		"":                      "does not start with redis://",
		"http://127.0.0.1:6379": "does not start with redis://",
		"127.0.0.1:6379":        "cannot be parsed",
		"redis://host:port":     "cannot be parsed",
		"redis://host:port?sentinel_password=" + secretWord:                "cannot be parsed",
		"redis://host:6379/database":                                       `database "database" is not a number`,
		"redis://host:6379?unknown=1":                                      `unknown URL parameter "unknown"`,
		"redis://user:" + secretWord + "/x@host:6379":                      "in a password, write",
		"redis://user:" + secretWord + "#x@host":                           "in a password, write",
		"redis://user:" + secretWord + "%zz@host":                          "in a password, write",
		"redis://user:x@" + secretWord + ":6379x":                          "in a password, write",
		"redis://host?master_name=a&password=" + secretWord + "&unknown=1": "unknown URL parameter",
	} {
		client, err := Open(Server{URL: url})
		if err == nil {
			_ = client.Close()
			t.Errorf("%s: got nil, want an error", url)
			continue
		}
		if !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), secretWord) {
			t.Errorf("%s: got %v, want %q without a password", url, err, want)
		}
	}
}

// FuzzKeys checks that all accepted limits, budgets and keys have different
// names, with the budget as hash tag.
func FuzzKeys(f *testing.F) {
	f.Add("limit", "customer-42", "alice", "limit", "customer-42", "")
	f.Add("a", "b", "c", "a:b", "b}:a", "c")
	f.Add("a", "b", ":c", "a", "b:", "c")
	s := idleStore(f)
	key := func(name, budget, key string) (string, bool) {
		l, err := s.Limiter(Limit{Name: name, Params: family[0]})
		if err != nil || checkName("Budget", budget, maxKey, "") != nil ||
			checkName("Key", key, maxKey, "") != nil {
			return "", false
		}
		return l.key(budget, key), true
	}
	f.Fuzz(func(t *testing.T, name1, budget1, key1, name2, budget2, key2 string) {
		a, ok1 := key(name1, budget1, key1)
		b, ok2 := key(name2, budget2, key2)
		if !ok1 || !ok2 {
			return
		}
		same := name1 == name2 && budget1 == budget2 && key1 == key2
		if (a == b) != same {
			t.Errorf("%q and %q: got equal %v, want %v", a, b, a == b, same)
		}
		begin := strings.IndexByte(a, '{')
		end := begin + strings.IndexByte(a[begin:], '}')
		if tag := a[begin+1 : end]; tag != "shaper:"+budget1 {
			t.Errorf("%q: got hash tag %q, want that of budget %q", a, tag, budget1)
		}
	})
}

// FuzzBounds checks that no number in the script of an accepted limit is above
// 2^53, and that no quotient is wrongly rounded to a whole number.
func FuzzBounds(f *testing.F) {
	f.Add(int64(3), int64(time.Second), int64(100), int64(time.Minute), int64(7))
	f.Add(int64(1<<36), int64(time.Microsecond), int64(1), int64(24*time.Hour), int64(1))
	s := idleStore(f)
	exact := big.NewInt(1 << 53)
	product := func(t *testing.T, name string, factors ...int64) {
		p := big.NewInt(1)
		for _, n := range factors {
			p.Mul(p, big.NewInt(n))
		}
		if p.Cmp(exact) > 0 {
			t.Errorf("%s: got %d, want at most 2^53", name, p)
		}
	}
	f.Fuzz(func(t *testing.T, bytes, period, burst, window, n int64) {
		if l, err := s.Limiter(Limit{
			Name: "a", Params: meter.TokenBucket{Rate: meter.Per(bytes, time.Duration(period)), Burst: burst},
		}); err == nil {
			ticks, per, cycle := l.args[0], l.args[1], l.args[2]
			product(t, "cycle", cycle, per)
			product(t, "four bursts", 4, ticks)
			if ticks/per > cycle/4 {
				t.Errorf("got a burst of %d µs, want at most a quarter of the cycle %d", ticks/per, cycle)
			}
			if amount := l.amount(max(n, 0)); amount < 0 || amount > ticks+l.den {
				t.Errorf("got the amount %d for %d, want 0 to the burst", amount, n)
			}
			// The cost of a token is exact: num * den ticks in the time of
			// Bytes tokens.
			left := new(big.Int).Mul(big.NewInt(period), big.NewInt(per))
			right := new(big.Int).Mul(big.NewInt(1000*l.den), big.NewInt(bytes))
			if left.Cmp(right) != 0 && bytes > 0 {
				t.Errorf("rate of %d bytes in %d: got %d/%d per µs, want the exact rate", bytes, period, per,
					l.den)
			}
		}
		if l, err := s.Limiter(Limit{
			Name: "a", Params: meter.SlidingCounter{Limit: burst, Window: time.Duration(window)},
		}); err == nil {
			limit, us, split := l.args[0], l.args[1], l.args[2]
			product(t, "high part", limit/split, us)
			product(t, "low part", 2, split, us)
		}
	})
}
