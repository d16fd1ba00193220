package tap

import (
	"bytes"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// In a testing/synctest bubble a plane is exact. Its output is compared with
// that of pipeline.Pipeline alone, to the nanosecond.

// TestPlanePasses checks that frames of any kind cross in both directions,
// unchanged and in order, through their own queue.
func TestPlanePasses(t *testing.T) {
	for name, shaper := range map[string]func() *ActivePolicy{
		"no shaper": func() *ActivePolicy { return nil },
		"shaper":    func() *ActivePolicy { return newShaper(t, oneAction(nil), 0) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const queues = 3
				b := newBench(t, shaper(), shaper(), queues)
				b.start(0)
				header := []byte{1, gsoTCP4 | gsoECN, 66, 0, 0xa8, 5, 34, 0, 16, 0}
				var sent [queues][][]byte
				for i := range 3 * 300 {
					f := withHeader(numberedFrame(60+i, i))
					switch i / queues % 4 {
					case 1:
						f = ipFrame(i, 100+i, expedited(1))
					case 2:
						f = append(slices.Clone(header), numberedFrame(1514+i, i)...)
					case 3:
						f = withHeader(numberedFrame(18, i))[:HeaderLen+1+i%18] // truncated
					}
					sent[i%queues] = append(sent[i%queues], f)
					if !b.inside.Send(i%queues, f) || !b.outside.Send(i%queues, f) {
						t.Fatalf("Send of frame %d failed", i)
					}
				}
				synctest.Wait()
				b.endWithoutError()
				for _, got := range [][]arrival{b.out, b.back} {
					for q := range queues {
						var frames [][]byte
						for _, a := range got {
							if a.queue == q {
								frames = append(frames, a.b)
							}
						}
						if !slices.EqualFunc(frames, sent[q], bytes.Equal) {
							t.Errorf("queue %d: got %d frames, want %d unchanged", q, len(frames),
								len(sent[q]))
						}
					}
				}
			})
		})
	}
}

// TestPlaneActs checks the actions of a policy: drop, mark, CE.
func TestPlaneActs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		policy := &dataplane.Policy{Classes: []dataplane.Class{
			{Name: "ef", Match: matchEF, Green: &dataplane.Action{Drop: true}},
			{
				Name: "all",
				Meter: &dataplane.Meter{Params: meter.SRTCM{
					CIR: meter.Rate{Bytes: 1, Period: 1000 * time.Second}, CBS: 2, EBS: 2,
				}, Packets: true},
				Green: &dataplane.Action{Marks: []dataplane.Mark{{Field: dataplane.DSCP, Value: 12}}},
				// A packet that cannot be marked passes unchanged.
				Yellow: &dataplane.Action{ECN: dataplane.CE},
			},
		}}
		s := newShaper(t, policy, 0)
		b := newBench(t, s, nil, 1)
		b.start(0)
		for i := range 7 {
			b.inside.Send(0, ipFrame(i, 100+i, []byte{2, expedited(2), 2, 2, 0, 2, 2}[i]))
		}
		synctest.Wait()
		b.endWithoutError()
		want := map[int]byte{0: 12<<2 | 2, 2: 12<<2 | 2, 3: 3, 4: 0}
		for _, a := range b.out {
			n := numberOf(a.b)
			tos, ok := want[n]
			if !ok || a.b[ipAt+1] != tos || slowChecksum(a.b[ipAt:ipAt+20]) != 0 || len(a.b) != ipAt+100+n {
				t.Errorf("packet %d has TOS %#x, checksum %#x: want %v %#x", n, a.b[ipAt+1],
					slowChecksum(a.b[ipAt:ipAt+20]), ok, tos)
			}
			delete(want, n)
		}
		if len(want) > 0 {
			t.Errorf("packets missing: %v", want)
		}
		stats, _ := s.Stats()
		ef, all := &stats[0], &stats[1]
		if ef.Drops[meter.Green][dataplane.CauseColor] != (dataplane.Count{Packets: 1, Bytes: 101}) ||
			all.Drops[meter.Red][dataplane.CauseColor] != (dataplane.Count{Packets: 2, Bytes: 105 + 106}) ||
			all.Marked[meter.Green] != (dataplane.Count{Packets: 2, Bytes: 202}) {
			t.Errorf("got %+v, want 1 green drop in ef, 2 red drops and 2 green marks in all", stats)
		}
		conserved(t, s, 4)
	})
}

