package shared

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/a-seed-32e5a53f/shaper/meter/shared/lease"
	"github.com/a-seed-32e5a53f/shaper/meter/shared/storetest"
)

// TestOperate inspects a budget as an operator, changes its size, and drops a
// host.
func TestOperate(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, s *storetest.Server) {
		ctx, client := t.Context(), s.Client()
		if names, err := ListBudgets(ctx, client); err != nil || len(names) > 0 {
			t.Errorf("an empty store: got budgets %v, %v, want none", names, err)
		}
		if _, err := ShowBudget(ctx, client, "b"); !errors.Is(err, ErrNoBudget) {
			t.Errorf("an empty store: got %v, want ErrNoBudget", err)
		}
		small := lease.Amounts{Rate: [2]int64{budget / 4}, Burst: [2]int64{1 << 18}}
		noError(t, SetBudget(ctx, client, "b", small))
		if b, err := ShowBudget(ctx, client, "b"); err != nil || *b.Set != small || b.Size != small ||
			len(b.Hosts) > 0 {
			t.Errorf("got %+v, %v, want the set size and no hosts", b, err)
		}
		if ttl := client.TTL(ctx, key("b")).Val(); ttl != -1 {
			t.Errorf("got a TTL of %v for the key of a set size, want -1", ttl)
		}
		g := joinHosts(t, 3, Server{URL: s.URL()})
		g.awaitSettled(t, "the size that is set", budget/4)
		var b *BudgetInfo
		var err error
		storetest.Until(t, "no host is late", func() bool { // on a busy machine it may be, for a while
			b, err = ShowBudget(ctx, client, "b")
			noError(t, err)
			late := func(h HostInfo) bool { return h.Late || h.Called > b.Lease }
			return len(b.Hosts) == 3 && b.Late == 0 && !slices.ContainsFunc(b.Hosts, late)
		})
		if *b.Set != small || b.Size != small || b.Smallest != "" ||
			b.Interval != 100*time.Millisecond || b.Deadline != 90*time.Millisecond ||
			b.Lease != 505*time.Millisecond || b.Replicas != 0 {
			t.Fatalf("got %+v, want the set size and the times of the terms", b)
		}
		if since := time.Since(b.Began); since < 0 || since > time.Minute {
			t.Errorf("got Began %v ago, want at most a minute", since)
		}
		var sum lease.Amounts
		for i, h := range b.Hosts {
			sum = sum.Plus(h.Share)
			if h.Name != g.agents[i].Status()[0].Host || h.Weight != 1 || h.Floor != testTerms().Floor ||
				h.Demand[0] < small.Rate[0]/3 ||
				h.Size != testTerms().Size || h.Rescue.Rate[0] != small.Rate[0]/30 {
				t.Errorf("got %+v, want the terms of %s", h, g.agents[i].Status()[0].Host)
			}
		}
		if sum != b.Held || sum.Rate[0] > small.Rate[0] {
			t.Errorf("got hosts that hold %+v, want %+v, at most the size", sum, b.Held)
		}
		was, err := UnsetBudget(ctx, client, "b")
		if err != nil || !was {
			t.Errorf("UnsetBudget: got %v, %v, want true, nil", was, err)
		}
		g.awaitSettled(t, "the policies' size", budget)
		if was, err = UnsetBudget(ctx, client, "b"); err != nil || was {
			t.Errorf("UnsetBudget without a size: got %v, %v, want false, nil", was, err)
		}
		if ttl := client.TTL(ctx, key("b")).Val(); ttl < time.Hour {
			t.Errorf("got a TTL of %v for the key of a budget, want at least an hour", ttl)
		}

		// unless it is late at this moment
		storetest.Until(t, "DropHost of a running host fails", func() bool {
			err := DropHost(ctx, client, "b", "host-0")
			if err == nil {
				g.awaitSettled(t, "it has joined again", budget)
				return false
			}
			if !strings.Contains(err.Error(), "stop its shaper") {
				t.Fatalf("DropHost of a running host: got %v, want \"stop its shaper\"", err)
			}
			return true
		})
		if err := DropHost(ctx, client, "b", "host-9"); !errors.Is(err, ErrNoHost) {
			t.Errorf("DropHost of an unknown host: got %v, want ErrNoHost", err)
		}
		g.stop[2]()
		rescue := budget / 30
		storetest.Until(t, "it is late", func() bool {
			b, err = ShowBudget(ctx, client, "b")
			return err == nil && b.Late == 1 && b.Hosts[2].Late && b.Hosts[2].Share.Rate[0] == rescue &&
				b.Hosts[2].Called > b.Lease
		})
		if two := b.Hosts[0].Share.Plus(b.Hosts[1].Share).Rate[0]; two > budget-rescue {
			t.Errorf("the other hosts hold %d, want at most %d", two, budget-rescue)
		}
		noError(t, DropHost(ctx, client, "b", "host-2"))
		storetest.Until(t, "the others have all of it", func() bool {
			b, err = ShowBudget(ctx, client, "b")
			return err == nil && len(b.Hosts) == 2 && b.Held.Rate[0] > budget*99/100
		})
		noError(t, SetBudget(ctx, client, "a", small))
		noError(t, client.Set(ctx, "other", "", 0).Err())
		if names, err := ListBudgets(ctx, client); err != nil || strings.Join(names, " ") != "a b" {
			t.Errorf("got budgets %v, %v, want a and b", names, err)
		}
		for _, bad := range []string{"", "a{b}", "a\nb", "*", strings.Repeat("a", 129)} {
			_, err1 := ShowBudget(ctx, client, bad)
			_, err2 := UnsetBudget(ctx, client, bad)
			for _, err := range []error{
				err1, err2, SetBudget(ctx, client, bad, small), DropHost(ctx, client, bad, "a"),
				DropHost(ctx, client, "a", bad),
			} {
				if err == nil || strings.Contains(err.Error(), "\n") {
					t.Errorf("name %q: got %v, want an error of one line", bad, err)
				}
			}
		}
		for user, want := range map[string]string{"operator": "", "agent": "+eval_ro"} {
			client, err := Open(Server{URL: s.URLOf(user, "s3cr3t")})
			noError(t, err)
			_, err = ShowBudget(ctx, client, "b")
			if _, err2 := ListBudgets(ctx, client); want == "" && (err != nil || err2 != nil) {
				t.Errorf("%s: got %v, %v, want nil", user, err, err2)
			} else if want != "" {
				checkWords(t, err, "lacks a permission", want)
				checkWords(t, err2, "lacks a permission", want)
			}
			noError(t, client.Close())
		}
		if err := SetBudget(ctx, client, "a", lease.Amounts{Rate: [2]int64{-1}}); err == nil {
			t.Error("SetBudget accepted a negative rate")
		}
	}, storetest.User("agent", "s3cr3t", strings.Fields(Rights)...),
		storetest.User("operator", "s3cr3t", strings.Fields(Rights+" +scan +eval_ro")...))
}

