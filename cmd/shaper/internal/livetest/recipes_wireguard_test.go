package livetest

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/dataplane/nettest"
)

// newWireGuard creates the recipe of WireGuard. If the kernel lacks it, its programs use wireguard-go.
func newWireGuard(t *testing.T) *recipe {
	t.Helper()
	needs := [][2]string{{"wg", "wireguard-tools"}, {"wg-quick", "wireguard-tools"}}
	if out, err := exec.Command("modinfo", "wireguard").CombinedOutput(); err != nil {
		needs = append(needs, [2]string{"wireguard-go", "wireguard-go"})
		if _, err := os.Stat("/dev/net/tun"); err != nil {
			t.Skipf("%v: modprobe tun", err)
		}
		t.Logf("wireguard-go stands in for WireGuard in the kernel: %s", out)
	}
	return newRecipe(t, "wireguard", "eth0", needs...)
}

// TestLiveRecipeWireGuard limits the peers of WireGuard by name while they come and go.
func TestLiveRecipeWireGuard(t *testing.T) {
	r := newWireGuard(t)
	r.fix("peers.yaml", "rate: 20mbit, burst: 256KiB", 400)
	r.fix("peers.yaml", "rate: 200mbit, burst: 2MiB", 600)
	private, public := map[string]string{}, map[string]string{}
	for _, name := range []string{"SERVER", "ALICE", "BOB"} {
		private[name] = strings.TrimSpace(r.must("wg", "genkey"))
		public[name] = strings.TrimSpace(r.must("sh", "-c", "echo "+private[name]+" | wg pubkey"))
	}
	r.edit("wg0.conf", "SERVER_PRIVATE_KEY", private["SERVER"])
	for _, name := range []string{"ALICE", "BOB"} {
		r.edit("wg0.conf", name+"_PUBLIC_KEY", public[name])
		r.edit("peers", name+"_PUBLIC_KEY", public[name])
	}
	r.write("wgfar.conf", "[Interface]\nPrivateKey = "+private["ALICE"]+
		"\nAddress = 10.8.0.2/24\n[Peer]\nPublicKey = "+public["SERVER"]+
		"\nAllowedIPs = 10.8.0.1/32\nEndpoint = 10.0.0.1:51820\nPersistentKeepalive = 1\n")
	r.serve()
	up := func(n *nettest.Namespace, name string) {
		t.Helper()
		if out, err := r.in(n, "wg-quick", "up", "/etc/shaper/"+name+".conf"); err != nil {
			t.Fatalf("wg-quick: %v: %s", err, out)
		}
		t.Cleanup(func() { n.Delete(name) }) // wireguard-go ends then
	}
	up(r.near, "wg0")
	up(r.far, "wgfar")
	r.await("wg0 egress", "wg0 ingress")
	peers := func(want ...string) {
		t.Helper()
		answer := decodeJSON[struct{ Customers []struct{ Name, Done string } }](t, r.must("/etc/shaper/wg-peers", "wg0"))
		var done []string
		for _, c := range answer.Customers {
			done = append(done, c.Name+" "+c.Done)
		}
		slices.Sort(done)
		slices.Sort(want)
		if !slices.Equal(done, want) {
			t.Errorf("got %q: want %q", done, want)
		}
	}
	const alices, bobs = "10.8.0.2 fd00:8::2", "10.8.0.3"
	eventually(t, func() error { // wg-quick ran it too, perhaps before the interface was shaped
		_, err := r.in(r.near, "/etc/shaper/wg-peers", "wg0")
		return err
	})
	peers("alice unchanged", "bob unchanged")
	r.awaitTerms("wg0", map[string]terms{"alice": {alices, "large"}, "bob": {bobs, "standard"}})

	eventually(t, func() error {
		if out := r.must("wg", "show", "wg0", "latest-handshakes"); strings.Count(out, "\t0\n") > 1 {
			return fmt.Errorf("no handshake: %s", out)
		}
		return nil
	})
	send := func(from *nettest.Namespace, to string) { from.Run("bash", "-ec", sends(5, net.ParseIP(to))) }
	listenUDP(t, r.near, net.IP{10, 8, 0, 1}) // otherwise there are ICMP errors
	listenUDP(t, r.far, net.IP{10, 8, 0, 2})
	send(r.far, "10.8.0.1")
	send(r.near, "10.8.0.2")
	send(r.near, "10.8.0.3")
	r.awaitPassed("wg0", "ingress", "alice", 3)
	r.awaitPassed("wg0", "egress", "alice", 3)
	r.awaitPassed("wg0", "egress", "bob", 2)

	// Names are not commands, and those that are no names are refused as a whole.
	const strange = "al$(touch${IFS}/run/pwned)\"';`"
	r.write("peers", public["ALICE"]+" "+strange+" large\n"+public["BOB"]+" bob none\n")
	if out, err := r.in(r.near, "/etc/shaper/wg-peers", "wg0"); err == nil || !strings.Contains(out, "none") {
		t.Errorf("a plan that is not there: %v: %s", err, out)
	}
	r.awaitTerms("wg0", map[string]terms{"alice": {alices, "large"}, "bob": {bobs, "standard"}})
	r.write("peers", public["ALICE"]+" "+strange+" large\n")
	peers(public["BOB"]+" added", strange+" added", "alice removed", "bob removed")
	if _, err := os.Stat(r.root + "/run/pwned"); err == nil {
		t.Error("a name was run as a command")
	}
	r.write("peers", public["ALICE"]+" alice standard\n"+public["BOB"]+" bob large\n")
	peers(public["BOB"]+" removed", strange+" removed", "alice added", "bob added")

	// One peer gets the address of the other, and a peer goes.
	r.must("wg", "set", "wg0", "peer", public["ALICE"], "allowed-ips", "10.8.0.2/32,10.8.0.3/32")
	peers("alice replaced", "bob replaced")
	r.awaitTerms("wg0", map[string]terms{"alice": {"10.8.0.2 10.8.0.3", "standard"}, "bob": {"", "large"}})
	r.must("wg", "set", "wg0", "peer", public["BOB"], "remove")
	peers("alice unchanged", "bob removed")
	r.must("wg", "set", "wg0", "peer", public["ALICE"], "remove")
	peers("alice removed")
	r.run.stopBySIGTERM()
}