// TestPlanePaced compares departures with those of a pipeline alone, to the
// nanosecond. At the end, packets that can depart within the drain time do; the
// rest are counted.
func TestPlanePaced(t *testing.T) {
	r := seededRandom(t)
	for _, drain := range []int64{0, 20 * ms, 1000 * ms} {
		synctest.Test(t, func(t *testing.T) {
			policy := oneQueue(queue.Config{Rate: meter.BitRate(7_999_999), Time: 50 * time.Millisecond})
			s, m := newShaper(t, policy, 0), newAlonePipeline(t, policy)
			b := newBench(t, s, nil, 1)
			b.start(time.Duration(drain))
			list := randomTraffic(r, 1000, Now()+ms, 600_000, 1) // the queue is near its limit at the end
			b.sendAll(list)
			m.processAll(list)
			synctest.Wait()
			last := Now()
			b.endWithoutError()
			// The plane ends when no packet is queued, or after the drain time.
			want := last
			for _, a := range m.out {
				want = min(max(want, a.at), last+drain)
			}
			if now := Now(); now != want {
				t.Errorf("the plane ended %d ns after the last arrival, want %d", now-last, want-last)
			}
			leave := arrivalsUntil(m.out, last+drain)
			sameArrivals(t, b.out, leave)
			if !slices.IsSortedFunc(b.out, func(a, b arrival) int { return numberOf(a.b) - numberOf(b.b) }) {
				t.Error("packets departed out of order")
			}
			sameStats(t, s, m.l)
			late := countArrivals(m.out)
			late.Packets -= countArrivals(leave).Packets
			late.Bytes -= countArrivals(leave).Bytes
			if _, lost := s.Stats(); lost != (Lost{Ended: late}) {
				t.Errorf("lost %+v, want %+v at the end", lost, late)
			}
			if (drain < 1000*ms) != (late.Packets > 0) {
				t.Errorf("got %d packets too late with %d ns to drain: the test lost its purpose",
					late.Packets, drain)
			}
			conserved(t, s, len(b.out))
		})
	}
}

// TestPlaneOverflow loads a queue at twice its rate for two minutes.
func TestPlaneOverflow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit = 32 << 10
		q := &dataplane.Queue{Name: "q", Config: queue.Config{
			Rate: meter.BitRate(800e3), Bytes: limit,
			WRED: [3]queue.Early{meter.Yellow: {Min: 0, Max: limit / 2, Probability: queue.Certain / 2}},
		}}
		to := &dataplane.Action{Queue: q}
		policy := &dataplane.Policy{Classes: []dataplane.Class{{
			Name: "all",
			Meter: &dataplane.Meter{
				Params: meter.SRTCM{CIR: meter.BitRate(900e3), CBS: 3000, EBS: 30000}, Aware: true,
			},
			Green: to, Yellow: to,
		}}}
		s, m := newShaper(t, policy, 0), newAlonePipeline(t, policy)
		b := newBench(t, s, nil, 1)
		b.start(time.Minute)
		var list []arrival
		for i, at := 0, Now(); i < 24_000; i++ {
			tos := byte(0)
			if i%10 == 0 {
				tos = 14 << 2 // AF13: red, because the tokens of packets that the queue drops go back
			}
			list = append(list, arrival{at: at, b: ipFrame(i, 1000, tos)})
			at += 5 * ms
		}
		var most int64
		for some := range slices.Chunk(list, 100) {
			b.sendAll(some)
			synctest.Wait()
			most = max(most, s.QueuedMemory())
		}
		m.processAll(list)
		b.endWithoutError()
		sameArrivals(t, b.out, m.out)
		sameStats(t, s, m.l)
		conserved(t, s, len(b.out))
		if most == 0 || most > limit/1000*2048 {
			t.Errorf("got %d bytes queued, want at most %d", most, limit/1000*2048)
		}
		stats, _ := s.Stats()
		d := &stats[0].Drops
		if d[meter.Green][dataplane.CauseQueue].Packets == 0 ||
			d[meter.Yellow][dataplane.CauseWRED].Packets == 0 ||
			d[meter.Red][dataplane.CauseColor].Packets == 0 ||
			d[meter.Red][dataplane.CauseQueue].Packets != 0 {
			t.Errorf("dropped %+v, want green by the queue limit, yellow by WRED, red by color", d)
		}
	})
}

