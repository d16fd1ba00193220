package shared

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/meter/shared/lease"
	"github.com/a-seed-32e5a53f/shaper/meter/shared/storetest"
)

// leaseReply returns a granted reply for a budget of budget bit/s, with other
// numbers at some indexes of store.lua's list.
func leaseReply(other map[int]any) []byte {
	values := []any{
		int64(0), time.Now().UnixMicro(), int64(5), budget / 2, int64(0), int64(1 << 19), int64(0),
		budget / 20, int64(0), int64(1 << 15), int64(0), int64(0), int64(0), budget, int64(0), int64(1 << 20),
		int64(0), int64(2), int64(0), int64(0), int64(0), "",
	}
	for at, v := range other {
		values[at] = v
	}
	return storetest.Encode([]any{values})
}

// TestAgentLiedTo runs an agent on a server that begins to lie after a while. The
// agent must name each lie and fall to the rescue share of the last right reply.
func TestAgentLiedTo(t *testing.T) {
	t.Parallel()
	const said = "the store replied with "
	lie := func(other map[int]any) func() []byte { return func() []byte { return leaseReply(other) } }
	text := func(s string) func() []byte { return func() []byte { return []byte(s) } }
	for name, row := range map[string]struct {
		answer func() []byte
		want   string
	}{
		"share above the size":         {lie(map[int]any{3: budget + 1}), said + "a share above the budget"},
		"burst above the size":         {lie(map[int]any{5: int64(1<<20 + 1)}), said + "a share above the budget"},
		"rescue above the size":        {lie(map[int]any{7: 2 * budget}), said + "a rescue share above the budget"},
		"negative share":               {lie(map[int]any{3: int64(-5)}), said + "a share out of range: a rate of -5 bit/s"},
		"negative burst":               {lie(map[int]any{6: int64(-1)}), said + "a share out of range: a burst of -1"},
		"negative spare":               {lie(map[int]any{11: int64(-1)}), said + "a spare rate of -1"},
		"greedy":                       {lie(map[int]any{3: int64(1 << 60), 13: int64(1 << 60)}), said + "a size out of range"},
		"no hosts":                     {lie(map[int]any{17: int64(0)}), said + "0 hosts, not 1 to 4096"},
		"overflowing hosts":            {lie(map[int]any{17: int64(1 << 62)}), said + "4611686018427387904 hosts"},
		"negative hosts":               {lie(map[int]any{17: int64(math.MinInt64)}), said + "-9223372036854775808 hosts"},
		"late hosts":                   {lie(map[int]any{18: int64(3)}), said + "3 late hosts of 2"},
		"negative time":                {lie(map[int]any{1: int64(-1)}), said + "the time -1"},
		"far time":                     {lie(map[int]any{1: int64(1 << 60)}), said + "the time 1152921504606846976"},
		"epoch in the future":          {lie(map[int]any{2: int64(1 << 60)}), said + "the epoch"},
		"replicas":                     {lie(map[int]any{20: int64(-2)}), said + "-2 replicas"},
		"learning":                     {lie(map[int]any{19: int64(2)}), said + "2 instead of a number from 0 to 1"},
		"name":                         {lie(map[int]any{21: "\x1b]0;pwn\a"}), said + `the name "\x1b]0;pwn\a"`},
		"long name":                    {lie(map[int]any{21: strings.Repeat("x", 5000)}), said + `the name "xxx`},
		"a string for a number":        {lie(map[int]any{3: "1"}), said + "string instead of int64"},
		"a list for a number":          {lie(map[int]any{3: []any{int64(1)}}), said + "[]interface {} instead of int64"},
		"null for a number":            {lie(map[int]any{3: nil}), said + "<nil> instead of int64"},
		"answer to a host that leaves": {text("*1\r\n*3\r\n:0\r\n:5\r\n:5\r\n"), said + "a list of 3 that begins with 0"},
		"unknown refusal":              {text("*1\r\n*1\r\n:9\r\n"), said + "the unknown refusal 9"},
		"granted, but nothing":         {text("*1\r\n*1\r\n:0\r\n"), said + "a list of 1 that begins with 0"},
		"no list":                      {text("*1\r\n:1\r\n"), said + "int64 instead of a list"},
		"empty list":                   {text("*1\r\n*0\r\n"), said + "too short a list"},
		"no answer for the budget":     {text("*0\r\n"), said + "0 answers for 1 budgets"},
		"two answers":                  {text("*2\r\n*1\r\n:9\r\n*1\r\n:9\r\n"), said + "2 answers for 1 budgets"},
		"deep list":                    {text(strings.Repeat("*1\r\n", 200_000)), said + "lists in more than 16 lists"},
		"huge string":                  {text("$536870912\r\n" + strings.Repeat("A", 1000)), said + `a length of "536870912"`},
		"huge list":                    {text("*1000000000\r\n"), said + `a length of "1000000000"`},
		"huge error":                   {text("-ERR " + strings.Repeat("A", 5_000_000) + "\r\n"), said + "a line of more than 4096 bytes"},
		"long error":                   {text("-ERR " + strings.Repeat("A", 4000) + "\r\n"), "the script failed (ERR AAA"},
		"error for a terminal":         {text("-ERR \x1b]0;pwn\x07\x1b[31m evil\x9b2J\r\n"), `the script failed (ERR \x1b]0;pwn\a\x1b[31m evil\x9b2J)`},
		"no protocol":                  {text("\x00\x1b[31m\r\n"), `redis: can't parse`},
		"truncated":                    {func() []byte { return leaseReply(nil)[:40] }, "no answer within"},
		"slow":                         {func() []byte { time.Sleep(time.Second / 2); return leaseReply(nil) }, "no answer within"},
		"closed":                       {func() []byte { return nil }, "the server closed the connection"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var lying atomic.Bool
			addr := storetest.Fake(t, func([]string) []byte {
				if lying.Load() {
					return row.answer()
				}
				return leaseReply(nil)
			})
			g := joinHosts(t, 1, Server{URL: "redis://" + addr})
			m := g.meters[0]
			storetest.Until(t, "the share of the right replies",
				func() bool { return m.allowedRate() == budget/2 })
			lying.Store(true)
			g.awaitEvent(t, 0, Lost)
			from := "redis://" + addr + ": "
			var errs []error
			storetest.Until(t, row.want, func() bool {
				err := g.agents[0].Status()[0].Err
				errs = append(errs, err)
				return err != nil && strings.HasPrefix(err.Error(), from+row.want)
			})
			g.doAtOnce(func() {
				for _, e := range g.events {
					if e.Kind == Lost {
						errs = append(errs, e.Err)
					}
				}
			})
			for _, err := range errs {
				if err == nil {
					continue
				}
				got := err.Error()
				late := strings.HasPrefix(got, from+"no answer within") || // on a busy machine
					strings.HasPrefix(got, from+"the answer took")
				if !late && !strings.HasPrefix(got, from+row.want) || len(got) > 350 ||
					strings.ContainsFunc(got, func(r rune) bool { return r < ' ' }) {
					t.Errorf("got %q, want %q", got, row.want)
				}
			}
			storetest.Until(t, "the rescue share", func() bool { return m.allowedRate() == budget/20 })
			g.doAtOnce(func() {
				if g.most > budget/2 {
					t.Errorf("the meter could use %d, want at most %d", g.most, budget/2)
				}
			})
			lying.Store(false)
			storetest.Until(t, "the share again", func() bool { return m.allowedRate() == budget/2 })
		})
	}
}

