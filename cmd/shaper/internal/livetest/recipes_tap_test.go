package livetest

import (
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane/nettest"
)

// newTapRecipe is newRecipe for policies that shaper tap runs.
func newTapRecipe(t *testing.T, name string) *recipe {
	t.Helper()
	skipInVM(t)
	if _, err := os.Stat("/dev/net/tun"); err != nil {
		t.Skipf("%v: modprobe tun", err)
	}
	return newRecipe(t, name, "eth0")
}

// tap starts shaper tap between near and eth0, as the page says: tap0 gets the address of eth0.
func (r *recipe) tap(policy string) {
	r.t.Helper()
	r.near.Run("ip", "addr", "flush", "dev", "eth0")
	r.run = r.startShaper("tap", "tap0", "--uplink", "eth0", "--policy", "/etc/shaper/"+policy, "--both")
	r.run.awaitPrinted("moving frames to and from")
	r.lines(r.near, "link set tap0 address 02:00:00:00:01:01 arp off", "addr add 10.0.0.1/24 dev tap0",
		"neigh replace 10.0.0.2 lladdr 02:00:00:00:00:02 dev tap0")
	r.lines(r.far, "neigh replace 10.0.0.1 lladdr 02:00:00:00:01:01 dev v0")
}

// lines runs ip with each line of arguments.
func (r *recipe) lines(n *nettest.Namespace, lines ...string) {
	r.t.Helper()
	for _, line := range lines {
		n.Run("ip", strings.Fields(line)...)
	}
}

// devices gives addresses to the far end, to which near has routes by dev.
func (r *recipe) devices(dev string, addresses ...string) {
	r.t.Helper()
	for _, address := range addresses {
		r.lines(r.far, "addr add "+address+"/32 dev v0")
		r.lines(r.near, "route replace "+address+" via 10.0.0.2 dev "+dev+" onlink")
	}
}

// flow opens a UDP socket from an address of n to a port of another one.
func (r *recipe) flow(n *nettest.Namespace, from, to string, port int) *net.UDPConn {
	r.t.Helper()
	var conn *net.UDPConn
	var err error
	n.Do(func() {
		conn, err = net.DialUDP("udp4", &net.UDPAddr{IP: net.ParseIP(from)},
			&net.UDPAddr{IP: net.ParseIP(to), Port: port})
	})
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { conn.Close() })
	return conn
}

// atOnce sends into tap0 while shaper stands still, so that all packets are there when it goes on.
func (r *recipe) atOnce(send func()) {
	r.t.Helper()
	r.run.sendSignal(syscall.SIGSTOP)
	send()
	r.run.sendSignal(syscall.SIGCONT)
}

// arrivals sniffs at the far end until done, and returns the last byte of each destination address.
func arrivals(s *nettest.Sniffer, done func() error, t *testing.T) (last []byte, at []time.Time) {
	t.Helper()
	eventually(t, done)
	for _, f := range s.Stop() {
		if len(f.Data) > 500 && f.Data[12] == 8 && f.Data[13] == 0 {
			last, at = append(last, f.Data[14+19]), append(at, time.Unix(0, f.Time))
		}
	}
	return last, at
}

// TestLiveRecipeLine sends a long burst and then a few packets of a call through shaper tap. The call must
// not wait behind the burst, and no packet may depart faster than the line is.
func TestLiveRecipeLine(t *testing.T) {
	r := newTapRecipe(t, "line")
	r.edit("line.yaml", "down: 95mbit", "down: 800kbit") // 10 ms for a packet
	r.edit("line.yaml", "limit: 100ms", "limit: 10s")
	r.tap("line.yaml")
	r.devices("tap0", "192.168.1.10", "192.168.1.11")
	bulk := r.flow(r.near, "10.0.0.1", "192.168.1.10", udpPort)
	call := r.flow(r.near, "10.0.0.1", "192.168.1.11", udpPort)
	in := listenUDP(t, r.far, net.IPv4(192, 168, 1, 11))
	listenUDP(t, r.far, net.IPv4(192, 168, 1, 10)) // otherwise there are ICMP errors
	s := r.far.Sniff("v0")
	begin := time.Now()
	const burst, calls = 300, 3
	r.atOnce(func() {
		sendUDP(t, bulk, burst, 1000)
		sendUDP(t, call, calls, 1000)
	})
	got := 0
	last, at := arrivals(s, func() error {
		if _, there := in.receive(); there {
			got++
		}
		if got < calls {
			return fmt.Errorf("%d of %d packets of the call arrived", got, calls)
		}
		return nil
	}, t)
	before := strings.Count(string(last[:strings.LastIndexByte(string(last), 11)]), "\x0a")
	if before > burst/2 {
		t.Errorf("%d packets of the burst of %d arrived before the call: want fewer than half", before, burst)
	}
	for i, at := range at {
		if after := at.Sub(begin); after < time.Duration(i)*10*time.Millisecond {
			t.Errorf("packet %d arrived %v after the start: faster than the line", i, after)
		}
	}
	r.wantUpload("192.168.1.10", "line")
	r.run.stopBySIGTERM()
}

