package shared

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/meter/shared/lease"
	"github.com/a-seed-32e5a53f/shaper/meter/shared/storetest"
)

// liar makes replies to lease calls: right ones, and ones that are wrong in
// content.
type liar struct{ *rand.Rand }

// right returns a reply that a store could have made. Its fields are those of
// lease.Reply in the order of store.lua.
func (l liar) right() []any {
	size := [4]int64{
		1 + l.Int64N(lease.MaxRate), l.Int64N(2) * l.Int64N(lease.MaxRate), l.Int64N(lease.MaxBurst),
		l.Int64N(1 << 20),
	}
	reply := []any{int64(0), time.Now().UnixMicro(), int64(5)}
	for range 2 { // share, rescue share
		for _, n := range size {
			reply = append(reply, l.Int64N(n+1))
		}
	}
	reply = append(reply, l.Int64N(size[0]+1), l.Int64N(size[1]+1))
	for _, n := range size {
		reply = append(reply, n)
	}
	hosts := 1 + l.Int64N(lease.MaxHosts)
	return append(reply, hosts, l.Int64N(hosts+1), l.Int64N(2), l.Int64N(5)-1,
		[]string{"", "gw2:eth0:egress"}[l.IntN(2)])
}

// wrong returns right with up to four lies, or none.
func (l liar) wrong() (reply any, lies int) {
	values := l.right()
	for lies = range l.IntN(5) {
		at := l.IntN(len(values))
		switch l.IntN(12) {
		case 0:
			values[at] = l.text()
		case 1:
			values[at] = nil
		case 2:
			values[at] = []any{l.number(), []any{}}
		case 3:
			values = append(values[:at], values[at+1:]...)
		case 4:
			values = append(values, l.number())
		case 5:
			return []any{l.Int64N(8) - 2}, 1
		case 6:
			return []any{int64(0), l.number(), l.number()}, 1
		case 7:
			return []any{l.number(), nil, "x", l.number()}[l.IntN(4)], 1
		default:
			values[at] = l.number()
		}
		if lies++; len(values) == 0 {
			break
		}
	}
	return values, lies
}

// number returns a number that programs handle wrongly.
func (l liar) number() int64 {
	around := []int64{
		0, 0, 16, 4096, 1 << 16, 1 << 31, 1 << 32, lease.MaxRate, 1 << 52, 1 << 53, 1 << 60, 1 << 61, 1 << 62,
		math.MaxInt64, math.MinInt64,
	}
	n := around[l.IntN(len(around))]
	switch l.IntN(4) {
	case 0:
		n = -n
	case 1:
		n += l.Int64N(5) - 2 // may wrap
	case 2:
		n = l.Int64N(1 << 41)
	}
	return n
}

func (l liar) text() string {
	texts := []string{
		"", "x", "\x1b]0;pwn\a\x1b[31m\n", strings.Repeat("x", 129), "9223372036854775807", "a\xffb",
		"{x}:lease",
	}
	return texts[l.IntN(len(texts))]
}

// credulous is a meter that checks its plans.
type credulous struct {
	t      testing.TB
	counts lease.Counts
}

func (c *credulous) Apply(p lease.Plan) error {
	for _, a := range p.Phase {
		if err := a.Check(); err != nil {
			c.t.Errorf("the meter's plan is %+v: %v", p, err)
		}
	}
	return nil
}

func (c *credulous) Counts() (lease.Counts, error) {
	c.counts[2] += 1e9
	return c.counts, nil
}

// check fails if a plan exceeds the size, or the status is not true.
func (m *member) check(t testing.TB) {
	t.Helper()
	s := &m.status
	for i, a := range m.applied.Phase {
		if a != a.Min(s.Size) {
			t.Fatalf("phase %d of the plan is %v, above the size %v", i, a, s.Size)
		}
	}
	if s.Share != s.Share.Min(s.Size) || s.Size.Check() != nil || s.Bound.Sum != s.Bound.Sum.Max(s.Size) ||
		s.Heard && (s.Hosts < 1 || s.Hosts > lease.MaxHosts || s.Late < 0 || s.Late > s.Hosts) {
		t.Fatalf("the status is not true: %+v", s)
	}
	if s.Err != nil {
		text := s.Err.Error()
		if strings.Contains(text, "internal error") {
			t.Fatal(text)
		}
		if len(text) > 400 || strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r == 0x7f }) {
			t.Fatalf("the error is %q", text)
		}
	}
}

