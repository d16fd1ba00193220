package shared

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/meter/shared/lease"
)

// notes records the events of one host in virtual time. The store is the Go
// model of store.lua.
type notes struct {
	*Agent
	now    int64
	store  lease.Store
	server lease.Server
	events []string
}

func newNotes(t *testing.T, terms lease.Terms) *notes {
	t.Helper()
	n := &notes{now: 1e15, server: lease.Server{ID: "a"}}
	client := openUnreachable(t)
	notify := func(e Event) { n.events = append(n.events, e.Kind.String()) }
	var err error
	n.Agent, err = NewAgent(client, []Budget{{"b", "h", terms}},
		AgentConfig{Clock: func() int64 { return n.now }, Notify: notify})
	noError(t, err)
	noError(t, n.Bind([]LeasedMeter{nil}))
	return n
}

var errDown = errors.New("down")

// callOnce makes a call with the given result; nil: the store's.
func (n *notes) callOnce(result *answer) {
	m := n.members[0]
	q := m.host.Request(n.now, m.counts)
	if result == nil {
		result = &answer{Reply: n.store.Call(n.now/1000, n.server, &q), kept: true}
	}
	if result.err != nil {
		m.host.Lost(n.now)
	} else {
		m.host.Reply(n.now, result.Reply, result.kept)
	}
	n.record(m, n.now, result)
	n.now += m.Terms.Interval
}

// callFor makes calls for a time.
func (n *notes) callFor(d time.Duration, result *answer) {
	for end := n.now + int64(d); n.now < end; {
		var r *answer
		if result != nil {
			again := *result
			r = &again
		}
		n.callOnce(r)
	}
}

// expect compares the events since the last time.
func (n *notes) expect(t *testing.T, name string, want ...string) {
	t.Helper()
	if !slices.Equal(n.events, want) {
		t.Errorf("%s: got %v, want %v", name, n.events, want)
	}
	n.events = nil
}

