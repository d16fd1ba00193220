package kernel

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"

	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/qdisc"
	"github.com/a-seed-32e5a53f/shaper/dataplane/nettest"
)

// wire is a veth pair; far's v0 may have an ifb before it.
type wire struct{ *nettest.Wire }

func newWire(t *testing.T) *wire { return &wire{nettest.NewWire(t)} }

// shadowed is a wire with an ifb before far's v0.
type shadowed struct {
	*wire
	index  int // of far's v0
	device int // of the ifb
}

func newShadowed(t *testing.T) *shadowed {
	t.Helper()
	w := newWire(t)
	index, device := w.shadow()
	return &shadowed{w, index, device}
}

func (w *wire) shadow() (index, device int) {
	w.T.Helper()
	index = w.Far.Index("v0")
	w.inFar(func() error {
		return changed(index, func(st *site) (err error) {
			device, err = st.addIFB()
			return err
		})
	})
	w.T.Cleanup(func() { w.unshadow(index) })
	return index, device
}

func (w *wire) unshadow(index int) {
	w.T.Helper()
	w.inFar(func() error { return changed(index, (*site).removeIFB) })
}

// changed changes an interface of this namespace, as each command does.
func changed(index int, f func(*site) error) error {
	here, err := namespace()
	if err != nil {
		return err
	}
	st, err := openSite(iface{here, index})
	if err != nil {
		return err
	}
	return errors.Join(f(st), st.close())
}

func (w *wire) inFar(f func() error) {
	w.T.Helper()
	var err error
	w.Far.Do(func() { err = f() })
	if err != nil {
		w.T.Fatal(err)
	}
}

// pace makes all that comes in wait for a rate. The program would select the
// class, here a filter does.
func (s *shadowed) pace(rate uint64) {
	s.T.Helper()
	s.inFar(func() error {
		tree := &qdisc.Tree{Kind: qdisc.HTB, Leaves: []qdisc.Leaf{{ID: 1, Rate: rate, Credit: leafCredit}}}
		return tree.Plant(s.device, nil)
	})
	s.Far.Run("tc", "filter", "add", "dev", ifbName(s.index), "parent", "5ade:", "protocol", "all", "u32", "match", "u32", "0", "0", "flowid", "5ade:1")
}

func (s *shadowed) stats() (stats qdisc.Counts) {
	s.T.Helper()
	s.inFar(func() error {
		all, err := qdisc.LeafCounts(s.device)
		stats = all[1]
		return err
	})
	return stats
}

// farShown is what there is of qdiscs, filters and devices.
func (w *wire) farShown() string {
	w.T.Helper()
	return w.Far.Run("tc", "qdisc", "show", "dev", "v0") +
		w.Far.Run("tc", "filter", "show", "dev", "v0", "ingress") +
		w.Far.Run("ip", "-o", "link", "show", "type", "ifb")
}

// receive collects what far gets on a UDP port, with room for all of a test.
func (w *wire) receive(port int) *net.UDPConn {
	w.T.Helper()
	var conn *net.UDPConn
	w.inFar(func() (err error) {
		conn, err = net.ListenUDP("udp4", &net.UDPAddr{Port: port})
		if err != nil {
			return err
		}
		raw, err := conn.SyscallConn()
		if err != nil {
			return err
		}
		failed := raw.Control(func(fd uintptr) {
			err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20)
		})
		return errors.Join(failed, err)
	})
	w.T.Cleanup(func() { conn.Close() })
	return conn
}