// TestQuietRecipeLine fills a line of 20 Mbit/s with four TCP flows. Behind the modem's plain queue a packet
// of another flow waits for all of theirs; with the recipe it hardly waits.
func TestQuietRecipeLine(t *testing.T) {
	nettest.Quiet(t)
	r := newTapRecipe(t, "line")
	r.edit("line.yaml", "down: 95mbit", "down: 20mbit")
	r.write("modem.yaml", "classes: [{name: all, green: {queue: modem}}]\n"+
		"queues: {modem: {rate: 20mbit, limit: 500ms, fair: false}}\n")
	p := &tcpPath{pair: r.pair, from: r.near, to: r.far, at: net.IPv4(192, 168, 1, 10)}
	with := func(policy string) *crossing {
		r.tap(policy)
		defer r.run.stopBySIGTERM()
		r.lines(r.far, "addr replace 192.168.1.10/32 dev v0")
		r.lines(r.near, "route replace 192.168.1.10 via 10.0.0.2 dev tap0 onlink")
		return p.crossTCP(4, 2*time.Second, 5*time.Second)
	}
	nettest.Steady(t, func() error {
		before, after := with("modem.yaml"), with("line.yaml")
		t.Logf("modem: %v; recipe: %v", before, after)
		if len(before.rtt) == 0 || len(after.rtt) == 0 || after.lost > 0 ||
			after.percentile(99) > before.percentile(50)/4 || after.rate < 0.85*before.rate {
			return fmt.Errorf("modem: %v; recipe: %v", before, after)
		}
		return nil
	})
}

// wantUpload sends packets of a device up, and waits until they have arrived and been queued in a class
// at ingress.
func (r *recipe) wantUpload(from, queue string) {
	r.t.Helper()
	in := listenUDP(r.t, r.near, net.IPv4(10, 0, 0, 1))
	sendUDP(r.t, r.flow(r.far, from, "10.0.0.1", udpPort), 4, 1000)
	if got := len(in.receiveAll()); got != 4 {
		r.t.Errorf("%d of 4 packets of %s arrived", got, from)
	}
	queued := int64(0)
	for _, c := range r.stats("tap0", "--direction", "ingress").Classes {
		queued += c.Queued.Packets
	}
	if queued != 4 {
		r.t.Errorf("%d packets queued in %s at ingress: want 4", queued, queue)
	}
}

