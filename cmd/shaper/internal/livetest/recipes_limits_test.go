package livetest

import (
	"fmt"
	"io"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane/nettest"
)

// shape starts shaper run on eth0 with a policy of the recipe.
func (r *recipe) shape(policy string, args ...string) {
	r.t.Helper()
	r.run = r.startShaper(append([]string{"run", "eth0", "--policy", "/etc/shaper/" + policy}, args...)...)
	r.run.awaitAttached()
}

// wantClass waits until a class of the only shaper has these packets in all, and of them dropped.
func (r *recipe) wantClass(name string, packets, dropped int64, args ...string) {
	r.t.Helper()
	eventually(r.t, func() error {
		s := r.stats(args...)
		c := s.classNamed(r.t, name)
		if c.Packets != packets || c.Dropped.Packets != dropped {
			return fmt.Errorf("class %s: %d packets, %d dropped: want %d and %d", name, c.Packets, c.Dropped.Packets,
				packets, dropped)
		}
		return nil
	})
}

// TestLiveRecipeHandoff sends what a customer hands over. The next hop sees AF11 for what is committed and
// AF12 for the excess, whatever marks the customer sets; voice keeps its mark within its own limit.
func TestLiveRecipeHandoff(t *testing.T) {
	r := newRecipe(t, "handoff", "eth0")
	r.fix("handoff.yaml", "rate: 2mbit, burst: 64KiB", 2000)
	r.edit("handoff.yaml", "cir: 20mbit, cbs: 256KiB, pir: 50mbit, pbs: 512KiB",
		"cir: 1B/1000s, cbs: 3000, pir: 1B/1000s, pbs: 5000")
	r.shape("handoff.yaml")
	at := net.IPv4(10, 0, 0, 2)
	in := listenUDP(t, r.far, at)
	const ef, cs6 = 46 << 2, 48 << 2
	for _, test := range []struct {
		what string
		tos  int
		want []int
	}{
		{"voice", ef, []int{ef, ef}},
		{"bulk with a mark of its own", cs6, []int{af11, af11, af11, af12, af12}},
		{"more bulk", 0, nil},
	} {
		sendUDP(t, newSender(t, r.near, at, test.tos, 0), 8, 1000)
		var got []int
		for _, d := range in.receiveAll() {
			got = append(got, d.tos)
		}
		if !slices.Equal(got, test.want) {
			t.Errorf("%s: TOS %v arrived: want %v", test.what, got, test.want)
		}
	}
	r.far.Do(func() { // LDP has no limit
		conn, err := net.ListenUDP("udp4", &net.UDPAddr{IP: at, Port: 646})
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		sendUDP(t, r.flow(r.near, "10.0.0.1", "10.0.0.2", 646), 8, 1000)
	})
	r.wantClass("sessions", 8, 0)
	r.wantClass("rest", 16, 11)
	r.run.stopBySIGTERM()
}

