package livetest

import (
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane/nettest"
	"github.com/a-seed-32e5a53f/shaper/dataplane/tap"
)

const (
	onceBurst  = 50_000_000 // bytes; the budget of the tests gains a token in 8 s
	onceLength = 1000       // of an IP packet
	oncePort   = 5001
)

// onceRouter is a budgetHost that forwards between far, behind v0, and other, behind v1:
//
//	far 10.1.0.2 -- v0 10.1.0.1 near 10.2.0.1 v1 -- 10.2.0.2 other
type onceRouter struct {
	*budgetHost
	tap *tap.Interface
}

func newOnceRouter(t *testing.T) *onceRouter {
	t.Helper()
	p := &onceRouter{budgetHost: newBudgetHost(t)}
	for _, n := range []*nettest.Namespace{p.near, p.far, p.other} { // its own packets would be charged
		p.sh(n, "sysctl -qw net.ipv6.conf.default.disable_ipv6=1", "sysctl -qw net.ipv6.conf.all.disable_ipv6=1")
	}
	p.sh(p.other, "ip link set v0 address 02:00:00:00:00:04", "ip route replace default via 10.2.0.1 dev v0 onlink")
	p.sh(p.near, "ip link set v1 address 02:00:00:00:00:03", "sysctl -qw net.ipv4.ip_forward=1")
	for _, end := range []struct {
		n              *nettest.Namespace
		dev, own, peer string
		mac            int
	}{
		{p.far, "v0", "10.1.0.2", "10.1.0.1", 1},
		{p.near, "v0", "10.1.0.1", "10.1.0.2", 2},
		{p.near, "v1", "10.2.0.1", "10.2.0.2", 4},
		{p.other, "v0", "10.2.0.2", "10.2.0.1", 3},
	} {
		p.sh(end.n, fmt.Sprintf("ip addr add %s/24 dev %s", end.own, end.dev),
			fmt.Sprintf("ip neigh replace %s dev %s lladdr 02:00:00:00:00:%02x", end.peer, end.dev, end.mac))
	}
	p.sh(p.far, "ip route replace default via 10.1.0.1 dev v0")
	p.sh(p.other, "ip route replace default via 10.2.0.1 dev v0")
	return p
}

// sh runs commands in a namespace, their words separated by spaces.
func (p *onceRouter) sh(n *nettest.Namespace, lines ...string) {
	p.t.Helper()
	for _, line := range lines {
		words := strings.Fields(line)
		n.Run(words[0], words[1:]...)
	}
}

// kernelHas skips the test if the kernel has no device with these words of ip link add.
func (p *onceRouter) kernelHas(device string) {
	p.t.Helper()
	cmd := exec.Command("ip", strings.Fields("link add name try "+device)...)
	var out []byte
	nettest.New(p.t).Do(func() { out, _ = cmd.CombinedOutput() })
	if strings.Contains(string(out), "Unknown device type") {
		p.t.Skipf("this kernel has no such device: ip link add %s", device)
	}
}

// tunnel connects near and an end by a VXLAN tunnel over their link, 10.9.0.1 and 10.9.0.2.
func (p *onceRouter) tunnel(end *nettest.Namespace, local, remote string) {
	p.t.Helper()
	p.kernelHas("type vxlan id 7 dstport 4789")
	for i, side := range []struct {
		n             *nettest.Namespace
		local, remote string
	}{{p.near, local, remote}, {end, remote, local}} {
		p.sh(side.n,
			fmt.Sprintf("ip link add vx0 address 02:00:00:00:09:%02x type vxlan id 7 dstport 4789 local %s remote %s",
				i+1, side.local, side.remote),
			fmt.Sprintf("ip addr add 10.9.0.%d/24 dev vx0", i+1), "ip link set vx0 up",
			fmt.Sprintf("ip neigh replace 10.9.0.%d dev vx0 lladdr 02:00:00:00:09:%02x", 2-i, 2-i))
	}
}

// arrives sends n UDP datagrams one by one, and waits until each has arrived.
func (p *onceRouter) arrives(to *nettest.Namespace, n int, send func() error) {
	p.t.Helper()
	var listener *net.UDPConn
	var err error
	to.Do(func() { listener, err = nettest.ListenUDP(oncePort, func(int) error { return nil }) })
	if err != nil {
		p.t.Fatal(err)
	}
	defer listener.Close()
	into := make([]byte, 2000)
	for i := range n {
		if err := send(); err != nil {
			p.t.Fatal(err)
		}
		_ = listener.SetReadDeadline(time.Now().Add(waitLimit))
		if _, err := listener.Read(into); err != nil {
			p.t.Fatalf("datagram %d of %d: %v", i+1, n, err)
		}
	}
}

// sender returns a function that sends a UDP datagram to an address.
func (p *onceRouter) sender(from *nettest.Namespace, address string) (send func() error) {
	p.t.Helper()
	var conn *net.UDPConn
	var err error
	from.Do(func() { conn, err = nettest.ListenUDP(0, func(int) error { return nil }) })
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { conn.Close() })
	to := nettest.Sender{UDPConn: conn, To: &net.UDPAddr{IP: net.ParseIP(address), Port: oncePort}}
	payload := make([]byte, onceLength-28)
	return func() error {
		_, err := to.Write(payload)
		return err
	}
}

// datagrams sends n UDP datagrams to an address, and waits until they have arrived.
func (p *onceRouter) datagrams(from, to *nettest.Namespace, address string, n int) {
	p.t.Helper()
	p.arrives(to, n, p.sender(from, address))
}

