package kernel

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"os/exec"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane/nettest"
)

// TestIFBRate holds that what comes in waits, and then comes in.
func TestIFBRate(t *testing.T) {
	rate, n := nettest.Scaled(20_000_000, 3200)
	const first = 100 // from then on
	nettest.Steady(t, func() error {
		s := newShadowed(t)
		s.pace(rate)
		conn := s.receive(9)
		stamped(t, conn)
		defer nettest.Fill(s.Socket(9, 0))()
		var begin, end time.Time // by the kernel: a reader may be late
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
			return fmt.Errorf("%.0f byte/s: want %.0f", got, want)
		}
		return nil
	})
}

// TestIFBStream holds that TCP works through it both ways, with what offloads
// make of it.
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
	for _, host := range append([]string{"10.0.0.2", "fd00::2"}, s.vlan()...) {
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
			t.Errorf("%s: %d of %d bytes came back: %v", host, len(got), len(sent), err)
		}
		conn.Close()
	}
	stats := s.stats()
	t.Logf("%+v", stats)
	if stats.Bytes < 2*200_000*17 || stats.Drops > 0 {
		t.Errorf("%+v: want all bytes through the ifb, and no drops", stats)
	}
}

// TestIFBFrames holds that frames come through as they were, with their tags.
func TestIFBFrames(t *testing.T) {
	t.Parallel()
	s := newShadowed(t)
	s.pace(1_000_000)
	// Taps of v0 see frames before the ifb only: a bridge takes them on.
	behind := nettest.New(t)
	s.Far.VethNamed("x0", behind, "v0")
	var out []byte
	var err error
	s.Far.Do(func() { out, err = exec.Command("ip", "link", "add", "b0", "up", "type", "bridge").CombinedOutput() })
	if err != nil {
		t.Skipf("make a bridge: %s", out)
	}
	s.Far.Run("ip", "link", "set", "v0", "master", "b0")
	s.Far.Run("ip", "link", "set", "x0", "master", "b0")
	s.Far.Run("ip", "link", "set", "b0", "type", "bridge", "forward_delay", "0")
	head := []byte{2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 1}
	payload := bytes.Repeat([]byte{0xa5}, 100)
	sent := [][]byte{
		append(be16(bytes.Clone(head), 0x88b5), payload...),
		append(be16(bytes.Clone(head), 0x8100, 0x6005, 0x88b5), payload...),
		append(be16(bytes.Clone(head), 0x88a8, 7, 0x8100, 8, 0x88b5), payload...),
		append(be16(bytes.Clone(head), 0x8100, 0x6005, 0x88b5), bytes.Repeat(payload, 15)...),
	}
	sniffer := behind.Sniff("v0")
	s.Near.Inject("v0", sent...)
	sniffer.Wait(len(sent), patient)
	var came [][]byte
	for _, f := range sniffer.Stop() {
		if bytes.HasPrefix(f.Data, head) {
			came = append(came, f.Data)
		}
	}
	if fmt.Sprintf("%x", came) != fmt.Sprintf("%x", sent) {
		t.Errorf("%x came through: want %x", came, sent)
	}
}

// TestIFBTraffic holds that what comes after a removal comes in.
func TestIFBTraffic(t *testing.T) {
	if inVM {
		t.Skip("not in a VM: qemu does not always notice that the kernel patches code which packets run through")
	}
	t.Parallel()
	s := newShadowed(t)
	conn := s.receive(9)
	from := s.Socket(9, 0)
	number := 0
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
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
		s.unshadow(s.index)
		time.Sleep(50 * time.Millisecond)
		s.shadow()
	}
	s.unshadow(s.index)
	close(stop)
	<-done
	_, _ = from.Write(make([]byte, 5)) // the end
	got := 0
	for {
		_ = conn.SetReadDeadline(time.Now().Add(patient))
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
	t.Logf("%d of %d", got, number)
	if got != number {
		t.Errorf("%d of %d packets came in", got, number)
	}
}