// TestPlaneLink compares the departures of a link with those of a pipeline
// alone.
func TestPlaneLink(t *testing.T) {
	r := seededRandom(t)
	for name, edit := range map[string]func(*queue.Config){
		"tail drop": nil,
		"codel": func(c *queue.Config) {
			c.CoDel, c.ECN = queue.CoDel{Target: 5 * time.Millisecond, Interval: 20 * time.Millisecond}, true
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				policy := linkPolicy(byteRateMega, edit)
				s, m := newShaper(t, policy, 0), newAlonePipeline(t, policy)
				b := newBench(t, s, nil, 1)
				b.start(time.Minute)
				list := randomTraffic(r, 2000, Now()+ms, 500_000, 1)
				b.sendAll(list)
				m.processAll(list)
				m.settleAll()
				b.endWithoutError()
				sameArrivals(t, b.out, m.out)
				sameStats(t, s, m.l)
				conserved(t, s, len(b.out))
				if stats, _ := s.Stats(); stats[2].Dropped(meter.Green).Packets == 0 {
					t.Error("no packet was dropped: the test lost its purpose")
				}
			})
		})
	}
}

// TestPlaneLinkQueues checks that packets of a link depart through the queue by
// which they arrived. Otherwise a flow would be spread over several queues.
func TestPlaneLinkQueues(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShaper(t, linkPolicy(byteRateMega, nil), 0)
		b := newBench(t, s, nil, 4)
		b.start(time.Minute)
		for i := range 30 {
			b.inside.Send(i%2, ipFrame(i, 1000, 0))
		}
		synctest.Wait()
		if _, err := s.Reload(compilePlan(t, linkPolicy(byteRateMega, nil))); err != nil {
			t.Error(err)
		}
		for i := range 30 {
			b.inside.Send(i%2, ipFrame(30+i, 1000, 0))
		}
		synctest.Wait()
		b.endWithoutError()
		for _, a := range b.out {
			if n := numberOf(a.b); a.queue != n%2 {
				t.Fatalf("packet %d arrived at queue %d, but departed from queue %d", n, n%2, a.queue)
			}
		}
		conserved(t, s, len(b.out))
	})
}

// TestPlaneQueues compares the reported queue lengths with the model over time.
func TestPlaneQueues(t *testing.T) {
	for name, policy := range map[string]*dataplane.Policy{
		"queue": oneQueue(queue.Config{Rate: byteRateMega, Time: time.Second}),
		"link":  linkPolicy(byteRateMega, nil),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newShaper(t, policy, 0)
				b := newBench(t, s, nil, 1)
				b.start(time.Second)
				for i := range 10 {
					b.inside.Send(0, ipFrame(i, 1000, 0))
				}
				synctest.Wait()
				for _, want := range []dataplane.QueueState{
					{Bytes: 10_000, Delay: 10 * time.Millisecond},
					{Bytes: 6000, Delay: 6 * time.Millisecond},
					{},
				} {
					// a link reports no delay, and does not count the packet being sent
					if want.Name = "q"; name == "link" {
						want = dataplane.QueueState{Name: "rest", Bytes: max(want.Bytes-1000, 0)}
					}
					if got := s.Snapshot().Queues; got[len(got)-1] != want {
						t.Errorf("got %+v, want %+v", got, want)
					}
					time.Sleep(4 * time.Millisecond)
					synctest.Wait()
					if want.Bytes < 8000 {
						time.Sleep(time.Second)
					}
				}
				b.endWithoutError()
			})
		})
	}
}

// TestPlaneShares checks that all queues of a device share a meter: together
// they get exactly its tokens.
func TestPlaneShares(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const queues, burst = 4, 10_000
		s := newShaper(t, bucketPolicy(byteRateMega, burst), 0)
		b := newBench(t, s, nil, queues)
		b.start(0)
		began := Now()
		for i := range 4000 {
			b.inside.Send(i%queues, ipFrame(i, 400, 0))
			if i%queues == queues-1 {
				time.Sleep(700 * time.Microsecond)
			}
		}
		synctest.Wait()
		b.endWithoutError()
		got := map[int64]int64{}
		for _, a := range b.out {
			got[a.at] += 400
		}
		var sum int64
		for at := began; at < Now(); at += 700_000 {
			if sum += got[at]; sum > burst+(at-began)/1000 {
				t.Fatalf("got %d bytes within %d ns, want at most %d", sum, at-began, burst+(at-began)/1000)
			}
		}
		last := (Now() - began - 700_000) / 1000
		if want := (burst + last) / 400; int64(len(b.out)) != want {
			t.Errorf("got %d packets, want %d", len(b.out), want)
		}
		conserved(t, s, len(b.out))
	})
}
