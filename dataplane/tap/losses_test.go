package tap

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// TestPlaneGone checks that Run reports which device is gone and counts the
// frames that cannot be sent, and that the shapers continue with another
// device.
func TestPlaneGone(t *testing.T) {
	for _, which := range []string{"outside", "inside"} {
		for name, policy := range map[string]*dataplane.Policy{
			"queue": oneQueue(queue.Config{Rate: byteRateMega, Time: time.Second}),
			"link":  linkPolicy(byteRateMega, nil),
		} {
			t.Run(which+" "+name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					policy := *policy
					policy.Classes = slices.Clone(policy.Classes)
					m := &dataplane.Meter{
						Name: "m", Params: meter.TokenBucket{Rate: meter.BitRate(80e3), Burst: 100_000},
					}
					policy.Classes[len(policy.Classes)-1].Meter = m
					s := newShaper(t, &policy, 0)
					b := newBench(t, s, nil, 2)
					b.start(15 * time.Millisecond)
					for i := range 40 {
						b.inside.Send(i%2, ipFrame(i, 1000, 0))
					}
					time.Sleep(10*time.Millisecond + 1)
					synctest.Wait()
					if n := len(b.out); n != 11 {
						t.Errorf("got %d packets, want 11", n)
					}
					device := map[string]*Fake{"outside": b.outside, "inside": b.inside}[which]
					device.Close()
					err := <-b.ended
					var gone *GoneError
					if !errors.As(err, &gone) || gone.Device != which || !errors.Is(err, ErrGone) ||
						err.Error() != which+": the device is gone" {
						t.Errorf("got %v, want that %s is gone", err, which)
					}
					const out = 11
					b.ended <- nil
					b.endWithoutError()
					if len(b.out) != out {
						t.Errorf("got %d packets, want %d", len(b.out), out)
					}
					n := int64(40 - out)
					if _, lost := s.Stats(); lost != (Lost{
						Ended: dataplane.Count{Packets: n, Bytes: n * 1014},
					}) {
						t.Errorf("lost %+v, want %d", lost, n)
					}
					conserved(t, s, out)

					time.Sleep(time.Second)
					again := newBench(t, s, nil, 1) // with fewer queues
					again.start(time.Second)
					again.inside.Send(0, ipFrame(40, 1000, 0))
					synctest.Wait()
					again.endWithoutError()
					if len(again.out) != 1 {
						t.Errorf("got %d packets by the new device, want 1", len(again.out))
					}
					// 10 bytes per ms: for a second, 10 ms, and at most 15 ms
					// of drain.
					if tc := s.Snapshot().Tokens[0][0]; tc < 100_000-41*1000+10_100 ||
						tc > 100_000-41*1000+10_251 {
						t.Errorf("got %d tokens, want %d to %d", tc, 100_000-41*1000+10_100,
							100_000-41*1000+10_251)
					}
					stats, _ := s.Stats()
					if all := stats[len(stats)-2].Total(); all.Packets != 41 {
						t.Errorf("got %+v, want 41 packets", all)
					}
				})
			})
		}
	}
}

// TestPlaneFull checks that refused frames are counted, GSO frames as their
// segments.
func TestPlaneFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShaper(t, oneQueue(queue.Config{Rate: byteRateMega, Time: time.Second}), 0)
		b := newBench(t, s, nil, 1)
		b.start(time.Second)
		b.outside.SetFull(true)
		b.inside.Send(0, ipFrame(0, 1000, 0))
		b.inside.Send(0, ipFrame(1, 1000, 0))
		super := gsoFrame(udpPacket{payload: make([]byte, 3*400)}, gsoUDP, 0, 400)
		b.inside.Send(0, super)
		time.Sleep(100 * time.Millisecond)
		synctest.Wait()
		b.outside.SetFull(false)
		b.inside.Send(0, ipFrame(2, 1000, 0))
		synctest.Wait()
		b.endWithoutError()
		want := dataplane.Count{Packets: 2 + 3, Bytes: 2*1014 + 3*(400+42)}
		if _, lost := s.Stats(); lost != (Lost{Refused: want}) {
			t.Errorf("lost %+v, want %+v refused", lost, want)
		}
		if len(b.out) != 1 || numberOf(b.out[0].b) != 2 {
			t.Errorf("got %d packets, want only number 2", len(b.out))
		}
		conserved(t, s, 1)
	})
}

