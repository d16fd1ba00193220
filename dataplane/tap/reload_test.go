package tap

import (
	"errors"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/dataplane/pipeline"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// TestPlaneReload checks that packets queued during a reload keep their
// departures, and that state is carried over as described at
// pipeline.Pipeline.Inherit.
func TestPlaneReload(t *testing.T) {
	slow := queue.Config{Rate: byteRateMega, Time: 200 * time.Millisecond}
	fast := queue.Config{Rate: meter.BitRate(24e6), Time: 100 * time.Millisecond}
	for name, row := range map[string][2]*dataplane.Policy{
		"the same queue": {oneQueue(slow), oneQueue(slow)},
		"another rate":   {oneQueue(slow), oneQueue(fast)},
		"no queue":       {oneQueue(slow), oneAction(nil)},
		"the same link":  {linkPolicy(byteRateMega, nil), linkPolicy(byteRateMega, nil)},
		"another link":   {linkPolicy(byteRateMega, nil), linkPolicy(meter.BitRate(80e6), nil)},
		"link to queue":  {linkPolicy(byteRateMega, nil), oneQueue(fast)},
		"queue to link":  {oneQueue(slow), linkPolicy(byteRateMega, nil)},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, m := newShaper(t, row[0], 0), newAlonePipeline(t, row[0])
				b := newBench(t, s, nil, 2)
				b.start(time.Minute)
				sent := 0
				burst := func() {
					var list []arrival
					for range 30 {
						list = append(list, arrival{
							at: Now(), b: ipFrame(sent, 1000, []byte{0, expedited(0), 10 << 2}[sent%3]),
						})
						sent++
					}
					b.sendAll(list)
					m.processAll(list)
					synctest.Wait()
				}
				for range 3 { // the last two load the same policy
					burst()
					time.Sleep(10*time.Millisecond + 1)
					before := len(m.out)
					waiting := s.QueuedMemory()
					changes, err := s.Reload(compilePlan(t, row[1]))
					if err != nil {
						t.Fatal(err)
					}
					m.reload(row[1])
					if all := len(changes); all < len(row[1].Classes) {
						t.Errorf("got %d changes, want at least %d: %v", all, len(row[1].Classes), changes)
					}
					if now := s.QueuedMemory(); now != waiting || now == 0 && before == 0 {
						t.Errorf("got %d bytes queued, want %d as before the reload", now, waiting)
					}
					synctest.Wait()
					burst()
				}
				m.settleAll()
				b.endWithoutError()
				sameArrivals(t, b.out, m.out)
				sameStats(t, s, m.l)
				if n := len(b.out); n != sent {
					t.Errorf("got %d packets, want %d", n, sent)
				}
			})
		})
	}
}

// refusing has budgets that are in use with other parameters, from the second
// plan on.
type refusing struct{ plans int }

func (r *refusing) Join(*compiled.Plan) (map[int]pipeline.Shared, func() error, error) {
	if r.plans++; r.plans > 1 {
		return nil, nil, errors.New("in use")
	}
	return nil, func() error { return nil }, nil
}

// TestPlaneReloadRefused checks that a plan whose budgets are refused changes
// nothing.
func TestPlaneReloadRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		policy := oneQueue(queue.Config{Rate: byteRateMega, Time: time.Second})
		s, m := newShaper(t, policy, 0), newAlonePipeline(t, policy)
		if err := s.Join(&refusing{}); err != nil {
			t.Fatal(err)
		}
		b := newBench(t, s, nil, 1)
		b.start(time.Minute)
		list := randomTraffic(rand.New(rand.NewPCG(1, 1)), 100, Now(), 1, 1)
		b.sendAll(list)
		m.processAll(list)
		if _, err := s.Reload(compilePlan(t, oneAction(nil))); err == nil {
			t.Error("Reload accepted a plan whose budgets were refused")
		}
		b.endWithoutError()
		sameArrivals(t, b.out, m.out)
		sameStats(t, s, m.l)
	})
}

// TestPlaneReloadIdle checks that no packet stays queued between two runs, even
// after a reload just before the end.
func TestPlaneReloadIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShaper(t, linkPolicy(byteRateMega, nil), 0)
		for range 2 {
			b := newBench(t, s, nil, 2)
			b.start(0)
			for i := range 20 {
				b.inside.Send(i%2, ipFrame(i, 1000, 0))
			}
			synctest.Wait()
			// no lane runs after it
			if _, err := s.Reload(compilePlan(t, linkPolicy(byteRateMega, nil))); err != nil {
				t.Error(err)
			}
			b.endWithoutError()
			if n := s.QueuedMemory(); n != 0 {
				t.Errorf("got %d bytes queued, want 0", n)
			}
			if _, err := s.Reload(compilePlan(t, linkPolicy(byteRateMega, nil))); err != nil {
				t.Error(err)
			}
		}
		if stats, lost := s.Stats(); stats[2].Total().Packets != 40 || lost.Ended.Packets == 0 {
			t.Errorf("got %+v, lost %+v, want 40 packets, some lost at the end", stats, lost)
		}
	})
}