// pages answers each SCAN with the next page of keys.
type pages struct {
	counting
	keys [][]string
	ends bool // with the last page; otherwise that is repeated indefinitely
}

func (p *pages) ProcessHook(redis.ProcessHook) redis.ProcessHook {
	return func(_ context.Context, cmd redis.Cmder) error {
		n := int(p.n.Add(1))
		cursor := uint64(n)
		if p.ends && n == len(p.keys) {
			cursor = 0
		}
		cmd.(*redis.ScanCmd).SetVal(p.keys[min(n, len(p.keys))-1], cursor)
		return nil
	}
}

// TestListPages lists budgets whose keys are between empty pages, and those of a server that
// never ends the list.
func TestListPages(t *testing.T) {
	t.Parallel()
	many := make([]string, 1<<16)
	for i := range many {
		many[i] = key("a")
	}
	for name, row := range map[string]struct {
		pages *pages
		want  string
		calls int64
	}{
		"empty pages":       {&pages{keys: [][]string{{}, {key("b")}, {}, {}, {key("a"), key("b")}, {}}, ends: true}, "", 6},
		"endless and empty": {&pages{keys: [][]string{{}}}, "more than 1048576 pages", 1 << 20},
		"endless":           {&pages{keys: [][]string{many}}, "more than 1048576 budgets", 17},
	} {
		client := redis.NewClient(&redis.Options{})
		client.AddHook(row.pages)
		names, err := ListBudgets(t.Context(), client)
		if row.want == "" && (err != nil || strings.Join(names, " ") != "a b") || row.want != "" &&
			(err == nil || !strings.Contains(err.Error(), row.want)) {
			t.Errorf("%s: got %d names and %v, want %q", name, len(names), err, row.want)
		}
		if n := row.pages.n.Load(); n != row.calls {
			t.Errorf("%s: got %d calls, want %d", name, n, row.calls)
		}
		noError(t, client.Close())
	}
}