// TestLiveRecipeRouter attacks a router with pings, datagrams and connections from a host that is no peer.
// ARP and BGP of the peer lose nothing.
func TestLiveRecipeRouter(t *testing.T) {
	r := newRecipe(t, "router", "eth0")
	r.edit("router.yaml", "proto: icmp}, meter: {type: token-bucket, count: packets, rate: 100p/1s",
		"proto: icmp}, meter: {type: token-bucket, count: packets, rate: 1p/1000s")
	r.fix("router.yaml", "rate: 1mbit, burst: 64KiB", 4000)
	const router, peer, attacker = "192.0.2.1", "192.0.2.2", "192.0.2.9"
	r.lines(r.near, "addr add 192.0.2.1/24 dev eth0", "link set eth0 arp on")
	r.lines(r.far, "addr add 192.0.2.2/24 dev v0", "addr add 192.0.2.9/24 dev v0", "link set v0 arp on")
	r.shape("router.yaml", "--direction", "ingress")
	counted := func(name string) *classStats { s := r.stats(); return s.classNamed(t, name) }

	if got := pings(t, r.far, attacker, router, 80); got != 50 {
		t.Errorf("%d of 80 pings were answered: want 50", got)
	}
	r.wantClass("ping", 80, 30)
	listenUDP(t, r.near, net.ParseIP(router)) // otherwise there are ICMP errors
	sendUDP(t, r.flow(r.far, attacker, router, udpPort), 20, 1000)
	r.wantClass("rest", 20, 16)

	var listener net.Listener
	var err error
	r.near.Do(func() { listener, err = net.Listen("tcp4", router+":179") })
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	dial := func(from string, timeout time.Duration) (conn net.Conn, err error) {
		dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}, Timeout: timeout}
		r.far.Do(func() { conn, err = dialer.Dial("tcp4", router+":179") })
		return conn, err
	}
	if conn, err := dial(attacker, time.Second); err == nil {
		conn.Close()
		t.Error("a host that is no peer reaches BGP through the used limit")
	}
	const routes = 500_000
	received := make(chan int64)
	go func() {
		conn, err := listener.Accept()
		if err != nil {
			received <- 0
			return
		}
		defer conn.Close()
		n, _ := io.Copy(io.Discard, conn)
		received <- n
	}()
	conn, err := dial(peer, waitLimit)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Write(make([]byte, routes)); err != nil {
		t.Fatal(err)
	}
	conn.Close()
	if n := <-received; n != routes {
		t.Errorf("%d of %d bytes of BGP arrived", n, routes)
	}
	if c := counted("bgp"); c.Bytes < routes || c.Dropped.Packets != 0 {
		t.Errorf("BGP: %+v: want %d bytes, and no drop", c, routes)
	}
	arp := counted("arp")
	r.lines(r.far, "neigh del 192.0.2.1 dev v0")
	sendUDP(t, r.flow(r.far, peer, router, udpPort), 1, 100)
	eventually(t, func() error {
		if c := counted("arp"); c.Packets <= arp.Packets || c.Dropped.Packets != 0 {
			return fmt.Errorf("ARP: %+v, after %+v", c, arp)
		}
		return nil
	})
	before := counted("-").Packets
	r.far.Inject("v0", packetBetween(attacker, "203.0.113.1"), packetBetween(attacker, "203.0.113.2"))
	eventually(t, func() error {
		if c := counted("-"); c.Packets < before+2 || c.Dropped.Packets != 0 {
			return fmt.Errorf("forwarded: %+v: want %d packets, and no drop", c, before+2)
		}
		return nil
	})
	r.run.stopBySIGTERM()
}

// pings sends echo requests, and returns how many are answered.
func pings(t *testing.T, n *nettest.Namespace, from, to string, count int) (answered int) {
	t.Helper()
	var conn net.PacketConn
	var err error
	n.Do(func() { conn, err = net.ListenPacket("ip4:icmp", from) })
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for i := range count {
		echo := []byte{8, 0, 0, 0, 1, 2, 0, byte(i)}
		sum := foldSum(0, echo)
		echo[2], echo[3] = ^byte(sum>>8), ^byte(sum)
		if _, err := conn.WriteTo(echo, &net.IPAddr{IP: net.ParseIP(to)}); err != nil {
			t.Fatal(err)
		}
	}
	buf := make([]byte, 1500)
	for {
		_ = conn.SetReadDeadline(time.Now().Add(quietTime()))
		k, _, err := conn.ReadFrom(buf)
		if err != nil {
			return answered
		}
		if k >= 8 && buf[0] == 0 {
			answered++
		}
	}
}

// TestLiveRecipeBoost sends more than the large bucket holds, and faster than the peak rate allows.
func TestLiveRecipeBoost(t *testing.T) {
	skipInVM(t)
	r := newRecipe(t, "boost", "eth0")
	const rates = "cir: 20mbit, cbs: 25MB, pir: 100mbit, pbs: 1MB"
	r.edit("boost.yaml", rates, "cir: 1B/1000s, cbs: 25000, pir: 1gbit, pbs: 1MB")
	r.shape("boost.yaml")
	at := net.IPv4(10, 0, 0, 2)
	in := listenUDP(t, r.far, at)
	send := func() { sendUDP(t, newSender(t, r.near, at, 0, 0), 40, 1000) }
	r.wantPassed("the boost", in, 25, send)
	r.wantPassed("after the boost", in, 0, send)
	r.wantClass("all", 80, 55)
	r.run.stopBySIGTERM()
	r.edit("boost.yaml", "cir: 1B/1000s, cbs: 25000, pir: 1gbit, pbs: 1MB",
		"cir: 1B/1000s, cbs: 25000, pir: 1B/1000s, pbs: 7000")
	r.shape("boost.yaml")
	r.wantPassed("faster than the peak rate", in, 7, send)
	r.run.stopBySIGTERM()
}

