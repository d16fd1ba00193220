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

// runningPlane is a plane between devices of the kernel.
type runningPlane struct {
	t      *testing.T
	cancel func()
	ended  chan error
}

// runPlane runs a plane until the test ends, before its devices are closed.
func runPlane(t *testing.T, p Plane) *runningPlane {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	r := &runningPlane{t, cancel, make(chan error, 1)}
	go func() { r.ended <- p.Run(ctx) }()
	t.Cleanup(func() { _ = r.stopPlane() })
	return r
}

// stopPlane ends the plane and returns the error of Run.
func (r *runningPlane) stopPlane() error {
	r.cancel()
	return r.awaitEnd()
}

// awaitEnd waits for the end of Run and returns its error. It may be called again.
func (r *runningPlane) awaitEnd() error {
	select {
	case err := <-r.ended:
		r.ended <- err
		return err
	case <-time.After(kernelLimit):
		return errors.New("the plane does not end")
	}
}

// TestPlaneTCP checks that TCP crosses a plane in GSO frames, from a TAP device to
// another one and to an uplink, and that all packets are counted.
func TestPlaneTCP(t *testing.T) {
	for _, row := range []struct {
		queues int
		far    string
		policy *dataplane.Policy
	}{
		{1, "tap", oneAction(nil)},
		{2, "tap", oneQueue(queue.Config{Rate: meter.BitRate(2e9), Time: 50 * time.Millisecond})},
		{2, "uplink", oneAction(&dataplane.Action{Marks: []dataplane.Mark{{Field: dataplane.DSCP, Value: 10}}})},
		{1, "uplink", linkPolicy(meter.BitRate(2e9), func(c *queue.Config) { c.Bytes = 4 << 20 })},
	} {
		t.Run(fmt.Sprintf("%d %s", row.queues, row.far), func(t *testing.T) {
			a, b := nettest.New(t), nettest.New(t)
			p := Plane{
				Inside: openTAP(t, a, Config{Name: "t0", Queues: row.queues}),
				Egress: newShaper(t, row.policy, 0), Ingress: newShaper(t, row.policy, 0), Drain: time.Second,
			}
			configureHost(t, a, "t0", "02:00:00:00:00:03", "10.0.0.3/24", "fd00::3/64")
			name := "t0"
			if row.far == "tap" {
				p.Outside = openTAP(t, b, Config{Name: name, Queues: row.queues})
				configureHost(t, b, name, "02:00:00:00:00:02", "10.0.0.2/24", "fd00::2/64")
			} else {
				name = "v0"
				middle := nettest.New(t)
				middle.Veth(b)
				p.Outside = uplinkIn(t, middle, "v0", row.queues)
			}
			neighbour(t, a, "t0", "02:00:00:00:00:02", "10.0.0.2", "fd00::2")
			neighbour(t, b, name, "02:00:00:00:00:03", "10.0.0.3", "fd00::3")
			r := runPlane(t, p)
			const size = 4 << 20
			for _, to := range []string{"10.0.0.2", "fd00::2"} {
				transferTCP(t, a, b, to, size)
			}
			for _, to := range []string{"10.0.0.3", "fd00::3"} {
				transferTCP(t, b, a, to, size)
			}
			for _, n := range []*nettest.Namespace{a, b} {
				if got := sumErrors(t, n); got != "0" {
					t.Errorf("got %s checksum errors, want 0", got)
				}
			}
			if err := r.stopPlane(); err != nil {
				t.Error(err)
			}
			for name, s := range map[string]*ActivePolicy{"egress": p.Egress, "ingress": p.Ingress} {
				stats, lost := s.Stats()
				all := stats[len(stats)-2].Total()
				// Two transfers in each direction, in segments of an MTU with headers.
				if least := int64(2 * size / 1460); all.Bytes < 2*size+40*least || all.Packets < least ||
					all.Bytes > all.Packets*1500 {
					t.Errorf("%s: got %+v, want at least %d bytes in %d packets of at most 1500", name, all,
						2*size+40*least, least)
				}
				t.Logf("%s: %+v, lost %+v", name, all, lost)
			}
		})
	}
}

