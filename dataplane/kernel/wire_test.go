package kernel

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/hook"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/iface"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/image"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/qdisc"
	"github.com/a-seed-32e5a53f/shaper/dataplane/nettest"
)

// wire is a veth pair. Ingress of far's v0 can have an ifb.
type wire struct{ *nettest.Wire }

func newWire(t *testing.T) *wire { return &wire{nettest.NewWire(t)} }

// shadowed is a wire with an ifb at ingress of far's v0.
type shadowed struct {
	*wire
	index  int // interface index of far's v0
	device int // interface index of the ifb
}

func newShadowed(t *testing.T) *shadowed {
	t.Helper()
	w := newWire(t)
	index, device := w.addIFB()
	return &shadowed{w, index, device}
}

// addIFB adds an ifb at ingress of far's v0. It is removed after the test.
func (w *wire) addIFB() (index, device int) {
	w.T.Helper()
	index = w.Far.Index("v0")
	w.inFar(func() error {
		return changeSite(index, func(st *site) (err error) {
			device, err = st.addIFB()
			return err
		})
	})
	w.T.Cleanup(func() { w.removeIFB(index) })
	return index, device
}

// removeIFB removes the ifb of an interface of far.
func (w *wire) removeIFB(index int) {
	w.T.Helper()
	w.inFar(func() error { return changeSite(index, (*site).removeIFB) })
}

// changeSite calls f with an interface of this namespace, locked as each command does it.
func changeSite(index int, f func(*site) error) error {
	here, err := iface.CurrentNamespace()
	if err != nil {
		return err
	}
	st, err := openSite(iface.ID{Namespace: here, Index: index})
	if err != nil {
		return err
	}
	return errors.Join(f(st), st.close())
}

// inFar runs f in far's namespace. An error ends the test.
func (w *wire) inFar(f func() error) {
	w.T.Helper()
	var err error
	w.Far.Do(func() { err = f() })
	if err != nil {
		w.T.Fatal(err)
	}
}

// pace queues all ingress packets at a rate, bytes per second. A filter selects the class, in
// place of the program.
func (s *shadowed) pace(rate uint64) {
	s.T.Helper()
	s.inFar(func() error {
		tree := &qdisc.Tree{
			Kind: qdisc.HTB, Leaves: []qdisc.Leaf{{ID: 1, Rate: rate, Credit: image.LeafCredit}},
		}
		return tree.Plant(s.device, nil)
	})
	s.Far.Run("tc", "filter", "add", "dev", hook.IFBName(s.index), "parent", "5ade:", "protocol", "all",
		"u32", "match", "u32", "0", "0", "flowid", "5ade:1")
}

// stats are the counters of the ifb's queue.
func (s *shadowed) stats() (stats qdisc.Counts) {
	s.T.Helper()
	s.inFar(func() error {
		all, err := qdisc.LeafCounts(s.device)
		stats = all[1]
		return err
	})
	return stats
}

// farShown lists the qdiscs and ingress filters of far's v0, and far's ifb devices.
func (w *wire) farShown() string {
	w.T.Helper()
	return w.Far.Run("tc", "qdisc", "show", "dev", "v0") +
		w.Far.Run("tc", "filter", "show", "dev", "v0", "ingress") +
		w.Far.Run("ip", "-o", "link", "show", "type", "ifb")
}

// receive opens a UDP port in far. Its buffer holds all packets of a test.
func (w *wire) receive(port int) *net.UDPConn {
	w.T.Helper()
	var conn *net.UDPConn
	w.inFar(func() (err error) {
		conn, err = nettest.ListenUDP(port, func(fd int) error {
			return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20)
		})
		return err
	})
	w.T.Cleanup(func() { conn.Close() })
	return conn
}

// addVLAN adds a VLAN and returns far's address in it, or nil if the kernel has no VLANs.
func (w *wire) addVLAN() []string {
	w.T.Helper()
	for i, n := range []*nettest.Namespace{w.Near, w.Far} {
		var err error
		n.Do(func() {
			err = exec.Command("ip", "link", "add", "link", "v0", "name", "v5", "type", "vlan", "id",
				"5").Run()
		})
		if err != nil {
			w.T.Log("skipped: this kernel has no VLANs")
			return nil
		}
		n.Run("ip", "addr", "add", fmt.Sprintf("10.5.0.%d/24", i+1), "dev", "v5")
		n.Run("ip", "link", "set", "v5", "up")
		n.Run("ip", "neigh", "add", fmt.Sprintf("10.5.0.%d", 2-i), "dev", "v5", "lladdr",
			fmt.Sprintf("02:00:00:00:00:%02d", 2-i))
	}
	return []string{"10.5.0.2"}
}

// enableTimestamps makes the kernel record the arrival time of each packet.
func enableTimestamps(t *testing.T, conn *net.UDPConn) {
	t.Helper()
	raw, err := conn.SyscallConn()
	if err == nil {
		err = errors.Join(raw.Control(func(fd uintptr) {
			err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1)
		}), err)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// arrival reads a packet and returns its arrival time.
func arrival(t *testing.T, conn *net.UDPConn) time.Time {
	t.Helper()
	data, oob := make([]byte, 2000), make([]byte, 256)
	_, n, _, _, err := conn.ReadMsgUDP(data, oob)
	if err != nil {
		t.Fatal(err)
	}
	messages, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range messages {
		if m.Header.Level == unix.SOL_SOCKET && m.Header.Type == unix.SCM_TIMESTAMPNS {
			return time.Unix(int64(binary.NativeEndian.Uint64(m.Data)),
				int64(binary.NativeEndian.Uint64(m.Data[8:])))
		}
	}
	t.Fatal("a packet has no timestamp")
	return time.Time{}
}
