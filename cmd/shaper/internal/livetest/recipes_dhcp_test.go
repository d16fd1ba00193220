package livetest

import (
	"fmt"
	"maps"
	"os"
	"syscall"
	"testing"
)

// terms are the terms of a customer that the API lists.
type terms struct{ Address, Plan string }

// terms returns the customers of an interface by name.
func (r *recipe) terms(name string) map[string]terms {
	r.t.Helper()
	page := decodeJSON[struct {
		Customers []struct {
			Name string
			terms
		}
	}](r.t, wantAnswer(r.t, 200, r.socket, "/v1/customers?limit=1000&interface="+name, nil))
	out := map[string]terms{}
	for _, c := range page.Customers {
		out[c.Name] = c.terms
	}
	return out
}

// awaitTerms waits until an interface has these customers.
func (r *recipe) awaitTerms(name string, want map[string]terms) {
	r.t.Helper()
	eventually(r.t, func() error {
		if got := r.terms(name); !maps.Equal(got, want) {
			return fmt.Errorf("%s has customers %v: want %v", name, got, want)
		}
		return nil
	})
}

// passedOf returns the packets of a customer that were not dropped in a direction.
func (r *recipe) passedOf(name, direction, customer string) int64 {
	r.t.Helper()
	row := r.customers(name, "--direction", direction)[customer]
	return row.Packets - row.Dropped.Packets
}

// awaitPassed waits until this many packets of a customer were not dropped in a direction.
func (r *recipe) awaitPassed(name, direction, customer string, want int64) {
	r.t.Helper()
	eventually(r.t, func() error {
		if got := r.passedOf(name, direction, customer); got != want {
			return fmt.Errorf("%s %s: %d packets of %s passed: want %d", name, direction, got, customer, want)
		}
		return nil
	})
}

// TestLiveRecipeDHCP runs dnsmasq and clients. A lease makes a customer with the plan of its device, and the
// end of the lease removes it.
func TestLiveRecipeDHCP(t *testing.T) {
	skipInVM(t)
	r := newRecipe(t, "dhcp", "lan0", [2]string{"dnsmasq", "dnsmasq-base"}, [2]string{"udhcpc", "udhcpc"})
	r.fix("leases.yaml", "rate: 10mbit, burst: 128KiB", 300)
	r.fix("leases.yaml", "rate: 100mbit, burst: 1MiB", 600)
	const staff, guest = "02:00:5e:00:53:01", "02:00:5e:00:53:99"
	r.near.Run("ip", "link", "set", "lan0", "arp", "on")
	r.serve("lan0 egress", "lan0 ingress")
	server := r.background(r.near, "dnsmasq", "--keep-in-foreground", "--port=0", "--conf-file=/etc/shaper/dnsmasq.conf")

	// lease changes the device in far to another one, which gets a lease.
	lease := func(mac, plan string) (client *process, address string) {
		t.Helper()
		r.far.Run("ip", "link", "set", "v0", "down")
		r.far.Run("ip", "link", "set", "v0", "address", mac, "arp", "on", "up")
		client = r.background(r.far, "udhcpc", "-i", "v0", "-f", "-R", "-t", "1000", "-T", "1",
			"-F", `x"; touch /run/shaper-pwned; "$(touch /run/shaper-pwned)`)
		eventually(t, func() error {
			got := r.terms("lan0")[mac]
			if address = got.Address; got.Plan != plan {
				return fmt.Errorf("%s has %+v, want plan %s: %q, dnsmasq %q", mac, got, plan, &client.out, &server.out)
			}
			return nil
		})
		return client, address
	}
	send := func(address string) {
		t.Helper()
		for range 9 {
			r.far.Inject("v0", packetBetween(address, "203.0.113.1"))
			r.near.Inject("lan0", packetBetween("203.0.113.1", address))
		}
	}
	wantPassed := func(customer string, want int64) {
		t.Helper()
		r.awaitPassed("lan0", "ingress", customer, want)
		r.awaitPassed("lan0", "egress", customer, want)
	}
	first, address := lease(staff, "staff")
	send(address)
	wantPassed(staff, 6)
	// The shaper forgot the device: dnsmasq tells it again.
	r.wantExit(0, "customer", "remove", "lan0", staff)
	server.sendSignal(syscall.SIGHUP)
	r.awaitTerms("lan0", map[string]terms{staff: {address, "staff"}})

	second, other := lease(guest, "guest")
	send(other)
	wantPassed(guest, 3)
	second.sendSignal(syscall.SIGTERM)
	r.awaitTerms("lan0", map[string]terms{staff: {address, "staff"}})
	if _, err := os.Stat(r.root + "/run/shaper-pwned"); err == nil {
		t.Error("the name of a host was run as a command")
	}

	// A lease that the shaper has not seen end: the address is the next device's.
	r.must("/etc/shaper/lease", "add", guest, address)
	r.awaitTerms("lan0", map[string]terms{guest: {address, "guest"}})
	r.must("/etc/shaper/lease", "del", staff, address)
	r.must("/etc/shaper/lease", "del", guest, "10.0.0.77")
	r.must("/etc/shaper/lease", "add", guest, "2001:db8::1")
	r.awaitTerms("lan0", map[string]terms{guest: {address, "guest"}})
	r.must("/etc/shaper/lease", "del", guest, address)
	r.awaitTerms("lan0", map[string]terms{})
	first.sendSignal(syscall.SIGKILL)
	r.run.stopBySIGTERM()
}
