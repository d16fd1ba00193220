//go:build linux

package nettest

import (
	"encoding/binary"
	"errors"
	"net"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Wire is two namespaces connected by a veth pair, v0 in both. Packets are sent from Near to
// Far.
type Wire struct {
	T         *testing.T
	Near, Far *Namespace
	Index     int // interface index of v0 in Near
}

// NewWire creates a Wire and deletes it when the test ends.
func NewWire(t *testing.T) *Wire {
	t.Helper()
	w := &Wire{T: t, Near: New(t), Far: New(t)}
	w.Near.Veth(w.Far)
	w.Index = w.Near.Index("v0")
	return w
}

// Do runs f in Near. If f returns an error, the test fails.
func (w *Wire) Do(f func() error) {
	w.T.Helper()
	var err error
	w.Near.Do(func() { err = f() })
	if err != nil {
		w.T.Fatal(err)
	}
}

// Shown returns the output of tc for the qdiscs and classes of v0, with all details, sorted.
func (w *Wire) Shown() string {
	w.T.Helper()
	lines := strings.Split(w.Near.Run("tc", "-d", "qdisc", "show", "dev", "v0"), "\n")
	for _, m := range regexp.MustCompile(`qdisc \w+ ([0-9a-f]+:)`).FindAllStringSubmatch(
		strings.Join(lines, "\n"), -1) {
		if m[1] != "0:" { // one qdisc at a time: a dump of all classes is incomplete
			lines = append(lines,
				strings.Split(w.Near.Run("tc", "-d", "class", "show", "dev", "v0", "parent", m[1]), "\n")...)
		}
	}
	slices.Sort(lines)
	return strings.TrimSpace(strings.Join(lines, "\n"))
}

// TC runs tc for each line, with its words as arguments. If the kernel does not have a qdisc,
// the test is skipped.
func (w *Wire) TC(lines ...string) {
	w.T.Helper()
	for _, line := range lines {
		cmd := exec.Command("tc", strings.Fields(line)...)
		var out []byte
		var err error
		w.Near.Do(func() { out, err = cmd.CombinedOutput() })
		if err != nil && strings.Contains(string(out), "qdisc kind is unknown") {
			w.T.Logf("tc %s: %s", line, out)
			w.T.Skip("this kernel lacks a qdisc that the test uses")
		}
		if err != nil {
			w.T.Fatalf("tc %s: %v: %s", line, err, out)
		}
	}
}

// Sender sends UDP datagrams from Near to a port of Far. The socket is not connected: no process
// listens on the port, and a connected socket would then return errors.
type Sender struct {
	*net.UDPConn
	To *net.UDPAddr
}

// Write sends a datagram.
func (s *Sender) Write(b []byte) (int, error) { return s.WriteTo(b, s.To) }

// ListenUDP opens a UDP socket in this thread's network namespace, on a port or on any if port
// is 0. set sets the options of its file descriptor.
func ListenUDP(port int, set func(fd int) error) (*net.UDPConn, error) {
	conn, err := net.ListenUDP("udp4", &net.UDPAddr{Port: port})
	if err != nil {
		return nil, err
	}
	raw, err := conn.SyscallConn()
	if err == nil {
		failed := raw.Control(func(fd uintptr) { err = set(int(fd)) })
		err = errors.Join(failed, err)
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}

// Socket returns a sender. Its packets have an skb priority; 0 means none.
func (w *Wire) Socket(port int, priority uint32) *Sender {
	w.T.Helper()
	conn := &Sender{To: &net.UDPAddr{IP: net.IPv4(10, 0, 0, 2), Port: port}}
	w.Do(func() (err error) {
		conn.UDPConn, err = ListenUDP(0, func(fd int) error {
			err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, 16<<20)
			if err == nil && priority != 0 {
				err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PRIORITY, int(priority))
			}
			return err
		})
		return err
	})
	w.T.Cleanup(func() { conn.Close() })
	return conn
}

// Fill sends full-size datagrams without a pause until stop is called or the test ends.
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

// PortOf returns the destination port of a UDP frame, or 0 for other frames.
func PortOf(f Frame) int {
	if len(f.Data) < 38 || f.Data[23] != unix.IPPROTO_UDP {
		return 0
	}
	return int(binary.BigEndian.Uint16(f.Data[36:]))
}

// Speed returns the rate of the frames after the first one, in bytes/s.
func Speed(frames []Frame) float64 {
	n := 0
	for _, f := range frames[1:] {
		n += len(f.Data)
	}
	return float64(n) / time.Duration(frames[len(frames)-1].Time-frames[0].Time).Seconds()
}

// Scaled converts a rate from bit/s to bytes/s. In a VM it returns a tenth of the rate and of
// the number of frames for its measurement: a VM on a busy machine cannot send at the full
// rate.
func Scaled(bits uint64, frames int) (rate uint64, n int) {
	if InVM {
		return bits / 80, frames / 10
	}
	return bits / 8, frames
}

// Nearly reports whether got is within 1 % of want. In a VM got may be much smaller, because
// timers are later than HTB compensates for.
func Nearly(got, want float64) bool {
	if InVM {
		return got > want/4 && got < want*1.05
	}
	return got > want*0.99 && got < want*1.01
}