// TestIFBUndone holds that nothing stays of it, by whatever process.
func TestIFBUndone(t *testing.T) {
	t.Parallel()
	for _, script := range []string{
		"",
		"tc qdisc add dev v0 clsact",
		"tc qdisc add dev v0 ingress",
		"tc qdisc add dev v0 clsact && tc filter add dev v0 ingress pref 2 protocol ip u32 match u32 0 0 action mirred egress mirror dev lo",
	} {
		t.Run(script, func(t *testing.T) {
			w := newWire(t)
			if script != "" {
				w.Far.Run("sh", "-c", script)
			}
			before := w.farShown()
			i, _ := w.shadow()
			during := w.farShown()
			for _, text := range []string{"pref 1 u32", "Redirect to device " + ifbName(i), "mtu 1500", "state U"} {
				if !strings.Contains(during, text) {
					t.Errorf("no %q in\n%s", text, during)
				}
			}
			w.shadow() // of a process that came after a killed one
			if got := w.farShown(); strings.Count(got, "Redirect to") != 1 {
				t.Errorf("added again:\n%s", got)
			}
			for range 2 {
				w.unshadow(i)
				if after := w.farShown(); after != before {
					t.Errorf("there is\n%s\nafter it, before there was\n%s", after, before)
				}
			}
			w.shadow()
			w.Far.Delete("v0")
			w.unshadow(i)
			if got := w.Far.Run("ip", "-o", "link", "show", "type", "ifb"); got != "" {
				t.Errorf("without the interface, %s stays", got)
			}
		})
	}
}

// TestIFBClsact holds that who is last removes a clsact of ours.
func TestIFBClsact(t *testing.T) {
	t.Parallel()
	w := newWire(t)
	before := w.farShown()
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type:         ebpf.SchedCLS,
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, -1), asm.Return()},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer program.Close()
	index := w.Far.Index("v0")
	w.inFar(func() error {
		return changed(index, func(st *site) error {
			h, _, err := st.attachFilter(&device{name: "v0", iface: st.iface}, program, Egress)
			if err != nil {
				return err
			}
			_, err = st.addIFB()
			return errors.Join(err, h.remove(), st.removeIFB())
		})
	})
	if after := w.farShown(); after != before {
		t.Errorf("there is\n%s\nafter it, before there was\n%s", after, before)
	}
}

// TestIFBRefused holds that where another filter is first nothing is changed.
func TestIFBRefused(t *testing.T) {
	t.Parallel()
	w := newWire(t)
	w.Far.Run("tc", "qdisc", "add", "dev", "v0", "clsact")
	w.Far.Run("tc", "filter", "add", "dev", "v0", "ingress", "pref", "1", "protocol", "ip", "u32", "match", "u32", "0", "0", "action", "mirred", "egress", "mirror", "dev", "lo")
	before := w.farShown()
	var err error
	index := w.Far.Index("v0")
	w.Far.Do(func() {
		err = changed(index, func(st *site) error {
			_, err := st.addIFB()
			return err
		})
	})
	want := "interface v0 has a u32 filter of priority 1 at ingress, where ours has to be: give it a higher one, or remove it, by tc filter del dev v0 ingress pref 1"
	if fmt.Sprint(err) != want {
		t.Errorf("%v: want %s", err, want)
	}
	if after := w.farShown(); after != before {
		t.Errorf("there is\n%s\nafter it, before there was\n%s", after, before)
	}
}

// stamped has the kernel note when packets come.
func stamped(t *testing.T, conn *net.UDPConn) {
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

// arrival reads a packet and returns when it came.
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
			return time.Unix(int64(binary.NativeEndian.Uint64(m.Data)), int64(binary.NativeEndian.Uint64(m.Data[8:])))
		}
	}
	t.Fatal("a packet has no time")
	return time.Time{}
}

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

// vlan makes a VLAN, where the kernel has any, and returns far's address there.
func (w *wire) vlan() []string {
	w.T.Helper()
	for i, n := range []*nettest.Namespace{w.Near, w.Far} {
		var err error
		n.Do(func() {
			err = exec.Command("ip", "link", "add", "link", "v0", "name", "v5", "type", "vlan", "id", "5").Run()
		})
		if err != nil {
			w.T.Log("no VLANs here")
			return nil
		}
		n.Run("ip", "addr", "add", fmt.Sprintf("10.5.0.%d/24", i+1), "dev", "v5")
		n.Run("ip", "link", "set", "v5", "up")
		n.Run("ip", "neigh", "add", fmt.Sprintf("10.5.0.%d", 2-i), "dev", "v5", "lladdr", fmt.Sprintf("02:00:00:00:00:%02d", 2-i))
	}
	return []string{"10.5.0.2"}
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

const patient = 20 * time.Second

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
