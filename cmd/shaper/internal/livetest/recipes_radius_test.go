package livetest

import (
	"os"
	"strings"
	"testing"
)

// TestLiveRecipeRADIUS sends accounting and CoA to FreeRADIUS. A session makes a customer, CoA changes its
// plan, and the end of the session removes it.
func TestLiveRecipeRADIUS(t *testing.T) {
	skipInVM(t)
	r := newRecipe(t, "radius", "eth0",
		[2]string{"freeradius", "freeradius"}, [2]string{"radclient", "freeradius-utils"})
	r.fix("sessions.yaml", "rate: 20mbit, burst: 256KiB", 300)
	r.fix("sessions.yaml", "rate: 200mbit, burst: 2MiB", 600)
	r.must("sh", "-ec", "mount -t tmpfs tmpfs /var/log; install -d -o freerad /var/log/freeradius /run/freeradius")
	r.must("/etc/shaper/install")
	r.must("/etc/shaper/install") // once more changes nothing
	r.serve("eth0 egress", "eth0 ingress")
	server := r.background(r.near, "freeradius", "-f", "-l", "stdout")
	server.out.awaitMatch(t, "Ready to process requests")

	request := func(kind, attributes string, retries string) error {
		t.Helper()
		port := map[string]string{"acct": "1813", "coa": "3799", "disconnect": "3799"}[kind]
		cmd := r.command("radclient", "-t", "3", "-r", retries, "127.0.0.1:"+port, kind, "testing123")
		cmd.Stdin = strings.NewReader(attributes + "\n")
		var err error
		r.near.Do(func() { err = cmd.Run() })
		return err
	}
	accepted := func(kind, attributes string) {
		t.Helper()
		if err := request(kind, attributes, "100"); err != nil {
			t.Fatalf("%s %s: %v: %q", kind, attributes, err, &server.out)
		}
	}
	refused := func(kind, attributes string) {
		t.Helper()
		if err := request(kind, attributes, "1"); err == nil {
			t.Errorf("%s %s was accepted", kind, attributes)
		}
	}
	send := func(address string) {
		t.Helper()
		for range 9 {
			r.far.Inject("v0", packetBetween(address, "203.0.113.1"))
			r.near.Inject("eth0", packetBetween("203.0.113.1", address))
		}
	}
	wantPassed := func(customer string, want int64) {
		t.Helper()
		r.awaitPassed("eth0", "ingress", customer, want)
		r.awaitPassed("eth0", "egress", customer, want)
	}

	accepted("acct", `Acct-Status-Type = Accounting-On, NAS-IP-Address = 127.0.0.1`)
	const bobs = `User-Name = "bob", Acct-Session-Id = "1", Framed-IP-Address = 100.64.0.1`
	accepted("acct", `Acct-Status-Type = Start, `+bobs)
	r.awaitTerms("eth0", map[string]terms{"bob": {"100.64.0.1", "standard"}})
	send("100.64.0.1")
	wantPassed("bob", 3)
	accepted("coa", `User-Name = "bob", Filter-Id = "large"`)
	accepted("acct", `Acct-Status-Type = Interim-Update, `+bobs)
	r.awaitTerms("eth0", map[string]terms{"bob": {"100.64.0.1", "large"}})
	for _, attributes := range []string{
		`User-Name = "bob", Filter-Id = "none"`, `User-Name = "alice", Filter-Id = "large"`, `User-Name = "bob"`,
		`Filter-Id = "large"`, `User-Name = "bob", Filter-Id = "large\", \"off\": true, \"x\": \""`,
	} {
		refused("coa", attributes)
	}

	// The NAS sends the class of the user's Access-Accept. An address belongs to the latest session.
	const alices = `User-Name = "alice", Acct-Session-Id = "2", Framed-IP-Address = 100.64.0.1, Class = "large"`
	accepted("acct", `Acct-Status-Type = Start, `+alices)
	r.awaitTerms("eth0", map[string]terms{"alice": {"100.64.0.1", "large"}})
	send("100.64.0.1")
	wantPassed("alice", 6)
	r.run.stopBySIGTERM()
	r.serve("eth0 egress", "eth0 ingress")
	r.awaitTerms("eth0", map[string]terms{"alice": {"100.64.0.1", "large"}})
	r.wantExit(0, "customer", "remove", "eth0", "alice")
	accepted("acct", `Acct-Status-Type = Interim-Update, `+alices)
	r.awaitTerms("eth0", map[string]terms{"alice": {"100.64.0.1", "large"}})
	accepted("acct", `Acct-Status-Type = Stop, `+bobs) // too late
	r.awaitTerms("eth0", map[string]terms{"alice": {"100.64.0.1", "large"}})
	accepted("acct", `Acct-Status-Type = Start, `+strings.ReplaceAll(alices, "100.64.0.1", "100.64.0.2"))
	accepted("acct", `Acct-Status-Type = Stop, `+alices) // of her session before
	r.awaitTerms("eth0", map[string]terms{"alice": {"100.64.0.2", "large"}})

	// What users choose is neither a command, nor JSON, nor a part of an address.
	const name = "' a  b ; `touch /run/pwned` $(touch /run/pwned) %{User-Name} é"
	odd := `User-Name = "` + name + `", Acct-Session-Id = "3", Framed-IP-Address = 100.64.0.3`
	accepted("acct", `Acct-Status-Type = Start, `+odd)
	r.awaitTerms("eth0", map[string]terms{"alice": {"100.64.0.2", "large"}, name: {"100.64.0.3", "standard"}})
	accepted("acct", `Acct-Status-Type = Stop, `+odd)
	lines := `User-Name = "x\"}\n[\\", Acct-Session-Id = "3", Framed-IP-Address = 100.64.0.3`
	accepted("acct", `Acct-Status-Type = Start, `+lines)
	r.awaitTerms("eth0", map[string]terms{
		"alice": {"100.64.0.2", "large"}, `x\"}\n[\\`: {"100.64.0.3", "standard"}, // FreeRADIUS escapes them
	})
	accepted("disconnect", lines)
	refused("acct", `Acct-Status-Type = Start, User-Name = "mallory", Acct-Session-Id = "4"`)
	refused("acct", `Acct-Status-Type = Start, Acct-Session-Id = "4", Framed-IP-Address = 100.64.0.2`)
	refused("acct", `Acct-Status-Type = Start, User-Name = "`+strings.Repeat("x", 65)+
		`", Acct-Session-Id = "4", Framed-IP-Address = 100.64.0.2`)
	refused("disconnect", `User-Name = "alice"`)
	r.awaitTerms("eth0", map[string]terms{"alice": {"100.64.0.2", "large"}})
	accepted("disconnect", `User-Name = "alice", Framed-IP-Address = 100.64.0.2`)
	r.awaitTerms("eth0", map[string]terms{})
	if _, err := os.Stat(r.root + "/run/pwned"); err == nil {
		t.Error("a name was run as a command")
	}
	r.run.stopBySIGTERM()
}