// TestPlaneMemory checks that queued packets stay within the memory limit, in
// queues and in links, and that packets beyond it are counted.
func TestPlaneMemory(t *testing.T) {
	for name, policy := range map[string]*dataplane.Policy{
		"queue": oneQueue(queue.Config{Rate: byteRateMega, Time: 10 * time.Second}),
		"link":  linkPolicy(byteRateMega, func(c *queue.Config) { c.Bytes, c.Packets = 0, 60_000 }),
		"codel": linkPolicy(byteRateMega, func(c *queue.Config) {
			c.Bytes, c.Packets, c.CoDel = 0, 60_000, queue.CoDel{
				Target: time.Millisecond, Interval: 5 * time.Millisecond,
			}
		}),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const memory = 64 << 10
				s := newShaper(t, policy, memory)
				b := newBench(t, s, nil, 1)
				b.start(time.Minute)
				for i := range 1000 {
					b.inside.Send(0, ipFrame(i, 60+i%1400, 0))
					if n := s.QueuedMemory(); n > memory {
						t.Fatalf("got %d bytes queued, want at most %d", n, memory)
					}
				}
				synctest.Wait()
				if n := s.QueuedMemory(); n > memory || n < memory*9/10 {
					t.Errorf("got %d bytes queued, want %d to %d", n, memory*9/10, memory)
				}
				b.endWithoutError()
				if _, lost := s.Stats(); lost.Memory.Packets == 0 || lost.Ended.Packets > 0 {
					t.Errorf("lost %+v, want some for lack of memory", lost)
				}
				conserved(t, s, len(b.out))
			})
		})
	}
}

// TestPlaneTooLarge checks that a packet larger than its queue is dropped.
func TestPlaneTooLarge(t *testing.T) {
	for name, policy := range map[string]*dataplane.Policy{
		"queue": oneQueue(queue.Config{Rate: byteRateMega, Bytes: 999}),
		"link":  linkPolicy(byteRateMega, func(c *queue.Config) { c.Bytes = 999 }),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newShaper(t, policy, 0)
				b := newBench(t, s, nil, 1)
				b.start(time.Second)
				for i, n := range []int{1000, 999, 60_000, 500} {
					b.inside.Send(0, ipFrame(i, n, 0))
					synctest.Wait()
					time.Sleep(50 * time.Millisecond)
				}
				b.endWithoutError()
				if len(b.out) != 2 || numberOf(b.out[0].b) != 1 || numberOf(b.out[1].b) != 3 {
					t.Errorf("got %d packets, want numbers 1 and 3", len(b.out))
				}
				stats, _ := s.Stats()
				if d := stats[len(stats)-2].Drops[meter.Green][dataplane.CauseQueue]; d != (dataplane.Count{
					Packets: 2, Bytes: 61_000,
				}) {
					t.Errorf("got %+v dropped, want 2 packets of 61,000 bytes", d)
				}
				conserved(t, s, 2)
			})
		})
	}
}

// TestPlaneErrors checks that the numbers of queues must be equal, and that an
// error of a port names its device.
func TestPlaneErrors(t *testing.T) {
	p := Plane{Inside: NewFake("a", 2), Outside: NewFake("b", 1)}
	if err := p.Run(t.Context()); err == nil ||
		err.Error() != "a has 2 queues and b has 1: the numbers must be equal" {
		t.Error(err)
	}
	synctest.Test(t, func(t *testing.T) {
		for _, row := range []struct {
			read, write, wait error
			want              string
		}{
			{read: errors.New("no"), want: "b: no"},
			{wait: errors.New("no"), want: "b: no"},
			{write: errors.New("no"), want: "b: no"},
			{write: ErrGone, want: "b: the device is gone"},
		} {
			a := NewFake("a", 1)
			a.Send(0, ipFrame(0, 100, 0))
			s := newShaper(t, oneAction(nil), 0)
			p := Plane{Inside: a, Outside: oddDevice{
				"b",
				&oddPort{Port: NewFake("b", 1).Ports()[0], read: row.read, write: row.write, wait: row.wait},
			}, Egress: s}
			if err := p.Run(t.Context()); err == nil || err.Error() != row.want {
				t.Errorf("got %v, want %s", err, row.want)
			}
			if row.write != nil { // read by the plane
				if _, lost := s.Stats(); lost.Ended.Packets != 1 {
					t.Errorf("got %+v lost, want 1 packet at the end", lost)
				}
			}
		}
	})
}

// oddDevice is a device with one port.
type oddDevice struct {
	name string
	port Port
}

func (d oddDevice) Name() string  { return d.name }
func (d oddDevice) Ports() []Port { return []Port{d.port} }
func (d oddDevice) Close() error  { return nil }

// oddPort is a port that returns given errors.
type oddPort struct {
	Port
	read, write, wait error
	wake              func()
}

func (p *oddPort) Read(into [][]byte) (int, error) {
	if p.read != nil {
		return 0, p.read
	}
	return p.Port.Read(into)
}

func (p *oddPort) Write(frames [][]byte) (int, error) {
	if p.write != nil {
		return 0, p.write
	}
	return p.Port.Write(frames)
}

func (p *oddPort) Wait(deadline int64) error {
	if p.wait != nil {
		return p.wait
	}
	return p.Port.Wait(deadline)
}

func (p *oddPort) Wake() {
	p.Port.Wake()
	if p.wake != nil {
		p.wake()
	}
}