// panicking is a meter, or a reader of events, that panics.
type panicking struct {
	*fluid
	at atomic.Int32 // 1: Counts, 2: Apply
}

func (p *panicking) Counts() (lease.Counts, error) {
	if p.at.Load() == 1 {
		panic("counts")
	}
	return p.fluid.Counts()
}

func (p *panicking) Apply(plan lease.Plan) error {
	if p.at.Load() == 2 {
		var none []int
		_ = none[len(plan.Phase)]
	}
	return p.fluid.Apply(plan)
}

// TestAgentPanics makes the meter of one of two budgets panic, and the function
// that gets events. The agent must report that, let the lease end, and go on.
func TestAgentPanics(t *testing.T) {
	t.Parallel()
	s := storetest.Start(t, storetest.Kinds(t)[0])
	g := &group{at: testClock()}
	client, err := Open(Server{URL: s.URL()})
	noError(t, err)
	defer client.Close()
	var silent atomic.Bool
	failed := make(chan error, 100)
	notify := func(e Event) {
		if silent.Load() {
			panic(errors.New("notify"))
		}
		if e.Kind == Failed {
			failed <- e.Err
		}
	}
	a, err := NewAgent(client, []Budget{{"a", "host", testTerms()}, {"b", "host", testTerms()}},
		AgentConfig{Clock: testClock, Notify: notify})
	noError(t, err)
	wrong, right := &panicking{fluid: &fluid{group: g, offers: budget}}, &fluid{group: g, offers: budget}
	g.doAtOnce(func() { g.agents, g.meters = append(g.agents, a), []*fluid{wrong.fluid, right} })
	noError(t, a.Bind([]LeasedMeter{wrong, right}))
	g.runAgent(t, a)
	for at, place := range []string{
		"counts (hostile_agent_test.go:",
		"runtime error: index out of range [3] with length 0 (hostile_agent_test.go:",
	} {
		full := budget * 99 / 100
		storetest.Until(t, "both have their budgets",
			func() bool { return wrong.allowedRate() > full && right.allowedRate() > full })
		wrong.at.Store(int32(at + 1))
		storetest.Until(t, "the rescue share", func() bool { return wrong.allowedRate() == budget/10 })
		storetest.Until(t, "the panic with its place", func() bool {
			err := a.Status()[0].Err
			return err != nil && strings.HasPrefix(err.Error(), "internal error, please report it: "+place)
		})
		storetest.Until(t, "the other budget's share",
			func() bool { return right.allowedRate() > full && !a.Status()[1].Rescued })
		if at == 0 { // at most one a minute
			if err := <-failed; !strings.Contains(err.Error(), place) {
				t.Errorf("got the event %v, want the panic", err)
			}
		}
		wrong.at.Store(0)
	}
	silent.Store(true)
	s.Kill()
	storetest.Until(t, "the rescue shares", func() bool { return right.allowedRate() == budget/10 })
	s.Restart()
	silent.Store(false)
	storetest.Until(t, "both again", func() bool { return right.allowedRate() > budget*99/100 })
}