// TestLiveRecipeQuota uses a quota up. The customer has the slow plan then, also after a restart, and a
// customer with a larger quota keeps its plan.
func TestLiveRecipeQuota(t *testing.T) {
	skipInVM(t)
	r := newRecipe(t, "quota", "eth0")
	r.edit("quota.yaml", "limit: 500GB", "limit: 10kB")
	r.fix("quota.yaml", "rate: 1mbit, burst: 64KiB", 2000)
	const alice, bob = "192.0.2.11", "192.0.2.12"
	r.devices("eth0", alice, bob)
	in := listenUDP(t, r.far, net.ParseIP(alice))
	listenUDP(t, r.far, net.ParseIP(bob)) // otherwise there are ICMP errors
	send := func(to string, n int) func() {
		return func() { sendUDP(t, r.flow(r.near, "10.0.0.1", to, udpPort), n, 1000) }
	}
	plans := func(wantAlice bool) { // bob never has the slow plan
		t.Helper()
		eventually(t, func() error {
			rows := r.customers("--direction", "egress")
			if a, b := rows["alice"].Plan == "slow", rows["bob"].Plan == "slow"; a != wantAlice || b {
				return fmt.Errorf("alice has plan %s, bob %s", rows["alice"].Plan, rows["bob"].Plan)
			}
			return nil
		})
	}
	start := func() { r.shape("quota.yaml", "--both", "--state", "/var/lib/shaper") }
	start()
	plans(false)
	send(bob, 12)()
	r.wantPassed("within the quota", in, 12, send(alice, 12))
	plans(true)
	r.wantPassed("beyond the quota", in, 2, send(alice, 12))
	r.run.stopBySIGTERM()
	start()
	plans(true)
	r.run.stopBySIGTERM()
}

// TestLiveRecipeVLAN sends frames of several VLANs through a trunk, with IP and with ARP.
func TestLiveRecipeVLAN(t *testing.T) {
	r := newRecipe(t, "vlan", "eth0")
	const length = 48 // bytes of IP, of taggedFrame
	r.fix("vlan.yaml", "rate: 20mbit, burst: 256KiB", 3*length)
	r.fix("vlan.yaml", "rate: 200mbit, burst: 2MiB", 6*length)
	r.shape("vlan.yaml")
	s := r.far.Sniff("v0")
	const tag = 0x8100_0000
	passed := map[uint32]int{10: 6, 20: 3, 30: 2, 31: 1, 40: 0, 0: 8}
	order := []uint32{10, 20, 40, 30, 30, 31, 31, 0}
	for _, vlan := range order {
		n := 8
		switch vlan {
		case 0:
			r.near.Inject("eth0", repeat(taggedFrame(1), n)...)
			continue
		case 30, 31:
			n = 1
		}
		r.near.Inject("eth0", repeat(taggedFrame(1, tag|vlan), n)...)
	}
	// ARP is within the limit of its VLAN, and dropped in VLANs without a plan.
	for _, vlan := range []uint32{10, 40} {
		arp := append(taggedFrame(1, tag|vlan)[:16:16], 8, 6, 0, 1, 8, 0, 6, 4, 0, 1)
		r.near.Inject("eth0", append(arp, make([]byte, 20)...))
	}
	r.wantClass("vlans", 21, 9)
	r.wantClass("others", 9, 9)
	eventually(t, func() error {
		if rows := r.customers(); rows["guests"].Dropped.Packets != 5 || rows["office"].Dropped.Packets != 3 {
			return fmt.Errorf("got %+v", rows)
		}
		return nil
	})
	time.Sleep(quietTime())
	got := map[uint32]int{40: 0}
	for _, f := range s.Stop() {
		vlan := uint32(0)
		if f.Data[12] == 0x81 && f.Data[13] == 0 {
			vlan = uint32(f.Data[14]&15)<<8 | uint32(f.Data[15])
		}
		got[vlan]++
	}
	if fmt.Sprint(got) != fmt.Sprint(passed) {
		t.Errorf("arrived by VLAN: %v: want %v", got, passed)
	}
	r.run.stopBySIGTERM()
}
