package tap

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/nettest"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// running is a plane between devices of the kernel.
type running struct {
	t      *testing.T
	cancel func()
	ended  chan error
}

// runPlane runs a plane until the test ends, before its devices are closed.
func runPlane(t *testing.T, p Plane) *running {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	r := &running{t, cancel, make(chan error, 1)}
	go func() { r.ended <- p.Run(ctx) }()
	t.Cleanup(func() { _ = r.end() })
	return r
}

// end ends it, and returns what Run does.
func (r *running) end() error {
	r.cancel()
	return r.wait()
}

// wait waits for the end. It may be called again.
func (r *running) wait() error {
	select {
	case err := <-r.ended:
		r.ended <- err
		return err
	case <-time.After(limit):
		return errors.New("the plane does not end")
	}
}

// TestPlaneTCP holds that TCP crosses a plane, in frames that the kernel has
// still to cut, from a TAP device to another one and to an uplink, and that all
// that came is counted.
func TestPlaneTCP(t *testing.T) {
	for _, row := range []struct {
		queues int
		far    string
		policy *dataplane.Policy
	}{
		{1, "tap", only(nil)},
		{2, "tap", paced(queue.Config{Rate: meter.BitRate(2e9), Time: 50 * time.Millisecond})},
		{2, "uplink", only(&dataplane.Action{Marks: []dataplane.Mark{{Field: dataplane.DSCP, Value: 10}}})},
		{1, "uplink", shares(meter.BitRate(2e9), func(c *queue.Config) { c.Bytes = 4 << 20 })},
	} {
		t.Run(fmt.Sprintf("%d %s", row.queues, row.far), func(t *testing.T) {
			a, b := nettest.New(t), nettest.New(t)
			p := Plane{
				Inside: openTAP(t, a, Config{Name: "t0", Queues: row.queues}),
				Egress: newShaper(t, row.policy, 0), Ingress: newShaper(t, row.policy, 0), Drain: time.Second,
			}
			host(t, a, "t0", "02:00:00:00:00:03", "10.0.0.3/24", "fd00::3/64")
			name := "t0"
			if row.far == "tap" {
				p.Outside = openTAP(t, b, Config{Name: name, Queues: row.queues})
				host(t, b, name, "02:00:00:00:00:02", "10.0.0.2/24", "fd00::2/64")
			} else {
				name = "v0"
				middle := nettest.New(t)
				middle.Veth(b)
				p.Outside = uplink(t, middle, "v0", row.queues)
			}
			neighbour(t, a, "t0", "02:00:00:00:00:02", "10.0.0.2", "fd00::2")
			neighbour(t, b, name, "02:00:00:00:00:03", "10.0.0.3", "fd00::3")
			r := runPlane(t, p)
			const size = 4 << 20
			for _, to := range []string{"10.0.0.2", "fd00::2"} {
				transfer(t, a, b, to, size)
			}
			for _, to := range []string{"10.0.0.3", "fd00::3"} {
				transfer(t, b, a, to, size)
			}
			for _, n := range []*nettest.Namespace{a, b} {
				if got := sumErrors(t, n); got != "0" {
					t.Errorf("%s checksum errors", got)
				}
			}
			if err := r.end(); err != nil {
				t.Error(err)
			}
			for name, s := range map[string]*Shaper{"egress": p.Egress, "ingress": p.Ingress} {
				stats, lost := s.Stats()
				all := stats[len(stats)-2].Total()
				// Each way two transfers, in segments of an MTU and its headers.
				if least := int64(2 * size / 1460); all.Bytes < 2*size+40*least || all.Packets < least || all.Bytes > all.Packets*1500 {
					t.Errorf("%s: %+v", name, all)
				}
				t.Logf("%s: %+v, lost %+v", name, all, lost)
			}
		})
	}
}