// TestAgentPanicsFirst makes a meter panic in the first call of an agent. It must follow its rescue
// share as after any first call that fails.
func TestAgentPanicsFirst(t *testing.T) {
	t.Parallel()
	a, _ := newLonelyAgent(t)
	g := &group{at: testClock()}
	m := &panicking{fluid: &fluid{group: g}}
	g.meters = []*fluid{m.fluid}
	noError(t, a.Bind([]LeasedMeter{m}))
	for _, row := range []struct {
		at   int32
		want int64
	}{{2, 0}, {1, budget / 20}} {
		m.at.Store(row.at)
		a.call(t.Context())
		if got := m.allowedRate(); got != row.want {
			t.Errorf("a panic at %d: got %d bit/s, want %d", row.at, got, row.want)
		}
		if err := a.Status()[0].Err; err == nil {
			t.Errorf("a panic at %d: got no error", row.at)
		}
	}
}

// TestGuardPlace checks the place in the error of a panic.
func TestGuardPlace(t *testing.T) {
	t.Parallel()
	zero := 0
	for _, f := range []func() error{
		func() error { panic("\x1b[31m") },
		func() error { return fmt.Errorf("%d", 1/zero) },
		func() error { var p *Status; p.Heard = true; return nil },
	} {
		err := guard(f)
		if err == nil || !strings.Contains(err.Error(), "(hostile_agent_test.go:") ||
			strings.Contains(err.Error(), "\x1b") {
			t.Errorf("got %v, want an error with this file", err)
		}
	}
	if err := guard(func() error { return nil }); err != nil {
		t.Error(err)
	}
}

// TestDamagedRecords writes wrong values into the records of a budget, as any of
// its hosts may. The others must not use more than the budget, keep a share, and
// have the whole budget when the writer ends.
func TestDamagedRecords(t *testing.T) {
	t.Parallel()
	// Sets field ARGV[1]: to the text of ARGV[2]; to a packed text; or number ARGV[2] of its record.
	const damage = `
local value = loadstring('return ' .. ARGV[3])()
if ARGV[2] == 'raw' then
	return redis.call('HSET', KEYS[1], ARGV[1], value)
elseif ARGV[2] == 'pack' then
	return redis.call('HSET', KEYS[1], ARGV[1], cmsgpack.pack(value))
end
local t = cmsgpack.unpack(redis.call('HGET', KEYS[1], ARGV[1]))
t[ARGV[2] + 0] = value
return redis.call('HSET', KEYS[1], ARGV[1], cmsgpack.pack(t))`
	values := []string{
		"0", "-1", "0.5", "2^40", "2^52", "2^53", "2^62", "-2^62", "1e308", "0/0", "1/0", "'x'", "true",
		"{1}", "'\\27]0;pwn'",
	}
	storetest.Each(t, func(t *testing.T, s *storetest.Server) {
		g := joinHosts(t, 3, Server{URL: s.URL()})
		client, key := s.Client(), []string{key("b")}
		fields := []string{"=", "+", "@host-0", "@host-1", "@nobody", "@\x1b[31m", "x", "@"}
		write := func(field, how, value string) {
			_ = client.Eval(t.Context(), damage, key, field, how, value).Err() // a field may not be there
		}
		running := func(name string) {
			for _, st := range g.agents[0].Status() {
				if st.Err != nil &&
					(strings.Contains(st.Err.Error(), "internal error") ||
						strings.Contains(st.Err.Error(), "the script failed")) {
					t.Fatalf("%s: %v", name, st.Err)
				}
			}
		}
		g.awaitFull(t, "before")

		// The number of hosts, and a survey in the far future.
		write("=", "10", "2^62")
		write("=", "4", "2^52")
		write("=", "10", "2^62")
		g.awaitFull(t, "after the number of hosts")

		r := rand.New(rand.NewPCG(7, 8))
		for end := time.Now().Add(3 * time.Second); time.Now().Before(end); time.Sleep(
			rand.N(10 * time.Millisecond)) {
			field, value := fields[r.IntN(len(fields))], values[r.IntN(len(values))]
			switch r.IntN(8) {
			case 0:
				write(field, "raw", "'x'")
			case 1:
				write(field, "pack", value)
			default:
				write(field, fmt.Sprint(1+r.IntN(42)), value)
			}
			running("while records are damaged")
			g.doAtOnce(func() {
				for i, m := range g.meters {
					if share := m.plan.At(g.at); share.Rate[0] > 1<<40 || share.Rate[0] < 0 ||
						share.Check() != nil {
						t.Fatalf("host %d may use %v", i, share)
					}
				}
			})
		}
		noError(t, client.HDel(t.Context(), key[0], "+", "@nobody").Err())
		storetest.Until(t, "shares of the whole budget", func() bool {
			running("afterwards")
			sum := g.sumRates()
			return sum > full && sum <= budget
		})
		storetest.Until(t, "records of three hosts", func() bool { // a host writes its own with its next call
			b, err := ShowBudget(t.Context(), client, "b")
			return err == nil && len(b.Hosts) == 3
		})
	})
}

