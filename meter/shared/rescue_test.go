package shared

import (
	"fmt"
	"reflect"
	"strconv"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/meter/shared/storetest"
)

// TestRescue makes limits of each kind decide by a share of 0.4, without a
// store.
func TestRescue(t *testing.T) {
	t.Parallel()
	server := storetest.Start(t, storetest.Kinds(t)[0])
	server.Kill()
	s := newTestStore(t, openClient(t, server.URL()), Config{})
	var all []*Limiter
	for i, p := range family {
		l := newTestLimiter(t, s,
			Limit{Name: fmt.Sprint("limit", i), Params: p, Fail: FailRescue, Share: 0.4})
		all = append(all, l)
		for _, step := range []struct {
			n             int64
			part, allowed bool
			taken, remain int64
		}{
			{0, false, true, 0, 2},
			{3, false, false, 0, 2},
			{1, false, true, 1, 1},
			{5, true, false, 1, 0},
			{1, false, false, 0, 0},
		} {
			d, err := l.one(ctx, Request{Limiter: l, Budget: "customer-42", N: step.n, Part: step.part})
			noError(t, err)
			if d.Source != FromRescue || d.Err == nil || d.Allowed != step.allowed || d.Taken != step.taken ||
				d.Remaining != step.remain || (d.RetryAfter == 0) != step.allowed {
				t.Errorf("%T, %+v: got %+v, want that decision FromRescue with an error", p, step, d)
			}
			if never := step.n-step.taken > 2; never != (d.RetryAfter == meter.Never) {
				t.Errorf("%T, %+v: got retry after %v, want Never: %v", p, step, d.RetryAfter, never)
			}
			if d.ResetAfter < 0 || d.ResetAfter > 20*time.Second || d.Remaining < 2 && d.ResetAfter == 0 {
				t.Errorf("%T, %+v: got reset after %v, want 0 to 20 s", p, step, d.ResetAfter)
			}
		}
		if d, err := l.Decide(ctx, "customer-43", 2); err != nil || !d.Allowed {
			t.Errorf("%T, another budget: got %+v, %v, want it allowed", p, d, err)
		}
	}
	closed := newTestLimiter(t, s, Limit{Name: "closed", Params: family[0]})
	opened := newTestLimiter(t, s, Limit{Name: "open", Params: family[0], Fail: FailOpen})
	for _, c := range []struct {
		name     string
		limiters []*Limiter
		n        int64
		want     bool
	}{
		{"more than one limit allows", all, 3, false},
		{"with a closed one", append([]*Limiter{closed}, all...), 1, false},
		{"with an open one", append([]*Limiter{opened}, all...), 1, true},
		{"the remainder", all, 1, true},
		{"when nothing is left", all, 1, false},
	} {
		var requests []Request
		for _, l := range c.limiters {
			requests = append(requests, Request{Limiter: l, Budget: "customer-44", N: c.n})
		}
		decisions, err := s.All(ctx, requests)
		noError(t, err)
		for i, d := range decisions {
			if d.Allowed != c.want || d.Taken != c.n*boolToInt(c.want) || d.Source == FromStore {
				t.Errorf("%s: %T: got %+v, want %v", c.name, c.limiters[i].limit.Params, d, c.want)
			}
		}
	}
}

// TestRescueKeys uses more keys than there are local meters: the remaining keys
// share one per shard, and do not get new bursts.
func TestRescueKeys(t *testing.T) {
	t.Parallel()
	s := idleStore(t)
	l := newTestLimiter(t, s, Limit{
		Name: "limit", Params: meter.TokenBucket{Rate: meter.Every(time.Hour), Burst: 1}, Fail: FailRescue,
		Share: 1,
	})
	requests := make([]Request, rescueKeys+rescueKeys/4)
	for i := range requests {
		requests[i] = Request{Limiter: l, Budget: strconv.Itoa(i), N: 1}
	}
	decisions, err := s.Each(ctx, requests)
	noError(t, err)
	allowed := 0
	for _, d := range decisions {
		allowed += int(d.Taken)
	}
	if allowed < rescueKeys/2 || allowed > rescueKeys+rescueShards {
		t.Errorf("%d of %d keys have a burst, want at most %d", allowed, len(requests),
			rescueKeys+rescueShards)
	}
}

// TestShareIsRoundedDown checks that rescue rates and bursts are rounded down exactly.
func TestShareIsRoundedDown(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		params LimitParams
		share  float64
		want   LimitParams
	}{
		{meter.TokenBucket{Rate: meter.Per(100, time.Second), Burst: 100}, 0.1, meter.TokenBucket{Rate: meter.Per(1, 100*time.Millisecond), Burst: 10}},
		{meter.TokenBucket{Rate: meter.Per(1, time.Second), Burst: 99}, 0.07, meter.TokenBucket{Rate: meter.Per(7, 100*time.Second), Burst: 6}},
		{meter.TokenBucket{Rate: meter.Per(3, time.Second), Burst: 7, GCRA: true}, 1, meter.TokenBucket{Rate: meter.Per(3, time.Second), Burst: 7, GCRA: true}},
		{meter.FixedWindow{Limit: 99, Window: time.Second}, 0.1, meter.FixedWindow{Limit: 9, Window: time.Second}},
		{meter.SlidingCounter{Limit: 99, Window: time.Second}, 0.1, meter.SlidingCounter{Limit: 9, Window: time.Second}},
		{meter.SlidingLog{Limit: 99, Window: time.Second, Entries: 4}, 0.1, meter.SlidingLog{Limit: 9, Window: time.Second, Entries: 4}},
	} {
		got, err := shareOf(c.params, c.share)
		noError(t, err)
		g, okGot := got.(meter.TokenBucket)
		w, okWant := c.want.(meter.TokenBucket)
		if okGot && okWant && g.Rate.Cmp(w.Rate) == 0 {
			g.Rate = w.Rate
			got = g
		}
		if !reflect.DeepEqual(got, c.want) {
			t.Errorf("%v of %+v: got %+v, want %+v", c.share, c.params, got, c.want)
		}
	}
}
