package queue

import (
	"slices"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/meter"
)

// account adds the time since the last call to the nodes that have packets and whose rate is not free.
func (m *modelTree) account(now int64) {
	for _, v := range m.nodes {
		free := v.freeAt()
		if v.above == nil && m.free != nil {
			free = ceilOf(m.free)
		}
		if v.hasPackets() {
			v.held += max(0, min(free, now)-m.looked)
		}
	}
	m.looked = now
}

// states returns the states of the links at now.
func (m *modelTree) states(now int64) (out []LinkState) {
	m.account(now)
	for _, v := range m.nodes {
		if v.queue != nil {
			continue
		}
		s := LinkState{Sent: v.sent, Held: time.Duration(v.held), Guaranteed: meter.ByteRate(v.counted)}
		for _, q := range m.queues {
			if !slices.Contains(q.path(), v) {
				continue
			}
			for _, p := range q.queue.backlog {
				s.Backlog.Packets += int64(p.packets())
				s.Backlog.Bytes += int64(p.Bytes)
			}
		}
		out = append(out, s)
	}
	return out
}

// path returns the links above a node.
func (v *modelNode) path() (links []*modelNode) {
	for v = v.above; v != nil; v = v.above {
		links = append(links, v)
	}
	return links
}

// sameStates compares the states of all links, and the times for which rates of queues held packets.
func sameStates(t testing.TB, l *Link[int], m *modelTree, now int64) {
	t.Helper()
	m.advanceTo(now, false)
	l.run(now)
	if got, want := l.States(now), m.states(now); !slices.Equal(got, want) {
		t.Fatalf("links at %d:\n%+v, want\n%+v", now, got, want)
	}
	for i, q := range m.queues {
		if got, want := l.Held(i, now), time.Duration(q.held); got != want {
			t.Fatalf("queue %d at %d: held %v, want %v", i, now, got, want)
		}
	}
}

// TestContinue checks that a link continues the counters of another one.
func TestContinue(t *testing.T) {
	t.Parallel()
	links := []TreeLink{{Rate: meter.ByteRate(1e9)}, {Rate: meter.ByteRate(1e8), Weight: 1}}
	queues := []LinkQueue{{Config: Config{Bytes: 10000}, Parent: 1, Weight: 1}}
	l, err := NewTree[int](links, queues)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		l.Admit(0, 0, Packet{Bytes: 1000}, i)
	}
	// Packets depart at 0, 10 and 20 us, when the rate of the second link is free. Each takes the root 1 us.
	first := LinkState{
		Sent: Count{2, 2000}, Backlog: Count{1, 1000}, Held: time.Microsecond,
		Guaranteed: meter.ByteRate(1e8),
	}
	second := first
	second.Held = 15 * time.Microsecond
	l.run(15_000)
	// At 10 us the root was free, but is busy until 11 us with a packet behind.
	first.Held = 2 * time.Microsecond
	if got := l.States(15_000); got[0] != first || got[1] != second {
		t.Errorf("got %+v, want %+v, %+v", got, first, second)
	}
	next, _ := NewTree[int](links, queues)
	next.Continue(1, second)
	second.Backlog = Count{}
	if got := next.States(20_000)[1]; got != second {
		t.Errorf("continued: got %+v, want %+v", got, second)
	}
}