// TestPlaneFair sends TCP beside a flood of UDP through one queue. Where that is
// fair, TCP has about half of it.
func TestPlaneFair(t *testing.T) {
	rates := map[dataplane.KeyField]float64{}
	for _, by := range []dataplane.KeyField{dataplane.NoKey, dataplane.ByFlow} {
		a, b := nettest.New(t), nettest.New(t)
		policy := only(&dataplane.Action{Queue: &dataplane.Queue{
			Name: "q", Config: queue.Config{Time: 100 * time.Millisecond, CoDel: queue.CoDel{Target: 5 * time.Millisecond, Interval: 100 * time.Millisecond}},
			Link: &dataplane.Link{Name: "l", Rate: meter.BitRate(10e6)}, Fair: dataplane.Key{By: by},
		}})
		p := Plane{
			Inside: openTAP(t, a, Config{Name: "t0"}), Outside: openTAP(t, b, Config{Name: "t0"}),
			Egress: newShaper(t, policy, 0), Ingress: newShaper(t, only(nil), 0), Drain: time.Second,
		}
		host(t, a, "t0", "02:00:00:00:00:03", "10.0.0.3/24")
		host(t, b, "t0", "02:00:00:00:00:02", "10.0.0.2/24")
		neighbour(t, a, "t0", "02:00:00:00:00:02", "10.0.0.2")
		neighbour(t, b, "t0", "02:00:00:00:00:03", "10.0.0.3")
		r := runPlane(t, p)
		var flood net.Conn
		var in net.PacketConn
		var err error
		b.Do(func() { in, err = net.ListenPacket("udp4", "10.0.0.2:4000") }) // nothing is refused
		if err == nil {
			a.Do(func() { flood, err = net.Dial("udp4", "10.0.0.2:4000") })
		}
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan bool)
		go func() {
			for b := make([]byte, 1400); ; {
				select {
				case <-done:
					return
				default:
					_, _ = flood.Write(b)
					time.Sleep(300 * time.Microsecond) // about 30 Mbit/s where timers are quick
				}
			}
		}()
		time.Sleep(500 * time.Millisecond) // the queue is full
		const size = 1 << 20
		begin := time.Now()
		transfer(t, a, b, "10.0.0.2", size)
		rates[by] = size * 8 / 1e6 / time.Since(begin).Seconds()
		close(done)
		_ = flood.Close()
		_ = in.Close()
		if err := r.end(); err != nil {
			t.Error(err)
		}
	}
	t.Logf("TCP beside a flood through 10 Mbit/s: %.2f Mbit/s, fair %.2f", rates[dataplane.NoKey], rates[dataplane.ByFlow])
	if rates[dataplane.ByFlow] < 3 {
		t.Errorf("TCP has %.2f Mbit/s of its 5", rates[dataplane.ByFlow])
	}
}

// TestPlaneDatagrams holds that bursts of small UDP packets, which a TAP device
// is given in super packets, all arrive in order, as they were.
func TestPlaneDatagrams(t *testing.T) {
	a, b := nettest.New(t), nettest.New(t)
	p := Plane{
		Inside: openTAP(t, a, Config{Name: "t0"}), Outside: openTAP(t, b, Config{Name: "t0"}),
		Egress: newShaper(t, paced(queue.Config{Rate: meter.BitRate(1e9), Time: time.Second}), 0), Drain: time.Second,
	}
	host(t, a, "t0", "02:00:00:00:00:03", "10.0.0.3/24")
	host(t, b, "t0", "02:00:00:00:00:02", "10.0.0.2/24")
	neighbour(t, a, "t0", "02:00:00:00:00:02", "10.0.0.2")
	r := runPlane(t, p)
	var in *net.UDPConn
	var err error
	b.Do(func() { in, err = net.ListenUDP("udp", &net.UDPAddr{IP: net.IP{10, 0, 0, 2}, Port: 4000}) })
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	_ = in.SetReadBuffer(8 << 20)
	_ = in.SetReadDeadline(time.Now().Add(limit))
	var fd int
	a.Do(func() { fd, err = unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0) })
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	const bursts, each = 40, 50 // a burst fits into the device's ring
	packet := make([]byte, 64-42)
	for i := range bursts * each {
		binary.BigEndian.PutUint32(packet, uint32(i))
		if err := unix.Sendto(fd, packet, 0, &unix.SockaddrInet4{Port: 4000, Addr: [4]byte{10, 0, 0, 2}}); err != nil {
			t.Fatal(err)
		}
		if i%each == each-1 {
			time.Sleep(2 * time.Millisecond)
		}
	}
	got := make([]byte, 2000)
	for i := range bursts * each {
		binary.BigEndian.PutUint32(packet, uint32(i))
		n, _, err := in.ReadFromUDP(got)
		if err != nil || !bytes.Equal(got[:n], packet) {
			t.Fatalf("datagram %d: % x, %v: want % x", i, got[:n], err, packet)
		}
	}
	if err := r.end(); err != nil {
		t.Error(err)
	}
}

