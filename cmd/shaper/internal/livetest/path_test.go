package livetest

import (
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/a-seed-32e5a53f/shaper/dataplane/nettest"
)

// tcpPath is a sender, a shaping host with the device v0, and a receiver. The reverse path has
// a delay.
type tcpPath struct {
	*pair
	from, to *nettest.Namespace
	at       net.IP     // address of the receiver
	back     *delayLine // delay of the reverse path; nil: none
}

// newTCPPath creates a path. The sender is the shaping host itself, or with forwarded, another
// host before it.
func newTCPPath(t *testing.T, forwarded bool, delay time.Duration) *tcpPath {
	t.Helper()
	p := &tcpPath{pair: &pair{t: t, near: nettest.New(t), far: nettest.New(t)}, at: net.IPv4(10, 1, 0, 2)}
	p.near.Veth(p.far)
	p.from, p.to = p.near, p.far
	run := func(n *nettest.Namespace, line string) { n.Run("ip", strings.Fields(line)...) }
	run(p.to, "addr add 10.1.0.2/32 dev v0")
	back := "via 10.0.0.1 dev v0"
	if forwarded {
		p.from = nettest.New(t)
		p.from.VethNamed("v0", p.near, "up")
		for _, dev := range []string{"up", "v0"} { // both have the same addresses
			run(p.near, "addr flush dev "+dev)
		}
		run(p.near, "neigh add 10.0.0.1 lladdr 02:00:00:00:00:01 dev up")
		run(p.near, "neigh add 10.0.0.2 lladdr 02:00:00:00:00:02 dev v0")
		run(p.near, "route add 10.1.0.2 via 10.0.0.2 dev v0 onlink")
		run(p.near, "route add 10.1.0.1 via 10.0.0.1 dev up onlink")
		run(p.from, "addr add 10.1.0.1/32 dev v0")
		run(p.from, "route add 10.1.0.2 via 10.0.0.2 dev v0 src 10.1.0.1")
		p.near.Do(func() { _ = os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0) })
	} else {
		run(p.from, "addr add 10.1.0.1/32 dev v0")
		run(p.near, "route replace 10.1.0.2 via 10.0.0.2 dev v0 src 10.1.0.1")
	}
	if delay > 0 {
		in, out := newTAPIn(t, p.to), newTAPIn(t, p.from)
		for _, n := range []*nettest.Namespace{p.to, p.from} {
			run(n, "link set d0 address 02:00:00:00:01:01 arp off up")
			n.Do(func() {
				for _, dev := range []string{"all", "d0", "v0"} {
					_ = os.WriteFile("/proc/sys/net/ipv4/conf/"+dev+"/rp_filter", []byte("0"), 0)
				}
			})
		}
		run(p.to, "neigh add 10.1.0.1 lladdr 02:00:00:00:01:01 dev d0")
		back = "dev d0"
		p.back = newDelayLine(t, in, out, delay)
	}
	run(p.to, "route add 10.1.0.1 "+back)
	return p
}

// newTAPIn creates the TAP device d0 in a namespace.
func newTAPIn(t *testing.T, n *nettest.Namespace) *os.File {
	t.Helper()
	var fd int
	var err error
	n.Do(func() {
		if fd, err = unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0); err != nil {
			return
		}
		var r *unix.Ifreq
		if r, err = unix.NewIfreq("d0"); err == nil {
			r.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI)
			err = unix.IoctlIfreq(fd, unix.TUNSETIFF, r)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "tun")
	t.Cleanup(func() { f.Close() })
	return f
}

// crossing is the throughput of TCP that fills a path, and the round-trip times of probes.
type crossing struct {
	rate float64         // payload, Mbit/s
	rtt  []time.Duration // round-trip times of probes, sorted
	lost int             // probes without an answer
}

func (c *crossing) String() string {
	if len(c.rtt) == 0 {
		return fmt.Sprintf("%.2f Mbit/s, all %d probes lost", c.rate, c.lost)
	}
	return fmt.Sprintf("%.2f Mbit/s, ping p50 %.1f p99 %.1f max %.1f ms, %d of %d lost", c.rate,
		milliseconds(c.percentile(50)), milliseconds(c.percentile(99)), milliseconds(c.percentile(100)),
		c.lost, c.lost+len(c.rtt))
}

func milliseconds(d time.Duration) float64 { return float64(d) / 1e6 }

func (c *crossing) percentile(percent int) time.Duration { return c.rtt[(len(c.rtt)-1)*percent/100] }

// crossTCP fills the path with TCP flows for a time d, after a time to settle.
func (p *tcpPath) crossTCP(flows int, settle, d time.Duration) *crossing {
	p.t.Helper()
	var listener net.Listener
	var echo *net.UDPConn
	var err error
	p.to.Do(func() {
		if listener, err = net.Listen("tcp4", p.at.String()+":6000"); err == nil {
			echo, err = net.ListenUDP("udp4", &net.UDPAddr{IP: p.at, Port: 7})
		}
	})
	if err != nil {
		p.t.Fatal(err)
	}
	defer listener.Close()
	defer echo.Close()
	go func() {
		buf := make([]byte, 1500)
		for {
			n, from, err := echo.ReadFrom(buf)
			if err != nil {
				return
			}
			_, _ = echo.WriteTo(buf[:n], from)
		}
	}()
	begin := time.Now().Add(settle)
	end := begin.Add(d)
	var all sync.WaitGroup
	received := make([]int64, flows)
	for i := range flows {
		var conn net.Conn
		p.from.Do(func() { conn, err = net.Dial("tcp4", listener.Addr().String()) })
		if err != nil {
			p.t.Fatal(err)
		}
		withFD(p.t, conn.(*net.TCPConn), func(fd int) error {
			return unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, "cubic")
		})
		in, err := listener.Accept()
		if err != nil {
			p.t.Fatal(err)
		}
		conn.(*net.TCPConn).SetLinger(0)
		_ = conn.SetDeadline(end)
		_ = in.SetDeadline(end)
		all.Go(func() {
			defer conn.Close()
			buf := make([]byte, 1<<17)
			for {
				if _, err := conn.Write(buf); err != nil {
					return
				}
			}
		})
		all.Go(func() {
			defer in.Close()
			buf := make([]byte, 1<<18)
			for {
				n, err := in.Read(buf)
				if err != nil {
					return
				}
				if time.Now().After(begin) {
					received[i] += int64(n)
				}
			}
		})
	}
	var probe *net.UDPConn
	p.from.Do(func() { probe, err = net.DialUDP("udp4", nil, &net.UDPAddr{IP: p.at, Port: 7}) })
	if err != nil {
		p.t.Fatal(err)
	}
	defer probe.Close()
	c := &crossing{}
	sent := 0
	all.Go(func() {
		time.Sleep(time.Until(begin))
		for ; time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
			var b [64]byte
			copy(b[:], fmt.Sprint(time.Now().UnixNano()))
			_, _ = probe.Write(b[:])
			sent++
		}
	})
	_ = probe.SetReadDeadline(end.Add(500 * time.Millisecond))
	for {
		buf := make([]byte, 64)
		if _, err := probe.Read(buf); err != nil {
			break
		}
		var at int64
		fmt.Sscan(string(buf), &at)
		c.rtt = append(c.rtt, time.Duration(time.Now().UnixNano()-at))
	}
	all.Wait()
	slices.Sort(c.rtt)
	c.lost = sent - len(c.rtt)
	for _, n := range received {
		c.rate += float64(n) * 8 / 1e6 / d.Seconds()
	}
	return c
}
