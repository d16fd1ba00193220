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

// path is a sender, a host with the device v0 that is shaped, and a receiver. What
// comes back takes a delay.
type path struct {
	*pair
	from, to *nettest.Namespace
	at       net.IP // the receiver
}

// newPath makes one whose sender is the host itself, or another one behind it.
func newPath(t *testing.T, forwarded bool, delay time.Duration) *path {
	t.Helper()
	p := &path{pair: &pair{t: t, near: nettest.New(t), far: nettest.New(t)}, at: net.IPv4(10, 1, 0, 2)}
	p.near.Veth(p.far)
	p.from, p.to = p.near, p.far
	run := func(n *nettest.Namespace, line string) { n.Run("ip", strings.Fields(line)...) }
	run(p.to, "addr add 10.1.0.2/32 dev v0")
	back := "via 10.0.0.1 dev v0"
	if forwarded {
		p.from = nettest.New(t)
		p.from.VethNamed("v0", p.near, "up")
		for _, dev := range []string{"up", "v0"} { // the same addresses are at both
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
		in, out := tapIn(t, p.to), tapIn(t, p.from)
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
		go delayed(in, out, delay)
	}
	run(p.to, "route add 10.1.0.1 "+back)
	return p
}

// tapIn makes the TAP device d0 in a namespace.
func tapIn(t *testing.T, n *nettest.Namespace) *os.File {
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

// delayed carries frames until a device is closed.
func delayed(in, out *os.File, delay time.Duration) {
	type frame struct {
		due  time.Time
		data []byte
	}
	frames := make(chan frame, 1<<16)
	go func() {
		for f := range frames {
			time.Sleep(time.Until(f.due))
			if _, err := out.Write(f.data); err != nil {
				return
			}
		}
	}()
	defer close(frames)
	buf := make([]byte, 1<<16)
	for {
		n, err := in.Read(buf)
		if err != nil {
			return
		}
		frames <- frame{time.Now().Add(delay), slices.Clone(buf[:n])}
	}
}

// crossing is what TCP got while it filled the path, and how long a probe took.
type crossing struct {
	rate float64         // Mbit/s of payload
	rtt  []time.Duration // sorted
	lost int             // probes
}

func (c *crossing) String() string {
	if len(c.rtt) == 0 {
		return fmt.Sprintf("%.2f Mbit/s, all %d probes lost", c.rate, c.lost)
	}
	return fmt.Sprintf("%.2f Mbit/s, ping p50 %.1f p99 %.1f max %.1f ms, %d of %d lost", c.rate,
		ms(c.at(50)), ms(c.at(99)), ms(c.at(100)), c.lost, c.lost+len(c.rtt))
}

func ms(d time.Duration) float64 { return float64(d) / 1e6 }

func (c *crossing) at(percent int) time.Duration { return c.rtt[(len(c.rtt)-1)*percent/100] }

// cross has some flows of TCP fill the path for a time, after another to settle.
func (p *path) cross(flows int, settle, d time.Duration) *crossing {
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
		control(p.t, conn.(*net.TCPConn), func(fd int) error { return unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, "cubic") })
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