// TestHostileDecisions lets a server lie about decisions. They must be made
// locally then, and never panic.
func TestHostileDecisions(t *testing.T) {
	t.Parallel()
	l, asks := liar{rand.New(rand.NewPCG(9, 10))}, rand.New(rand.NewPCG(11, 12))
	var lying sync.Mutex // guards l
	now := func() []string {
		us := time.Now().UnixMicro()
		return []string{fmt.Sprint(us / 1e6), fmt.Sprint(us % 1e6)}
	}
	var numbers atomic.Int32 // per key
	addr := storetest.Fake(t, func(command []string) []byte {
		lying.Lock()
		defer lying.Unlock()
		words := now()
		var keys int
		_, _ = fmt.Sscan(command[2], &keys)
		for range keys * int(numbers.Load()) {
			n := l.number()
			if l.IntN(3) > 0 {
				n = l.Int64N(20)
			}
			words = append(words, fmt.Sprint(n))
		}
		switch l.IntN(12) {
		case 0:
			words[l.IntN(len(words))] = l.text()
		case 1:
			words[l.IntN(len(words))] = fmt.Sprint(l.number())
		case 2:
			words = append(words, "1")
		case 3:
			words = words[1:]
		}
		return storetest.Encode(strings.Join(words, " "))
	})
	client, err := Open(Server{URL: "redis://" + addr})
	noError(t, err)
	defer client.Close()
	store, err := New(client, Config{Deadline: 10 * time.Second, Retry: 10 * time.Millisecond})
	noError(t, err)
	defer store.Close()
	fromStore := 0
	for kind, p := range []LimitParams{
		meter.TokenBucket{Rate: meter.ByteRate(10), Burst: 20},
		meter.FixedWindow{Limit: 20, Window: time.Minute},
		meter.SlidingCounter{Limit: 20, Window: time.Minute},
		meter.SlidingLog{Limit: 20, Window: time.Minute, Entries: 30},
	} {
		numbers.Store(int32(algorithms[kind].replies))
		limit, err := store.Limiter(Limit{Name: "l", Params: p, Fail: FailRescue, Share: 0.5})
		noError(t, err)
		for range 300 {
			requests := []Request{
				{limit, "b", "1", asks.Int64N(30), false},
				{limit, "b", "2", asks.Int64N(30), asks.IntN(2) == 0},
			}
			decide := store.Each
			if asks.IntN(2) == 0 {
				requests[1].Part = false
				decide = store.All
			}
			decisions, err := decide(t.Context(), requests)
			noError(t, err)
			for i, d := range decisions {
				if d.Taken < 0 || d.Taken > requests[i].N || d.Remaining < 0 || d.Remaining > 20 ||
					d.RetryAfter < 0 && d.RetryAfter != meter.Never || d.ResetAfter < 0 {
					t.Fatalf("%T, %+v: got %+v", p, requests[i], d)
				}
				if d.Source == FromStore {
					fromStore++
				}
			}
			// A lost store is found again by a lie that could be true.
			storetest.Until(t, "the store is found", func() bool { return len(store.Stats().Losses) == 0 })
		}
	}
	if lost := store.Stats().Lost; fromStore < 100 || lost < 100 {
		t.Errorf("%d decisions of the store, lost %d times, want at least 100 of each", fromStore, lost)
	}
}
