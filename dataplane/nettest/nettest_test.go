//go:build linux

package nettest

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// pair returns two namespaces connected by v0 and v0.
func pair(t testing.TB) (a, b *Namespace) {
	t.Helper()
	a, b = New(t), New(t)
	a.Veth(b)
	return a, b
}

// currentInode returns the inode number of the calling thread's network namespace.
func currentInode(t testing.TB) uint64 {
	t.Helper()
	var stat unix.Stat_t
	if err := unix.Stat("/proc/thread-self/ns/net", &stat); err != nil {
		t.Fatal(err)
	}
	return stat.Ino
}

// ethernet returns a frame of n bytes from a to b. headers are its VLAN tags and EtherType, in
// units of 16 bits.
func ethernet(n int, headers ...uint16) []byte {
	f := append(bytes.Clone(ends[1].mac), ends[0].mac...)
	for _, h := range headers {
		f = binary.BigEndian.AppendUint16(f, h)
	}
	for i := len(f); i < n; i++ {
		f = append(f, byte(i))
	}
	return f
}

// TestEcho sends a datagram and its reply over IPv4 and IPv6, and checks that the wire carries
// no other frames.
func TestEcho(t *testing.T) {
	t.Parallel()
	a, b := pair(t)
	for network, addr := range map[string]string{"udp4": "10.0.0.2:7", "udp6": "[fd00::2]:7"} {
		toB, toA := b.Sniff("v0"), a.Sniff("v0")
		var server net.PacketConn
		var client net.Conn
		var err error
		b.Do(func() { server, err = net.ListenPacket(network, addr) })
		if err != nil {
			t.Fatal(err)
		}
		defer server.Close()
		a.Do(func() { client, err = net.Dial(network, addr) })
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		deadline := time.Now().Add(waitLimit)
		_, _ = server.SetDeadline(deadline), client.SetDeadline(deadline)
		if _, err := client.Write([]byte("ping")); err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, 100)
		n, from, err := server.ReadFrom(buf)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := server.WriteTo(buf[:n], from); err != nil {
			t.Fatal(err)
		}
		if n, err = client.Read(buf); err != nil || string(buf[:n]) != "ping" {
			t.Errorf("%s: read %q, %v, want ping", network, buf[:n], err)
		}
		if there, back := toB.Stop(), toA.Stop(); len(there) != 1 || len(back) != 1 {
			t.Errorf("%s: %d frames sent and %d returned, want 1 and 1", network, len(there), len(back))
		}
	}
}

// TestSilent checks that a new pair carries no frames that the test did not send.
func TestSilent(t *testing.T) {
	t.Parallel()
	a, b := pair(t)
	sa, sb := a.Sniff("v0"), b.Sniff("v0")
	time.Sleep(300 * time.Millisecond)
	for _, f := range append(sa.Stop(), sb.Stop()...) {
		t.Errorf("stray frame: %x", f.Data)
	}
	for _, n := range []*Namespace{a, b} {
		if s := n.link("v0").Attrs().Statistics; s.RxPackets != 0 || s.TxPackets != 0 || s.TxDropped != 0 {
			t.Errorf("%d packets received, %d sent, %d dropped, want none", s.RxPackets, s.TxPackets,
				s.TxDropped)
		}
	}
}

// transfer sends n bytes by TCP from a to b, and returns the frames that arrive at b.
func transfer(t *testing.T, a, b *Namespace, addr string, n int) []Frame {
	t.Helper()
	var listener net.Listener
	var client net.Conn
	var err error
	s := b.Sniff("v0")
	b.Do(func() { listener, err = net.Listen("tcp", net.JoinHostPort(addr, "0")) })
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	a.Do(func() { client, err = net.DialTimeout("tcp", listener.Addr().String(), waitLimit) })
	if err != nil {
		t.Fatal(err)
	}
	server, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	go func() {
		_, _ = client.Write(make([]byte, n)) // the reader checks the number of bytes
		client.Close()
	}()
	_ = server.SetDeadline(time.Now().Add(waitLimit))
	if got, err := io.Copy(io.Discard, server); got != int64(n) || err != nil {
		t.Fatalf("transferred %d bytes, %v, want %d", got, err, n)
	}
	return s.Stop()
}

// longest returns the length of the longest frame, bytes.
func longest(frames []Frame) (n int) {
	for _, f := range frames {
		n = max(n, len(f.Data))
	}
	return n
}

// TestOffload checks that offloads change the frames on the wire: TSO their length, checksum offload
// their checksum.
func TestOffload(t *testing.T) {
	t.Parallel()
	a, b := pair(t)
	b.Offload("v0", "gro", false)
	for _, on := range []bool{true, false, true} {
		a.Offload("v0", "tso", on)
		for _, addr := range []string{"10.0.0.2", "fd00::2"} {
			if got := longest(transfer(t, a, b, addr, 1<<20)); got > 1514 != on {
				t.Errorf("tso %v to %s: got a longest frame of %d bytes, want above 1514: %[1]v", on, addr,
					got)
			}
		}
	}
	for _, feature := range []string{"gso", "gro", "tx-checksum", "tx-udp-segmentation"} {
		a.Offload("v0", feature, false)
		a.Offload("v0", feature, true)
	}
	// Without checksum offload frames have a valid checksum.
	a.Offload("v0", "tx-checksum", false)
	for _, f := range transfer(t, a, b, "10.0.0.2", 1000) {
		segment := f.Data[34:] // after the Ethernet and IPv4 headers
		sum := uint32(unix.IPPROTO_TCP) + uint32(len(segment))
		for _, b := range [][]byte{f.Data[26:34], segment} {
			for i := range b {
				sum += uint32(b[i]) << (8 * (1 - i%2))
			}
		}
		for sum > 0xffff {
			sum = sum>>16 + sum&0xffff
		}
		if sum != 0xffff {
			t.Errorf("checksum off by %#x in %x", ^uint16(sum), f.Data)
		}
	}
}
