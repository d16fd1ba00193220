//go:build linux

package nettest

import (
	"encoding/binary"
	"errors"
	"net"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Wire is two namespaces joined by a veth pair, v0 in both. Packets go from Near to Far.
type Wire struct {
	T         *testing.T
	Near, Far *Namespace
	Index     int // of v0 in Near
}

// NewWire makes a Wire, which ends with the test.
func NewWire(t *testing.T) *Wire {
	t.Helper()
	w := &Wire{T: t, Near: New(t), Far: New(t)}
	w.Near.Veth(w.Far)
	w.Index = w.Near.Index("v0")
	return w
}

// Do runs f in Near. The test fails if f does.
func (w *Wire) Do(f func() error) {
	w.T.Helper()
	var err error
	w.Near.Do(func() { err = f() })
	if err != nil {
		w.T.Fatal(err)
	}
}

// Shown is what tc shows of the qdiscs and classes of v0, with all details.
func (w *Wire) Shown() string {
	w.T.Helper()
	lines := strings.Split(w.Near.Run("tc", "-d", "qdisc", "show", "dev", "v0"), "\n")
	for _, m := range regexp.MustCompile(`qdisc \w+ ([0-9a-f]+:)`).FindAllStringSubmatch(strings.Join(lines, "\n"), -1) {
		if m[1] != "0:" { // by qdisc: of all at once the kernel leaves some out
			lines = append(lines, strings.Split(w.Near.Run("tc", "-d", "class", "show", "dev", "v0", "parent", m[1]), "\n")...)
		}
	}
	slices.Sort(lines)
	return strings.TrimSpace(strings.Join(lines, "\n"))
}

// TC runs tc with the words of each line. It skips the test if the kernel lacks a qdisc.
func (w *Wire) TC(lines ...string) {
	w.T.Helper()
	for _, line := range lines {
		cmd := exec.Command("tc", strings.Fields(line)...)
		var out []byte
		var err error
		w.Near.Do(func() { out, err = cmd.CombinedOutput() })
		if err != nil && strings.Contains(string(out), "qdisc kind is unknown") {
			w.T.Skipf("tc %s: %s", line, out)
		}
		if err != nil {
			w.T.Fatalf("tc %s: %v: %s", line, err, out)
		}
	}
}

// Sender sends from Near to a port of Far. It is not connected, because nobody listens
// there and no error may come back.
type Sender struct {
	*net.UDPConn
	To *net.UDPAddr
}

// Write sends a datagram.
func (s *Sender) Write(b []byte) (int, error) { return s.WriteTo(b, s.To) }

// Socket makes a sender whose packets have an skb priority, 0 for none.
func (w *Wire) Socket(port int, priority uint32) *Sender {
	w.T.Helper()
	conn := &Sender{To: &net.UDPAddr{IP: net.IPv4(10, 0, 0, 2), Port: port}}
	w.Do(func() (err error) {
		conn.UDPConn, err = net.ListenUDP("udp4", nil)
		if err != nil {
			return err
		}
		raw, err := conn.SyscallConn()
		if err != nil {
			return err
		}
		failed := raw.Control(func(fd uintptr) {
			err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, 16<<20)
			if err == nil && priority != 0 {
				err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PRIORITY, int(priority))
			}
		})
		return errors.Join(failed, err)
	})
	w.T.Cleanup(func() { conn.Close() })
	return conn
}

// Fill sends without a pause, until it is stopped or the test ends.
func Fill(conn *Sender) (stop func()) {
	payload := make([]byte, 1472)
	go func() {
		for {
			if _, err := conn.Write(payload); errors.Is(err, net.ErrClosed) {
				return
			}
		}
	}()
	return func() { conn.Close() }
}

// PortOf is the UDP port that a frame goes to, 0 for none.
func PortOf(f Frame) int {
	if len(f.Data) < 38 || f.Data[23] != unix.IPPROTO_UDP {
		return 0
	}
	return int(binary.BigEndian.Uint16(f.Data[36:]))
}

// Speed is the rate of the frames after the first, in bytes/s.
func Speed(frames []Frame) float64 {
	n := 0
	for _, f := range frames[1:] {
		n += len(f.Data)
	}
	return float64(n) / time.Duration(frames[len(frames)-1].Time-frames[0].Time).Seconds()
}

// InVM says that the test runs in an emulated machine, about ten times slower.
var InVM = os.Getenv("SHAPER_VM") != ""

// Scaled returns a rate in bytes/s and the number of frames to measure it by, both a
// tenth in a VM: on a busy machine it cannot send at the full rate.
func Scaled(bits uint64, frames int) (rate uint64, n int) {
	if InVM {
		return bits / 80, frames / 10
	}
	return bits / 8, frames
}

// Nearly allows 1 percent. In a VM timers are later than HTB makes up for.
func Nearly(got, want float64) bool {
	if InVM {
		return got > want/4 && got < want*1.05
	}
	return got > want*0.99 && got < want*1.01
}