func TestEvents(t *testing.T) {
	t.Parallel()
	down, pending := &answer{err: errDown}, &answer{err: errDown, pending: true}
	refused := func(r lease.Refusal) *answer { return &answer{Reply: lease.Reply{Refused: r}} }
	t.Run("loss", func(t *testing.T) {
		t.Parallel()
		n := newNotes(t, testTerms())
		n.callFor(time.Minute, nil)
		n.expect(t, "a store", "joined")
		n.callOnce(down)
		n.callOnce(down)
		n.expect(t, "two calls are lost")
		if st := n.Status()[0]; st.Rescued || st.Lost != 2 || !errors.Is(st.Err, errDown) {
			t.Errorf("got %+v, want errDown, two lost calls and no rescue yet", st)
		}
		n.callFor(10*time.Minute, down)
		n.expect(t, "no store", "lost")
		if st := n.Status()[0]; !st.Rescued || st.Share != st.Rescue || st.Rescue.Rate[0] != budget/10 {
			t.Errorf("got %+v, want the rescue share", st)
		}
		n.callFor(10*time.Minute, nil)
		n.expect(t, "the store is back", "found")
		if st := n.Status()[0]; st.Rescued || st.Err != nil || st.Learning {
			t.Errorf("got %+v, want no rescue and no error", st)
		}
	})
	t.Run("no store at first", func(t *testing.T) {
		t.Parallel()
		n := newNotes(t, testTerms())
		n.callFor(500*time.Millisecond, pending)
		n.expect(t, "no answer yet")
		n.callFor(10*time.Minute, pending)
		n.expect(t, "no answer", "lost")
		n.callFor(10*time.Minute, nil)
		n.expect(t, "the store is there", "joined")
		n = newNotes(t, testTerms())
		n.callOnce(down)
		n.expect(t, "a failed call", "lost")
	})
	t.Run("flapping", func(t *testing.T) {
		t.Parallel()
		n := newNotes(t, testTerms())
		n.callFor(time.Minute, nil)
		for range 300 {
			n.callFor(time.Second, down)
			n.callFor(time.Second, nil)
		}
		if len(n.events) > 20 || n.events[len(n.events)-1] != "lost" {
			t.Errorf("got %d events in 10 minutes, want at most 20 and the last \"lost\": %v", len(n.events),
				n.events)
		}
		for i, kind := range n.events[1:] {
			if want := [2]string{"lost", "found"}[i%2]; kind != want {
				t.Fatalf("event %d: got %s, want %s in %v", i, kind, want, n.events)
			}
		}
		n.events = nil
		n.callFor(2*time.Minute, nil)
		n.expect(t, "no flapping", "found")
	})
	t.Run("flapping every minute", func(t *testing.T) {
		t.Parallel()
		n := newNotes(t, testTerms())
		n.callFor(2*time.Minute, nil)
		n.events = nil
		for range 3 {
			n.callFor(time.Second, down)
			n.callFor(2*time.Minute, nil)
		}
		n.expect(t, "losses that are far apart", "lost", "found", "lost", "found", "lost", "found")
	})
	t.Run("reset", func(t *testing.T) {
		t.Parallel()
		n := newNotes(t, testTerms())
		n.callFor(time.Minute, nil)
		n.store = lease.Store{}
		n.callOnce(nil)
		if st := n.Status()[0]; !st.Learning || st.Rescued {
			t.Errorf("got %+v, want Learning without rescue", st)
		}
		n.callFor(time.Minute, nil)
		n.expect(t, "a store that lost its state", "joined", "reset")
		n.server.ID = "b"
		n.callFor(time.Minute, nil)
		n.expect(t, "another server that has it")
	})
	t.Run("disagreement", func(t *testing.T) {
		t.Parallel()
		n := newNotes(t, testTerms())
		small := testTerms()
		small.Size.Rate[0]--
		other := lease.NewHost("other", 1, small)
		n.callFor(time.Minute, nil)
		for range 1000 {
			q := other.Request(n.now, lease.Counts{})
			other.Reply(n.now, n.store.Call(n.now/1000, n.server, &q), true)
			n.callOnce(nil)
		}
		if st := n.Status()[0]; st.Smallest != "other" || st.Size != small.Size || st.Hosts != 2 {
			t.Errorf("got %+v, want the smaller size of the other host", st)
		}
		n.expect(t, "a smaller size", "joined", "disagreed")
	})
	t.Run("refusal", func(t *testing.T) {
		t.Parallel()
		for _, r := range []lease.Refusal{lease.Interval, lease.TooMany} {
			n := newNotes(t, testTerms())
			n.callFor(10*time.Minute, refused(r))
			n.callFor(time.Minute, down)
			n.callFor(time.Minute, refused(r))
			n.expect(t, r.String(), "refused")
			if st := n.Status()[0]; st.Refused != r || !st.Rescued || st.Err == nil || st.Heard {
				t.Errorf("got %+v, want %v and the rescue share", st, r)
			}
			n.callFor(10*time.Minute, nil)
			n.expect(t, "granted", "joined")
		}
		n := newNotes(t, testTerms())
		n.callFor(500*time.Millisecond, refused(lease.NameUsed))
		n.callFor(time.Minute, nil)
		n.expect(t, "the process was started again", "joined")
		n.callFor(10*time.Minute, refused(lease.NameUsed))
		n.expect(t, "another process has the name", "refused")
		n.callFor(10*time.Minute, nil)
		n.expect(t, "it is gone", "found")
	})
	t.Run("a meter fails", func(t *testing.T) {
		t.Parallel()
		n := newNotes(t, testTerms())
		n.callFor(time.Minute, nil)
		n.members[0].fault = errDown
		n.callFor(10*time.Minute, nil)
		if st := n.Status()[0]; !errors.Is(st.Err, errDown) {
			t.Errorf("got %+v, want errDown", st)
		}
		n.members[0].fault = nil
		n.callFor(10*time.Minute, nil)
		n.expect(t, "a meter", "joined", "failed")
	})
	t.Run("crowded, unguarded", func(t *testing.T) {
		t.Parallel()
		few := testTerms()
		few.Size.Burst[0] = 4*1514 - 1
		n := newNotes(t, few)
		n.server.Replicas = -1
		n.callFor(10*time.Minute, nil)
		n.expect(t, "a host", "crowded", "unguarded", "joined")
		if st := n.Status()[0]; !st.Crowded || st.Replicas != -1 {
			t.Errorf("got %+v, want Crowded and unknown replicas", st)
		}
		few.Size.Burst[0]++
		n = newNotes(t, few)
		n.callFor(10*time.Minute, nil)
		n.expect(t, "a packet's burst", "joined")
	})
}

// TestKinds checks that each kind of event has a name.
func TestKinds(t *testing.T) {
	t.Parallel()
	for k := range eventKinds {
		if s := fmt.Sprint(k); s == "" || strings.Contains(s, "%") {
			t.Errorf("kind %d: got %q, want a name", k, s)
		}
	}
}