// stream sends n bytes by TCP, and waits until they have arrived.
func (p *onceRouter) stream(from, to *nettest.Namespace, address string, n int) {
	p.t.Helper()
	var listener net.Listener
	var err error
	to.Do(func() { listener, err = net.Listen("tcp4", fmt.Sprintf(":%d", oncePort)) })
	if err != nil {
		p.t.Fatal(err)
	}
	defer listener.Close()
	var conn net.Conn
	from.Do(func() { conn, err = net.Dial("tcp4", net.JoinHostPort(address, fmt.Sprint(oncePort))) })
	if err != nil {
		p.t.Fatal(err)
	}
	defer conn.Close()
	in, err := listener.Accept()
	if err != nil {
		p.t.Fatal(err)
	}
	defer in.Close()
	sent := make(chan error, 1)
	go func() {
		_, err := conn.Write(make([]byte, n))
		sent <- err
	}()
	_ = in.SetReadDeadline(time.Now().Add(waitLimit))
	into := make([]byte, 1<<16)
	for got := 0; got < n; {
		m, err := in.Read(into)
		if err != nil {
			p.t.Fatalf("%d of %d bytes: %v", got, n, err)
		}
		got += m
	}
	if err := <-sent; err != nil {
		p.t.Fatal(err)
	}
}

// bridge makes v0 and v1 ports of a bridge. The address of other is then 10.1.0.9.
func (p *onceRouter) bridge() {
	p.t.Helper()
	p.kernelHas("type bridge")
	p.sh(p.near, "ip addr flush dev v0", "ip addr flush dev v1", "ip link add br0 type bridge",
		"ip link set v0 master br0", "ip link set v1 master br0", "ip link set br0 up")
	p.sh(p.other, "ip addr add 10.1.0.9/24 dev v0", "ip neigh replace 10.1.0.2 dev v0 lladdr 02:00:00:00:00:02")
	p.sh(p.far, "ip neigh replace 10.1.0.9 dev v0 lladdr 02:00:00:00:00:04")
}

// fromTAP sends n datagrams from a TAP device of near, t0, whose ingress has a user.
func (p *onceRouter) fromTAP(n int) {
	p.t.Helper()
	frame := make([]byte, 10+14+onceLength) // a virtio_net_hdr, Ethernet, IPv4, UDP
	copy(frame[10:], []byte{2, 0, 0, 0, 5, 1, 2, 0, 0, 0, 5, 2, 8, 0})
	ip := frame[24:]
	copy(ip, []byte{0x45, 0, onceLength >> 8, onceLength & 0xff, 0, 0, 0, 0, 64, 17})
	copy(ip[12:], []byte{10, 5, 0, 2, 10, 2, 0, 2})
	binary.BigEndian.PutUint16(ip[10:], ^checksum(ip[:20]))
	binary.BigEndian.PutUint16(ip[20:], 4000)
	binary.BigEndian.PutUint16(ip[22:], oncePort)
	binary.BigEndian.PutUint16(ip[24:], onceLength-20)
	p.arrives(p.other, n, func() error {
		_, err := p.tap.Ports()[0].Write([][]byte{frame})
		return err
	})
}

// openTAP makes the TAP device t0 in near.
func (p *onceRouter) openTAP() string {
	p.t.Helper()
	if _, err := os.Stat("/dev/net/tun"); err != nil {
		p.t.Skipf("%v: modprobe tun", err)
	}
	var err error
	p.near.Do(func() { p.tap, err = tap.Open(tap.Config{Name: "t0"}) })
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { _ = p.tap.Close() })
	p.sh(p.near, "ip link set t0 address 02:00:00:00:05:01", "ip addr add 10.5.0.1/24 dev t0", "sysctl -qw net.ipv4.conf.t0.rp_filter=0")
	return "t0"
}

// inFar starts a shaper in far, which belongs to the same host.
func (p *onceRouter) inFar(dev, direction string) {
	p.t.Helper()
	far := &onceRouter{budgetHost: &budgetHost{pair: &pair{t: p.t, near: p.far, far: p.near, wrap: p.wrap}}}
	far.user(dev, direction)
}

// checksum is that of RFC 1071, not complemented.
func checksum(b []byte) uint16 {
	var sum uint32
	for i := 0; i < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum > 0xffff {
		sum = sum&0xffff + sum>>16
	}
	return uint16(sum)
}

// user starts a shaper whose class all uses the budget.
func (p *onceRouter) user(dev, direction string, args ...string) *process {
	p.t.Helper()
	return p.runOn(dev, oncePolicy(p.t, "count: once"), append([]string{"--direction", direction}, args...)...)
}

// oncePolicy writes a policy in which every IP packet uses one budget.
func oncePolicy(t *testing.T, count string) string {
	t.Helper()
	return writePolicy(t, fmt.Sprintf(`classes:
  - name: all
    meter: {type: token-bucket, rate: 1bit, burst: %d, share: {budget: uplinks, store: host, %s}}
`, onceBurst, count))
}

// charged returns the number of bytes that were taken from the budget.
func (p *onceRouter) charged(dev, direction string) int64 {
	p.t.Helper()
	s := p.stats(dev, "--direction", direction)
	return onceBurst - s.classNamed(p.t, "all").Meters[0].Buckets[0].Tokens
}

// passed returns the number of bytes that a shaper passed.
func (p *onceRouter) passed(dev, direction string) int64 {
	p.t.Helper()
	s := p.stats(dev, "--direction", direction)
	return s.classNamed(p.t, "all").Green.Bytes
}

// wantCharged checks the number of bytes that were taken from the budget. It gains a byte in 8 s.
func (p *onceRouter) wantCharged(what, dev, direction string, want int64) {
	p.t.Helper()
	if got := p.charged(dev, direction); got > want || got < want-100 {
		p.t.Errorf("%s: %d bytes charged, want %d", what, got, want)
	}
}