// credulousAgent returns an agent for n budgets.
func credulousAgent(t testing.TB, n int, client Client) *Agent {
	terms := testTerms()
	terms.Packet, terms.Hosts, terms.Interval, terms.Deadline = 1518, 16, 60e9, 60e9
	var budgets []Budget
	var meters []LeasedMeter
	for i := range n {
		budgets, meters = append(budgets, Budget{fmt.Sprint("b", i), "host", terms}),
			append(meters, &credulous{t: t})
	}
	now := testClock()
	a, err := NewAgent(client, budgets,
		AgentConfig{Clock: func() int64 { now += 30e9; return now }, Store: "redis://store"})
	noError(t, err)
	noError(t, a.Bind(meters))
	return a
}

// TestHostileReplies lets a server lie to an agent. With SHAPER_DEEP=1, it tells
// 10^6 replies.
func TestHostileReplies(t *testing.T) {
	t.Parallel()
	const each = 50 // budgets of an agent
	calls := 100
	if os.Getenv("SHAPER_DEEP") != "" {
		calls = 1_000_000 / each
	}
	l := liar{rand.New(rand.NewPCG(1, 2))}
	var lying sync.Mutex // guards l and lies
	var lies [each]int
	addr := storetest.Fake(t, func(command []string) []byte {
		if command[0] == "WAIT" {
			return []byte(":1\r\n")
		}
		lying.Lock()
		defer lying.Unlock()
		replies := make([]any, each)
		for i := range replies {
			replies[i], lies[i] = l.wrong()
		}
		return storetest.Encode(replies)
	})
	client, err := Open(Server{URL: "redis://" + addr})
	noError(t, err)
	defer client.Close()
	a := credulousAgent(t, each, client)
	accepted, refused := 0, 0
	for range calls {
		a.call(t.Context())
		lying.Lock()
		lies := lies
		lying.Unlock()
		for i, m := range a.members {
			m.check(t)
			err := m.status.Err
			switch {
			case err == nil:
				accepted++
			case lies[i] == 0:
				t.Fatalf("a right reply is refused: %v", err)
			case !strings.Contains(err.Error(), "the store replied with") &&
				m.status.Refused == lease.Granted:
				t.Fatalf("a wrong reply is not named: %v", err)
			default:
				refused++
			}
		}
	}
	if accepted < calls*each/10 || refused < calls*each/3 {
		t.Errorf("of %d replies %d were accepted and %d refused", calls*each, accepted, refused)
	}
	t.Logf("%d replies: %d accepted, %d refused, 0 panics, 0 shares above the size", calls*each, accepted,
		refused)
}

// FuzzReplies lets an agent use any sequence of replies, without a connection.
func FuzzReplies(f *testing.F) {
	l := liar{rand.New(rand.NewPCG(3, 4))}
	for range 50 {
		reply, _ := l.wrong()
		f.Add(pack(nil, reply))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		a := credulousAgent(t, 1, nil)
		m := a.members[0]
		for now := int64(1); len(text) > 0; now += 60e9 {
			var v any
			v, text = unpack(text, 3)
			_, err := m.request(now)
			noError(t, err)
			var r answer
			r.Reply, r.err = reply(v, false)
			r.kept = now%2 == 0
			a.settle(m, now, now+30e9, &r)
			m.check(t)
		}
	})
}

// pack encodes a reply in few bytes for a fuzzer to change.
func pack(b []byte, v any) []byte {
	switch v := v.(type) {
	case int64:
		return binary.BigEndian.AppendUint64(append(b, 'i'), uint64(v))
	case string:
		return append(append(b, 's', byte(len(v))), v[:min(len(v), 255)]...)
	case []any:
		b = append(b, 'l', byte(len(v)))
		for _, each := range v {
			b = pack(b, each)
		}
		return b
	}
	return append(b, 'n')
}

func unpack(b []byte, depth int) (v any, rest []byte) {
	if len(b) < 2 {
		return nil, nil
	}
	kind, n := b[0], int(b[1])
	switch {
	case kind == 'i' && len(b) >= 9:
		return int64(binary.BigEndian.Uint64(b[1:])), b[9:]
	case kind == 's' && len(b) >= 2+n:
		return string(b[2 : 2+n]), b[2+n:]
	case kind == 'l' && depth > 0:
		var list []any
		for b = b[2:]; len(list) < n && len(b) > 0; {
			v, b = unpack(b, depth-1)
			list = append(list, v)
		}
		return list, b
	}
	return nil, b[1:]
}
