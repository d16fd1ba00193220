package meter

import (
	"math/rand/v2"
	"testing"
	"time"
)

// tableParams returns parameters of a kind that a table can have.
func tableParams(r *rand.Rand) compiler {
	for {
		c := anyParams(r)
		if log, ok := c.(SlidingLog); ok {
			log.Entries = min(log.Entries, 20)
			c = log
		}
		if _, ok := c.(TSWTCM); !ok {
			return c
		}
	}
}

// compareTable meters a stream with a table and the model. There are a few more keys than
// fit.
func compareTable[K comparable](t testing.TB, r *rand.Rand, make func(uint64) K, packets int) {
	t.Helper()
	params := tableParams(r)
	p := compileProfile(t, params)
	config := TableConfig{Keys: 1 + r.IntN(pick(r, 1, 3, 20, 100))}
	config.Idle = r.IntN(2) == 0
	config.Empty = !config.Idle && r.IntN(2) == 0
	fast, err := NewTable[K](p, config)
	if err != nil {
		t.Fatal(err)
	}
	slow := newSlowTable[K](p, config)
	profiles := []*Profile{
		p, compileProfile(t, params), compileProfile(t, tableParams(r)), compileProfile(t, tableParams(r)),
	}
	if r.IntN(2) == 0 { // the lengths of packets are near the bounds of their meters
		profiles = profiles[:2]
	}
	keys := uint64(config.Keys + r.IntN(config.Keys+3))
	c, e := p.Bursts()
	now := firstTime(r, params)
	for i := range packets {
		if r.IntN(100) == 0 {
			next := compileProfile(t, tableParams(r))
			refused := !p.sameRule(next) && (p.entries() > 0 || next.entries() > 0)
			if err := fast.SetProfile(now, next); (err != nil) != refused {
				t.Fatalf("%v to %v: got %v, want an error: %v", p.kind, next.kind, err, refused)
			} else if err == nil {
				p, slow.profile = next, next
				slow.setProfile(now)
				c, e = p.Bursts()
			}
		}
		key := make(min(r.Uint64N(keys), r.Uint64N(keys)))
		n, in := nextLength(r, params, c, e, c+1), Color(max(r.IntN(8)-5, 0))
		var got, want Color
		asked := make(r.Uint64N(keys))
		m := slow.would(asked, now)
		if got, want := fast.Peek(asked, now, n, in), m.Peek(now, n, in); got != want {
			t.Fatalf("%+v %+v packet %d: Peek of key %v, %d B at %d: %v, model %v", params, config, i, asked,
				n, now, got, want)
		}
		after, ever := fast.RetryAfter(asked, now, n)
		if wantAfter, wantEver := m.RetryAfter(now, n); after != wantAfter || ever != wantEver {
			t.Fatalf("%+v %+v packet %d: RetryAfter of key %v, %d B at %d: %v, %v, model %v, %v", params,
				config, i, asked, n, now, after, ever, wantAfter, wantEver)
		}
		if r.IntN(20) == 0 {
			if got, want := fast.Delete(asked), slow.delete(asked); got != want ||
				fast.Len() != len(slow.meters) {
				t.Fatalf("%+v packet %d: Delete of key %v: %v, then %d keys, model %v, %d", config, i, asked,
					got, fast.Len(), want, len(slow.meters))
			}
		}
		if r.IntN(10) == 0 {
			own := profiles[r.IntN(len(profiles))]
			if got, want := fast.Set(asked, now, own) == nil, slow.set(asked, now, own); got != want {
				t.Fatalf("%+v packet %d: Set of key %v succeeded: %v, model %v", config, i, asked, got, want)
			}
		}
		if asked := make(r.Uint64N(keys)); r.IntN(20) == 0 {
			if got, want := fast.Unset(asked, now), slow.unset(asked, now); got != want {
				t.Fatalf("%+v packet %d: Unset of key %v: %v, model %v", config, i, asked, got, want)
			}
		}
		if r.IntN(20) == 0 {
			compareAll(t, fast, slow, now)
			fast = Rekey(fast, func(key K) K { return key })
		}
		if r.IntN(20) == 0 {
			fast = restoredTable(t, fast, profiles[r.IntN(len(profiles))])
			slow.stats.Evicted, slow.stats.Refused = 0, 0
		}
		kind := slow.kind(key, now)
		if r.IntN(4) == 0 && in == Green {
			d := fast.Decide(key, now, n)
			if want := slow.use(key, now).Decide(now, n); d != want {
				t.Fatalf("%+v %+v packet %d: key %v, %d B at %d: %+v, model %+v", params, config, i, key, n,
					now, d, want)
			}
			continue
		}
		if in == Red {
			want = Red
		} else {
			want = slow.use(key, now).Color(now, n, in)
		}
		if r.IntN(4) == 0 {
			x := fast.Explain(key, now, n, in)
			got = x.Color
			if x.Length != n || x.In != in || x.Clause != kind.Clause(in, got) || x.Clause.Text() == "" {
				t.Fatalf("got %+v, want length %d, input color %v and the clause of %v", x, n, in, got)
			}
		} else {
			got = fast.Color(key, now, n, in)
		}
		if got != want || fast.Stats() != slow.stats {
			t.Fatalf("%+v %+v packet %d: key %v, %d B at %d, input %v: %v, model %v; %+v, model %+v",
				params, config, i, key, n, now, in, got, want, fast.Stats(), slow.stats)
		}
		key = make(r.Uint64N(keys))
		tc, te, known := fast.Tokens(key, now)
		if m := slow.find(key); known != (m != nil) {
			t.Fatalf("%+v: key %v: got known %v, want %v", config, key, known, m != nil)
		} else if known {
			if wantC, wantE := m.Tokens(now); tc != wantC || te != wantE {
				t.Fatalf("%+v: key %v has %d, %d, model %d, %d", params, key, tc, te, wantC, wantE)
			}
		}
		if a, b := tokensOf(fast.Rest(), now), tokensOf(&slow.rest, now); a != b {
			t.Fatalf("%+v packet %d: got %v tokens of the shared meter, want %v", params, i, a, b)
		}
		entries := 0
		for _, v := range fast.index {
			if v != 0 {
				entries++
			}
		}
		if entries != fast.Stats().Keys {
			t.Fatalf("got %d entries in the index, want %d", entries, fast.Stats().Keys)
		}
		now = pick(r, now, now, nextTime(r, params, now))
	}
}

func resetOf(m *Meter, now int64) time.Duration { return orNever(m.ResetAfter(now)) }

// compareAll compares All with the model, and checks that it returns clones.
func compareAll[K comparable](t testing.TB, fast *Table[K], slow *slowTable[K], now int64) {
	t.Helper()
	seen := map[K]bool{}
	for key, m := range fast.All() {
		want := slow.find(key)
		if seen[key] || want == nil || m.profile.kind != want.profile.kind ||
			tokensOf(m, now) != tokensOf(want, now) || tokensOf(m, now+1000) != tokensOf(want, now+1000) ||
			resetOf(m, now) != resetOf(want, now) {
			t.Fatalf("All has key %v (seen twice: %v) with %v, %v, model %+v", key, seen[key], m.profile.kind,
				tokensOf(m, now), want)
		}
		seen[key] = true
		for range 3 {
			m.Color(now, 1, Green)
		}
		if tc, te, _ := fast.Tokens(key, now); [2]int64{tc, te} != tokensOf(want, now) {
			t.Fatalf("a change to the clone of key %v changed the table", key)
		}
	}
	if len(seen) != len(slow.meters) {
		t.Fatalf("All returned %d keys, want %d", len(seen), len(slow.meters))
	}
}