// TestPlaneRate holds what leaves by an uplink to the rate of a queue, by the
// kernel's time stamps, if the machine has time for it.
func TestPlaneRate(t *testing.T) {
	const count = 400 // of 1250 bytes, a millisecond each; a TAP device holds 500
	var frames [][]byte
	for i := range count {
		frames = append(frames, ip(i, 1250, 0)[HeaderLen:])
	}
	var off int64
	for range 5 {
		a, middle, b := nettest.New(t), nettest.New(t), nettest.New(t)
		middle.Veth(b)
		s := newShaper(t, paced(queue.Config{Rate: meter.BitRate(10e6), Time: 5 * time.Second}), 0)
		inside := openTAP(t, a, Config{Name: "t0"})
		sniffer := b.Sniff("v0")
		a.Inject("t0", frames...) // all are there before the first leaves
		r := runPlane(t, Plane{Inside: inside, Outside: uplink(t, middle, "v0", 1), Egress: s, Drain: time.Second})
		if !sniffer.Wait(count, limit) {
			t.Fatal("not all came")
		}
		var times []int64
		for _, f := range sniffer.Stop() {
			b := plain(f.Data)
			if len(b) < numberAt+4 || len(b) != HeaderLen+14+1250 {
				continue
			}
			if n := numberOf(b); n != len(times) || !bytes.Equal(f.Data, frames[n]) {
				t.Fatalf("frame %d came after %d", n, len(times))
			}
			times = append(times, f.Time)
		}
		if len(times) != count {
			t.Fatalf("%d frames came, want %d", len(times), count)
		}
		if err := r.end(); err != nil {
			t.Error(err)
		}
		took, want := times[count-1]-times[0], int64(count-1)*ms
		if off = took - want; -want/100 <= off && off <= want/100 {
			return
		}
	}
	t.Errorf("five times they did not take what the rate gives them within 1 %%, last by %d ns", off)
}

// TestPlaneDeleted holds that a plane ends where a device is deleted while
// packets wait, and counts them; with the uplink back, it goes on.
func TestPlaneDeleted(t *testing.T) {
	for _, queues := range []int{1, 2} {
		for _, which := range []string{"t0", "v0"} {
			t.Run(fmt.Sprintf("%s %d", which, queues), func(t *testing.T) {
				a, middle, b := nettest.New(t), nettest.New(t), nettest.New(t)
				middle.Veth(b)
				s := newShaper(t, paced(queue.Config{Rate: meter.BitRate(50e3), Time: time.Hour}), 0)
				inside := openTAP(t, a, Config{Name: "t0", Queues: queues})
				r := runPlane(t, Plane{Inside: inside, Outside: uplink(t, middle, "v0", queues), Egress: s, Drain: time.Second})
				var frames [][]byte
				for i := range 100 {
					frames = append(frames, ip(i, 1250, 0)[HeaderLen:])
				}
				a.Inject("t0", frames...)
				for end := time.Now().Add(limit); ; time.Sleep(time.Millisecond) {
					stats, _ := s.Stats()
					if stats[0].Total().Packets >= 100 {
						break
					}
					if time.Now().After(end) {
						t.Fatalf("counted %+v", stats)
					}
				}
				map[string]*nettest.Namespace{"t0": a, "v0": middle}[which].Delete(which)
				err := r.wait()
				var gone *GoneError
				if !errors.As(err, &gone) || gone.Device != which {
					t.Errorf("%v: want that %s is gone", err, which)
				}
				stats, lost := s.Stats()
				if lost.Ended.Packets < 80 || lost.Ended.Packets > stats[0].Total().Packets || s.QueuedMemory() != 0 {
					t.Errorf("counted %+v, lost %+v", stats, lost)
				}
				if which == "t0" {
					return
				}
				middle.Veth(b)
				s2 := b.Sniff("v0")
				r = runPlane(t, Plane{Inside: inside, Outside: uplink(t, middle, "v0", queues), Egress: s, Drain: 0})
				if _, err := s.Reload(compiled(t, only(nil))); err != nil {
					t.Fatal(err)
				}
				a.Inject("t0", ip(7, 777, 0)[HeaderLen:])
				if !s2.Wait(1, limit) {
					t.Error("it does not go on")
				}
				if err := r.end(); err != nil {
					t.Error(err)
				}
			})
		}
	}
}
