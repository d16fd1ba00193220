package kernel

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"os/exec"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/kerneltest"
	"github.com/a-seed-32e5a53f/shaper/dataplane/nettest"
)

// TestQuietIFBRate checks that ingress packets arrive at the rate of their queue.
func TestQuietIFBRate(t *testing.T) {
	nettest.Quiet(t)
	rate, n := nettest.Scaled(20_000_000, 3200)
	const first = 100 // packets before the measurement
	nettest.Steady(t, func() error {
		s := newShadowed(t)
		s.pace(rate)
		conn := s.receive(9)
		enableTimestamps(t, conn)
		defer nettest.Fill(s.Socket(9, 0))()
		var begin, end time.Time // timestamps of the kernel: the reader may be late
		for i := range first + n {
			if err := conn.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
				t.Fatal(err)
			}
			end = arrival(t, conn)
			if i == first {
				begin = end
			}
		}
		want, got := float64(rate), float64((n-1)*1514)/end.Sub(begin).Seconds()
		t.Logf("%.0f byte/s, %+.3f %%", got, 100*(got/want-1))
		if !nettest.Nearly(got, want) {
			return fmt.Errorf("got %.0f byte/s, want %.0f", got, want)
		}
		return nil
	})
}

// TestIFBStream checks that TCP works in both directions through the ifb, with offloads and over
// IPv4, IPv6 and a VLAN.
func TestIFBStream(t *testing.T) {
	t.Parallel()
	s := newShadowed(t)
	s.pace(1_000_000_000)
	var listener net.Listener
	s.inFar(func() (err error) {
		listener, err = net.Listen("tcp", ":7")
		return err
	})
	defer listener.Close()
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.Copy(conn, conn)
				conn.Close()
			}()
		}
	}()
	for _, host := range append([]string{"10.0.0.2", "fd00::2"}, s.addVLAN()...) {
		var conn net.Conn
		s.Do(func() (err error) {
			conn, err = net.Dial("tcp", net.JoinHostPort(host, "7"))
			return err
		})
		sent := bytes.Repeat([]byte("0123456789abcdef!"), 200_000)
		go func() {
			_, _ = conn.Write(sent)
			_ = conn.(*net.TCPConn).CloseWrite()
		}()
		_ = conn.SetReadDeadline(time.Now().Add(time.Minute))
		got, err := io.ReadAll(conn)
		if err != nil || !bytes.Equal(got, sent) {
			t.Errorf("%s: got %d bytes back and error %v, want the %d that were sent", host, len(got), err,
				len(sent))
		}
		conn.Close()
	}
	stats := s.stats()
	t.Logf("%+v", stats)
	if stats.Bytes < 2*200_000*17 || stats.Drops > 0 {
		t.Errorf("got %+v, want all bytes through the ifb and no drops", stats)
	}
}

// TestIFBFrames checks that frames pass the ifb unchanged, with their tags.
func TestIFBFrames(t *testing.T) {
	t.Parallel()
	s := newShadowed(t)
	s.pace(1_000_000)
	// A packet socket on v0 sees only frames before the ifb, so a bridge forwards them to
	// another device.
	behind := nettest.New(t)
	s.Far.VethNamed("x0", behind, "v0")
	var out []byte
	var err error
	s.Far.Do(func() {
		out, err = exec.Command("ip", "link", "add", "b0", "up", "type", "bridge").CombinedOutput()
	})
	if err != nil {
		t.Skipf("needs bridges (CONFIG_BRIDGE): %s", out)
	}
	s.Far.Run("ip", "link", "set", "v0", "master", "b0")
	s.Far.Run("ip", "link", "set", "x0", "master", "b0")
	s.Far.Run("ip", "link", "set", "b0", "type", "bridge", "forward_delay", "0")
	head := []byte{2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 1}
	payload := bytes.Repeat([]byte{0xa5}, 100)
	sent := [][]byte{
		append(kerneltest.Be16(bytes.Clone(head), 0x88b5), payload...),
		append(kerneltest.Be16(bytes.Clone(head), 0x8100, 0x6005, 0x88b5), payload...),
		append(kerneltest.Be16(bytes.Clone(head), 0x88a8, 7, 0x8100, 8, 0x88b5), payload...),
		append(kerneltest.Be16(bytes.Clone(head), 0x8100, 0x6005, 0x88b5), bytes.Repeat(payload, 15)...),
	}
	sniffer := behind.Sniff("v0")
	s.Near.Inject("v0", sent...)
	sniffer.Wait(len(sent), kerneltest.Patient)
	var arrived [][]byte
	for _, f := range sniffer.Stop() {
		if bytes.HasPrefix(f.Data, head) {
			arrived = append(arrived, f.Data)
		}
	}
	if fmt.Sprintf("%x", arrived) != fmt.Sprintf("%x", sent) {
		t.Errorf("got %x, want %x", arrived, sent)
	}
}

// TestIFBTraffic checks that no packet is lost while the ifb is removed and added under traffic.
func TestIFBTraffic(t *testing.T) {
	if kerneltest.InVM {
		t.Skip("not in a VM: qemu sometimes misses that the kernel patches running code")
	}
	t.Parallel()
	s := newShadowed(t)
	conn := s.receive(9)
	from := s.Socket(9, 0)
	number := 0
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for number < 100_000 { // the receiver has room for them
			select {
			case <-stop:
				return
			default:
			}
			for range 10 {
				_, _ = from.Write(make([]byte, 4))
				number++
			}
			time.Sleep(100 * time.Microsecond)
		}
	}()
	for range 5 {
		time.Sleep(50 * time.Millisecond)
		s.removeIFB(s.index)
		time.Sleep(50 * time.Millisecond)
		s.addIFB()
	}
	s.removeIFB(s.index)
	close(stop)
	<-done
	_, _ = from.Write(make([]byte, 5)) // marks the end
	got := 0
	for {
		_ = conn.SetReadDeadline(time.Now().Add(kerneltest.Patient))
		b := make([]byte, 8)
		n, err := conn.Read(b)
		if err != nil {
			t.Fatal(err)
		}
		if n == 5 {
			break
		}
		got++
	}
	t.Logf("%d of %d packets arrived", got, number)
	if got != number {
		t.Errorf("got %d packets, want %d", got, number)
	}
}