// TestLiveRecipeDevices sends eight flows to a device and one to another through shaper tap. Each device
// gets the same, whatever its number of flows.
func TestLiveRecipeDevices(t *testing.T) {
	r := newTapRecipe(t, "devices")
	r.edit("devices.yaml", "rate: 95mbit, limit: 100ms, fair: [dst, flow], ecn: true",
		"rate: 800kbit, limit: 10s, fair: [dst, flow], codel: false")
	r.tap("devices.yaml")
	r.devices("tap0", "192.168.1.10", "192.168.1.11")
	const flows, each = 8, 20
	in := listenUDP(t, r.far, net.IPv4(192, 168, 1, 11))
	listenUDP(t, r.far, net.IPv4(192, 168, 1, 10)) // otherwise there are ICMP errors
	s := r.far.Sniff("v0")
	var list []*net.UDPConn
	for range flows {
		list = append(list, r.flow(r.near, "10.0.0.1", "192.168.1.10", udpPort))
	}
	list = append(list, r.flow(r.near, "10.0.0.1", "192.168.1.11", udpPort))
	r.atOnce(func() {
		for _, conn := range list {
			sendUDP(t, conn, each, 1000)
		}
	})
	got := 0
	last, _ := arrivals(s, func() error {
		if _, there := in.receive(); there {
			got++
		}
		if got < each {
			return fmt.Errorf("%d of %d packets arrived", got, each)
		}
		return nil
	}, t)
	// With the same for each flow, the eight flows would have sent all of their packets.
	if of := strings.Count(string(last[:strings.LastIndexByte(string(last), 11)]), "\x0a"); of > 3*each {
		t.Errorf("a device with %d flows got %d packets while one with a single flow got %d", flows, of, each)
	}
	r.wantUpload("192.168.1.10", "up")
	r.run.stopBySIGTERM()
}

// TestLiveRecipeISP floods a customer below an access point through shaper tap. Its neighbor loses nothing,
// and a customer added to the file has a queue after a reload.
func TestLiveRecipeISP(t *testing.T) {
	r := newTapRecipe(t, "isp")
	r.edit("isp.yaml", "home: {queue: {rate: {down: 50mbit, up: 10mbit}, limit: 100ms",
		"home: {queue: {rate: {down: 800kbit, up: 800kbit}, limit: 1s")
	r.edit("customers.csv", "100mbit,20mbit", "800kbit,800kbit")
	r.edit("isp.yaml", "rate: 10mbit, burst: 64KiB", "rate: 1B/1000s, burst: 4000")
	r.tap("isp.yaml")
	const alice, bob, carol = "192.0.2.11", "192.0.2.12", "192.0.2.13"
	r.devices("tap0", alice, bob, carol)
	send := func(to string, n int) {
		sendUDP(t, r.flow(r.near, "10.0.0.1", to, udpPort), n, 1000)
	}
	in := listenUDP(t, r.far, net.ParseIP(alice))
	listenUDP(t, r.far, net.ParseIP(bob)) // otherwise there are ICMP errors
	listenUDP(t, r.far, net.ParseIP(carol))
	const few = 8 // fewer than CoDel drops any of
	r.atOnce(func() {
		send(bob, 400)
		send(alice, few)
		send(carol, 9) // no customer yet
	})
	if got := len(in.receiveAll()); got != few {
		t.Errorf("%d of %d packets arrived at alice", got, few)
	}
	eventually(t, func() error {
		rows, s := r.customers("tap0", "--direction", "egress"), r.stats("tap0", "--direction", "egress")
		strangers := s.classNamed(t, "strangers")
		if a, b := rows["alice"], rows["bob"]; a.Packets != few || a.Dropped.Packets != 0 || b.Packets != 400 ||
			b.Dropped.Packets == 0 || strangers.Packets != 9 || strangers.Dropped.Packets != 5 {
			return fmt.Errorf("alice %+v, bob %+v, strangers %+v", a, b, strangers)
		}
		return nil
	})
	listenUDP(t, r.near, net.IPv4(10, 0, 0, 1))
	sendUDP(t, r.flow(r.far, alice, "10.0.0.1", udpPort), 3, 1000)
	r.write("customers.csv", "customer,addresses,plan,link\nalice,192.0.2.11,home,ap-9\nbob,192.0.2.12,home,ap-7\n"+
		"carol,192.0.2.13,home,ap-9\n")
	r.must("shaper", "reload", "tap0")
	send(carol, few)
	eventually(t, func() error {
		down, up := r.customers("tap0", "--direction", "egress"), r.customers("tap0", "--direction", "ingress")
		if c := down["carol"]; c.Packets != few || c.Dropped.Packets != 0 || up["alice"].Packets != 3 {
			return fmt.Errorf("after the reload: carol %+v, alice up %+v", c, up["alice"])
		}
		return nil
	})
	r.must("shaper", "set", "tap0", "customer", "bob", "link=ap-9")
	r.run.stopBySIGTERM()
}