// TestQuietPlaneFair sends TCP beside a flood of UDP through one queue. If the queue is
// fair, TCP gets about half of the rate.
func TestQuietPlaneFair(t *testing.T) {
	nettest.Quiet(t)
	rates := map[dataplane.KeyField]float64{}
	for _, by := range []dataplane.KeyField{dataplane.NoKey, dataplane.ByFlow} {
		a, b := nettest.New(t), nettest.New(t)
		policy := oneAction(&dataplane.Action{Queue: &dataplane.Queue{
			Name: "q",
			Config: queue.Config{
				Time:  100 * time.Millisecond,
				CoDel: queue.CoDel{Target: 5 * time.Millisecond, Interval: 100 * time.Millisecond},
			},
			Link: &dataplane.Link{Name: "l", Rate: meter.BitRate(10e6)}, Fair: dataplane.Key{By: by},
		}})
		p := Plane{
			Inside: openTAP(t, a, Config{Name: "t0"}), Outside: openTAP(t, b, Config{Name: "t0"}),
			Egress: newShaper(t, policy, 0), Ingress: newShaper(t, oneAction(nil), 0), Drain: time.Second,
		}
		configureHost(t, a, "t0", "02:00:00:00:00:03", "10.0.0.3/24")
		configureHost(t, b, "t0", "02:00:00:00:00:02", "10.0.0.2/24")
		neighbour(t, a, "t0", "02:00:00:00:00:02", "10.0.0.2")
		neighbour(t, b, "t0", "02:00:00:00:00:03", "10.0.0.3")
		r := runPlane(t, p)
		var flood net.Conn
		var in net.PacketConn
		var err error
		b.Do(func() { in, err = net.ListenPacket("udp4", "10.0.0.2:4000") }) // so that no port is unreachable
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
					time.Sleep(300 * time.Microsecond) // at most 37 Mbit/s, less if timers are late
				}
			}
		}()
		time.Sleep(500 * time.Millisecond) // the queue is full
		const size = 1 << 20
		begin := time.Now()
		transferTCP(t, a, b, "10.0.0.2", size)
		rates[by] = size * 8 / 1e6 / time.Since(begin).Seconds()
		close(done)
		_ = flood.Close()
		_ = in.Close()
		if err := r.stopPlane(); err != nil {
			t.Error(err)
		}
	}
	t.Logf("TCP beside a flood through 10 Mbit/s: %.2f Mbit/s, fair %.2f", rates[dataplane.NoKey],
		rates[dataplane.ByFlow])
	if rates[dataplane.ByFlow] < 3 {
		t.Errorf("got %.2f Mbit/s for TCP beside the flood, want about 5 of 10", rates[dataplane.ByFlow])
	}
}

// TestPlaneDatagrams checks that bursts of small UDP packets, which the plane merges
// into super packets, arrive unchanged and in order.
func TestPlaneDatagrams(t *testing.T) {
	a, b := nettest.New(t), nettest.New(t)
	p := Plane{
		Inside: openTAP(t, a, Config{Name: "t0"}), Outside: openTAP(t, b, Config{Name: "t0"}),
		Egress: newShaper(t, oneQueue(queue.Config{Rate: meter.BitRate(1e9), Time: time.Second}), 0),
		Drain:  time.Second,
	}
	configureHost(t, a, "t0", "02:00:00:00:00:03", "10.0.0.3/24")
	configureHost(t, b, "t0", "02:00:00:00:00:02", "10.0.0.2/24")
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
	_ = in.SetReadDeadline(time.Now().Add(kernelLimit))
	var fd int
	a.Do(func() { fd, err = unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0) })
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	const bursts, each = 40, 50 // a burst fits into the device's ring
	packet, got := make([]byte, 64-42), make([]byte, 2000)
	for burst := range bursts {
		for i := range each {
			binary.BigEndian.PutUint32(packet, uint32(burst*each+i))
			if err := unix.Sendto(fd, packet, 0,
				&unix.SockaddrInet4{Port: 4000, Addr: [4]byte{10, 0, 0, 2}}); err != nil {
				t.Fatal(err)
			}
		}
		for i := range each {
			binary.BigEndian.PutUint32(packet, uint32(burst*each+i))
			n, _, err := in.ReadFromUDP(got)
			if err != nil || !bytes.Equal(got[:n], packet) {
				t.Fatalf("datagram %d: got % x, %v: want % x", burst*each+i, got[:n], err, packet)
			}
		}
	}
	if err := r.stopPlane(); err != nil {
		t.Error(err)
	}
}

