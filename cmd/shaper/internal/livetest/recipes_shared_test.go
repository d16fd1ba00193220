package livetest

import (
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane/nettest"
)

// TestLiveRecipeUplinks sends through both uplinks of a router. They share one bucket, and a packet that is
// forwarded from one to the other is charged once.
func TestLiveRecipeUplinks(t *testing.T) {
	r := newRecipe(t, "uplinks", "eth0")
	r.fix("uplinks.yaml", "rate: 100mbit, burst: 1MiB", 8000)
	other := nettest.New(t)
	r.near.VethNamed("eth1", other, "v0")
	for _, end := range []struct {
		n         *nettest.Namespace
		dev, want string
	}{
		{r.near, "eth0", "10.1.0.1 10.1.0.2 02"},
		{r.far, "v0", "10.1.0.2 10.1.0.1 01"},
		{r.near, "eth1", "10.2.0.1 10.2.0.2 02"},
		{other, "v0", "10.2.0.2 10.2.0.1 01"},
	} {
		f := strings.Fields(end.want)
		r.lines(end.n, "addr flush dev "+end.dev, "addr add "+f[0]+"/24 dev "+end.dev,
			"neigh replace "+f[1]+" dev "+end.dev+" lladdr 02:00:00:00:00:"+f[2])
	}
	r.lines(r.far, "route replace default via 10.1.0.1 dev v0")
	r.lines(other, "route replace default via 10.2.0.1 dev v0")
	r.near.Run("sysctl", "-qw", "net.ipv4.ip_forward=1")
	for _, dev := range []string{"eth0", "eth1"} {
		r.must("shaper", "run", dev, "--policy", "/etc/shaper/uplinks.yaml", "--both", "--background")
	}
	first, second := listenUDP(t, r.far, net.IPv4(10, 1, 0, 2)), listenUDP(t, other, net.IPv4(10, 2, 0, 2))
	send := func(from *nettest.Namespace, own, to string, n int) func() {
		return func() { sendUDP(t, r.flow(from, own, to, udpPort), n, 1000) }
	}
	r.wantPassed("by the first uplink", first, 3, send(r.near, "10.1.0.1", "10.1.0.2", 3))
	r.wantPassed("by the second uplink", second, 3, send(r.near, "10.2.0.1", "10.2.0.2", 3))
	r.wantPassed("forwarded from the second to the first", first, 2, send(other, "10.2.0.2", "10.1.0.2", 4))
	r.wantPassed("when the bucket is empty", second, 0, send(r.near, "10.2.0.1", "10.2.0.2", 3))
	r.must("shaper", "detach", "eth0")
	r.must("shaper", "detach", "eth1")
}

// TestLiveRecipeHosts lets two hosts share a limit by a real Redis server, which has the configuration of the
// recipe. Together they never pass more than the limit. Without the server they have a part of it.
func TestLiveRecipeHosts(t *testing.T) {
	skipInVM(t)
	first := newRecipe(t, "hosts", "eth0", [2]string{"redis-server", "redis-server"})
	second := newRecipeHost(t, "hosts", "eth0")
	second.wrap = slices.Concat(
		[]string{"unshare", "-u", "sh", "-c", `hostname second && exec "$@"`, "sh"}, second.wrap)
	first.near.VethNamed("mgmt", second.near, "mgmt")
	hosts := []*recipe{first, second}
	for i, r := range hosts {
		r.lines(r.near, "addr flush dev mgmt", fmt.Sprintf("addr add 10.0.1.%d/24 dev mgmt", i+1),
			fmt.Sprintf("neigh replace 10.0.1.%d dev mgmt lladdr 02:00:00:00:00:%02d", 2-i, 2-i))
		text, err := os.ReadFile("../../../../docs/recipes/hosts/hosts.yaml")
		if err != nil {
			t.Fatal(err)
		}
		slow := strings.NewReplacer("rate: 100mbit", "rate: 4mbit", "burst: 1MiB", "burst: 64KiB").Replace(string(text))
		r.write("hosts.yaml", slow)
	}
	server := first.background(first.near, "redis-server", "/etc/shaper/redis.conf")
	server.out.awaitMatch(t, "Ready to accept connections")
	begin := time.Now()
	var sockets []*net.UDPConn
	for _, r := range hosts {
		r.shape("hosts.yaml")
		listenUDP(t, r.far, net.IPv4(10, 0, 0, 2)) // otherwise there are ICMP errors
		sockets = append(sockets, r.flow(r.near, "10.0.0.1", "10.0.0.2", udpPort))
	}
	var shares [2]shownShare
	eventually(t, func() error {
		for i, r := range hosts {
			sendUDP(t, sockets[i], 50, 1000)
			s := r.budgetShares()["site"]
			if shares[i] = s; !s.Heard || !s.Renewed || s.Rescued || s.Hosts != 2 || s.Size.Rate[0] != 4e6 {
				return fmt.Errorf("host %d: %+v", i, s)
			}
		}
		return nil
	})
	passed := int64(0)
	for _, r := range hosts {
		eventually(t, func() error {
			for _, conn := range sockets {
				sendUDP(t, conn, 100, 1000)
			}
			s := r.stats()
			c := s.classNamed(t, "all")
			if c.Dropped.Packets == 0 {
				return fmt.Errorf("nothing was dropped: %+v", c)
			}
			return nil
		})
	}
	for _, r := range hosts {
		s := r.stats()
		passed += s.classNamed(t, "all").Green.Bytes
	}
	const rate = 500e3 // bytes per second
	if most := float64(shares[0].Bound.Burst[0]) + rate*time.Since(begin).Seconds(); float64(passed) > most {
		t.Errorf("%d bytes passed: want at most %.0f", passed, most)
	}
	server.killAndWait()
	for _, r := range hosts {
		r.run.err.awaitMatch(t, `budget site: .*: limited to the rescue share of`)
		r.run.stopBySIGTERM()
	}
}

// TestLiveRecipeTunnels sends through two networks of an overlay. Each has its own limit on the interface
// that carries both.
func TestLiveRecipeTunnels(t *testing.T) {
	r := newRecipe(t, "tunnels", "eth0")
	(&onceRouter{budgetHost: &budgetHost{pair: r.pair}}).kernelHas("type vxlan id 7 dstport 4789")
	r.fix("overlay.yaml", "rate: 20mbit, burst: 256KiB", 3*1050) // 50 bytes of headers
	r.fix("overlay.yaml", "rate: 200mbit, burst: 2MiB", 6*1050)
	for _, vni := range []int{7, 8, 9} {
		for i, n := range []*nettest.Namespace{r.near, r.far} {
			r.lines(n, fmt.Sprintf("link add vx%d address 02:00:00:00:09:%02x type vxlan id %d dstport 4789 local 10.0.0.%d remote 10.0.0.%d",
				vni, i+1, vni, i+1, 2-i), fmt.Sprintf("addr add 10.9.%d.%d/24 dev vx%d", vni, i+1, vni),
				fmt.Sprintf("link set vx%d up", vni),
				fmt.Sprintf("neigh replace 10.9.%d.%d dev vx%d lladdr 02:00:00:00:09:%02x", vni, 2-i, vni, 2-i))
		}
	}
	r.shape("overlay.yaml")
	for vni, want := range map[byte]int{7: 6, 8: 3, 9: 10} {
		at := net.IPv4(10, 9, vni, 2)
		in := listenUDP(t, r.far, at)
		r.wantPassed(fmt.Sprint("network ", vni), in, want,
			func() { sendUDP(t, newSender(t, r.near, at, 0, 0), 10, 1000) })
	}
	r.run.stopBySIGTERM()
}