// TestQuietPlaneRate checks that packets depart through an uplink at the rate of their
// queue, by the kernel's timestamps. It makes five attempts, because a busy machine
// delays packets.
func TestQuietPlaneRate(t *testing.T) {
	nettest.Quiet(t)
	const count = 400 // of 1250 bytes, 1 ms each; a TAP device queues up to 500
	var frames [][]byte
	for i := range count {
		frames = append(frames, ipFrame(i, 1250, 0)[HeaderLen:])
	}
	var off int64
	for range 5 {
		a, middle, b := nettest.New(t), nettest.New(t), nettest.New(t)
		middle.Veth(b)
		s := newShaper(t, oneQueue(queue.Config{Rate: meter.BitRate(10e6), Time: 5 * time.Second}), 0)
		inside := openTAP(t, a, Config{Name: "t0"})
		sniffer := b.Sniff("v0")
		a.Inject("t0", frames...) // before the plane reads the first
		r := runPlane(t,
			Plane{Inside: inside, Outside: uplinkIn(t, middle, "v0", 1), Egress: s, Drain: time.Second})
		if !sniffer.Wait(count, kernelLimit) {
			t.Fatalf("fewer than %d frames arrived", count)
		}
		var times []int64
		for _, f := range sniffer.Stop() {
			b := withHeader(f.Data)
			if len(b) < numberAt+4 || len(b) != HeaderLen+14+1250 {
				continue
			}
			if n := numberOf(b); n != len(times) || !bytes.Equal(f.Data, frames[n]) {
				t.Fatalf("got frame %d, want frame %d unchanged", n, len(times))
			}
			times = append(times, f.Time)
		}
		if len(times) != count {
			t.Fatalf("got %d frames, want %d", len(times), count)
		}
		if err := r.stopPlane(); err != nil {
			t.Error(err)
		}
		took, want := times[count-1]-times[0], int64(count-1)*ms
		if off = took - want; -want/100 <= off && off <= want/100 {
			return
		}
	}
	t.Errorf(
		"in five attempts the frames never took their time at the rate within 1 %%; the last was %d ns off",
		off)
}

// TestPlaneDeleted checks that a plane ends if a device is deleted while packets are
// queued, that these packets are counted, and that the shaper continues with a new
// uplink.
func TestPlaneDeleted(t *testing.T) {
	for _, queues := range []int{1, 2} {
		for _, which := range []string{"t0", "v0"} {
			t.Run(fmt.Sprintf("%s %d", which, queues), func(t *testing.T) {
				a, middle, b := nettest.New(t), nettest.New(t), nettest.New(t)
				middle.Veth(b)
				s := newShaper(t, oneQueue(queue.Config{Rate: meter.BitRate(1e3), Time: time.Hour}), 0)
				inside := openTAP(t, a, Config{Name: "t0", Queues: queues})
				r := runPlane(t, Plane{
					Inside: inside, Outside: uplinkIn(t, middle, "v0", queues), Egress: s, Drain: time.Second,
				})
				var frames [][]byte
				for i := range 100 {
					frames = append(frames, ipFrame(i, 1250, 0)[HeaderLen:])
				}
				a.Inject("t0", frames...)
				for end := time.Now().Add(kernelLimit); ; time.Sleep(time.Millisecond) {
					stats, _ := s.Stats()
					if stats[0].Total().Packets >= 100 {
						break
					}
					if time.Now().After(end) {
						t.Fatalf("got %+v, want 100 packets counted", stats)
					}
				}
				map[string]*nettest.Namespace{"t0": a, "v0": middle}[which].Delete(which)
				err := r.awaitEnd()
				var gone *GoneError
				if !errors.As(err, &gone) || gone.Device != which {
					t.Errorf("got %v: want that %s is gone", err, which)
				}
				stats, lost := s.Stats()
				if lost.Ended.Packets < 80 || lost.Ended.Packets > stats[0].Total().Packets ||
					s.QueuedMemory() != 0 {
					t.Errorf("got %+v, lost %+v, want 80 or more packets lost at the end and none queued",
						stats, lost)
				}
				if which == "t0" {
					return
				}
				middle.Veth(b)
				s2 := b.Sniff("v0")
				r = runPlane(t,
					Plane{Inside: inside, Outside: uplinkIn(t, middle, "v0", queues), Egress: s, Drain: 0})
				if _, err := s.Reload(compilePlan(t, oneAction(nil))); err != nil {
					t.Fatal(err)
				}
				a.Inject("t0", ipFrame(7, 777, 0)[HeaderLen:])
				if !s2.Wait(1, kernelLimit) {
					t.Error("no frame arrived through the new device")
				}
				if err := r.stopPlane(); err != nil {
					t.Error(err)
				}
			})
		}
	}
}
