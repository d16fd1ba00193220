package livetest

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/a-seed-32e5a53f/shaper/dataplane/nettest"
)

// cgroupTree is a cgroup of a test with others below it.
type cgroupTree struct {
	t          *testing.T
	root, path string // mount point of cgroup v2; path below it
}

// newCgroup creates a cgroup, which is removed when the test ends.
func newCgroup(t *testing.T) *cgroupTree {
	t.Helper()
	c := &cgroupTree{t: t, root: cgroupMount(t)}
	c.path = fmt.Sprintf("/shaper-test-%d-%s", os.Getpid(), strings.ReplaceAll(t.Name(), "/", "-"))
	c.add("")
	return c
}

// cgroupMount returns a mount point of cgroup v2. It makes one if there is none.
func cgroupMount(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); strings.Contains(line, " - cgroup2 ") && fields[3] == "/" {
			return fields[4]
		}
	}
	root := t.TempDir()
	if err := unix.Mount("none", root, "cgroup2", 0, ""); err != nil {
		t.Skipf("no cgroup v2: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(root, unix.MNT_DETACH) })
	return root
}

// add creates a cgroup below the tree's and returns its path.
func (c *cgroupTree) add(below string) string {
	c.t.Helper()
	dir := filepath.Join(c.root, c.path, below)
	if err := os.Mkdir(dir, 0o755); err != nil {
		c.t.Skipf("cgroup v2: %v", err)
	}
	c.t.Cleanup(func() { _ = os.Remove(dir) })
	return filepath.Join(c.path, below)
}

// run runs a script of bash in a namespace, as a process of a cgroup.
func (c *cgroupTree) run(n *nettest.Namespace, path, script string) {
	c.t.Helper()
	n.Run("bash", "-ec", fmt.Sprintf("echo $$ >%s/cgroup.procs\n%s", filepath.Join(c.root, path), script))
}

// sends is a script that sends n UDP packets of 200 bytes to an address.
func sends(n int, to net.IP) string {
	return fmt.Sprintf("exec 3>/dev/udp/%v/%d; for i in $(seq %d); do printf %%0172d 0 >&3 || true; done", to, udpPort, n)
}

const byCgroup = `
classes:
  - name: backup
    match: {proto: udp, cgroup: TREE/backup}
    meter: {type: token-bucket, rate: 1B/1000s, burst: 200B}
  - {name: customers, per: customer, match: {proto: udp}, meter: plan}
  - name: strangers
    match: {proto: udp}
    meter: {type: token-bucket, rate: 1B/1000s, burst: 400B, per: cgroup, keys: 100}
customers: {file: customers.csv, key: cgroup}
plans:
  three: {type: token-bucket, rate: 1B/1000s, burst: 600B}
`

// TestLiveCgroup checks matches, customers and meters by the cgroup of the sending socket: cgroups below are
// included, the innermost named one counts, and a cgroup that is not named has a meter of its own.
func TestLiveCgroup(t *testing.T) {
	t.Parallel()
	for _, hook := range []string{"tcx", "tc"} {
		t.Run(hook, func(t *testing.T) {
			m := placement{hook, "egress"}
			m.skipIfUnsupported(t)
			p := newPair(t)
			c := newCgroup(t)
			backup, nightly := c.add("backup"), c.add("backup/nightly")
			a, worker, own := c.add("a"), c.add("a/worker"), c.add("a/own")
			x, y := c.add("x"), c.add("x/y")
			policy := writeWithCustomers(t, strings.ReplaceAll(byCgroup, "TREE", c.path),
				fmt.Sprintf("customer,cgroup,plan\na,%s,three\nown,%s,three\n", a, own))
			p.runShaper(m.flags("--policy", policy)...)
			_, at := p.addresses(m, false)
			in := listenUDP(t, p.far, at)
			for _, test := range []struct {
				cgroup     string
				sent, want int
			}{
				{backup, 2, 1}, {nightly, 1, 0}, // one bucket for both
				{worker, 2, 2}, {a, 2, 1}, {worker, 1, 0}, // customer a
				{own, 4, 3},          // the innermost customer
				{x, 3, 2}, {y, 3, 2}, // each its own key
			} {
				c.run(p.near, test.cgroup, sends(test.sent, at))
				if got := len(in.receiveAll()); got != test.want {
					t.Errorf("%s: %d of %d packets passed: want %d", test.cgroup, got, test.sent, test.want)
				}
			}
		})
	}
}

// TestLiveCgroupRefused checks where a policy by cgroup is refused, and why.
func TestLiveCgroupRefused(t *testing.T) {
	p := newPair(t)
	c := newCgroup(t)
	c.add("backup")
	text := "classes:\n  - {name: backup, match: {cgroup: TREE/backup}, meter: {type: token-bucket, rate: 1mbit, burst: 9kB}}\n"
	policy := writePolicy(t, strings.ReplaceAll(text, "TREE", c.path))
	const sockets = ".*policy.yaml:2:36: cgroup needs the sending socket of packets, which only the hook tc at egress knows: use direction egress"
	for _, m := range []placement{{"tcx", "ingress"}, {"tc", "ingress"}, {"xdp", "ingress"}} {
		p.wantError(2, sockets, append([]string{"run", "v0", "--policy", policy}, m.flags()...)...)
	}
	if _, stderr := p.wantExit(2, "run", "v0", "--policy", policy, "--both"); !strings.Contains(stderr,
		"which only the hook tc at egress knows") {
		t.Errorf("both directions: got %q", stderr)
	}
}

// TestLiveCgroupMade checks a policy that names cgroups which do not exist: it takes effect when they are
// made, and again after they were removed and made again, without a reload by anybody. Other classes keep
// their tokens.
func TestLiveCgroupMade(t *testing.T) {
	p := newPair(t)
	c := newCgroup(t)
	other := c.add("other")
	policy := writeWithCustomers(t, strings.ReplaceAll(byCgroup, "TREE", c.path),
		fmt.Sprintf("customer,cgroup,plan\na,%s/a,three\nother,%s,three\n", c.path, other))
	r := p.runShaper("--policy", policy)
	r.err.awaitMatch(t, "cgroup "+c.path+"/a does not exist: no packet belongs to it; cgroup "+c.path+"/backup does not exist")
	e := p.effectStatus()
	if e.Effective == nil || !*e.Effective || len(e.Notes) != 2 {
		t.Errorf("got %+v", e)
	}
	_, at := p.addresses(placement{"tcx", "egress"}, false)
	in := listenUDP(t, p.far, at)
	pass := func(cgroup string, sent, want int) {
		t.Helper()
		c.run(p.near, cgroup, sends(sent, at))
		if got := len(in.receiveAll()); got != want {
			t.Errorf("%s: %d of %d packets passed: want %d", cgroup, got, sent, want)
		}
	}
	pass(other, 2, 2)
	for round := range 2 {
		for _, name := range []string{"backup", "a"} {
			loaded := strings.Count(r.err.String(), ": loading it again")
			if err := os.Mkdir(filepath.Join(c.root, c.path, name), 0o755); err != nil {
				t.Fatal(err)
			}
			eventually(t, func() error {
				if n := strings.Count(r.err.String(), ": loading it again"); n == loaded || len(p.effectStatus().Problems) > 0 {
					return fmt.Errorf("not loaded again: %q", &r.err)
				}
				return nil
			})
		}
		pass(c.path+"/backup", 2, 1-round) // the class keeps its tokens, although the cgroup is another one
		pass(c.path+"/a", 4, 3-3*round)
		for _, name := range []string{"backup", "a"} {
			if err := os.Remove(filepath.Join(c.root, c.path, name)); err != nil {
				t.Fatal(err)
			}
		}
		eventually(t, func() error {
			if e := p.effectStatus(); len(e.Notes) != 2 || e.Effective == nil || !*e.Effective {
				return fmt.Errorf("got %+v", e)
			}
			return nil
		})
	}
	pass(other, 2, 1)
	r.stopBySIGTERM()
}

// TestLiveCgroupMadeBackground is TestLiveCgroupMade without a process of shaper: status tells what to do.
func TestLiveCgroupMadeBackground(t *testing.T) {
	p := newPair(t)
	c := newCgroup(t)
	text := "classes: [{name: backup, match: {proto: udp, cgroup: TREE/backup}, red: drop, meter: {type: token-bucket, rate: 1B/1000s, burst: 200B}}]\n"
	policy := writePolicy(t, strings.ReplaceAll(text, "TREE", c.path))
	p.wantExit(0, "run", "v0", "--background", "--policy", policy)
	status, _ := p.wantExit(0, "status", "v0")
	words := func(s string) string { return strings.Join(strings.Fields(s), " ") }
	if !strings.Contains(words(status), "note cgroup "+c.path+"/backup does not exist: no packet belongs to it policy") {
		t.Errorf("got %q", status)
	}
	backup := c.add("backup")
	status, _ = p.wantExit(0, "status", "v0")
	if !strings.Contains(words(status), "not effective: cgroup "+backup+" was created after the policy was loaded: shaper reload v0 policy") {
		t.Errorf("got %q", status)
	}
	p.wantExit(0, "reload", "v0")
	if e := p.effectStatus(); len(e.Notes)+len(e.Problems) > 0 {
		t.Errorf("got %+v", e)
	}
	_, at := p.addresses(placement{"tcx", "egress"}, false)
	in := listenUDP(t, p.far, at)
	c.run(p.near, backup, sends(3, at))
	if got := len(in.receiveAll()); got != 1 {
		t.Errorf("%d of 3 packets passed", got)
	}
	p.wantExit(0, "detach", "v0")
}

// TestLiveCgroupSockets checks which packets have a cgroup at the egress of an interface: those of sockets,
// also SYN-ACKs by their listener; but neither those that a container sent through a veth pair and that are
// forwarded, nor the last ACK of a connection in TIME_WAIT.
func TestLiveCgroupSockets(t *testing.T) {
	p := newPair(t)
	c := newCgroup(t)
	a := c.add("a")
	// A container behind the namespace near, which forwards its packets to far.
	inner := nettest.New(t)
	p.near.VethNamed("c0", inner, "v0")
	p.near.Run("bash", "-ec",
		"ip addr flush dev c0; ip addr add 198.51.100.1/24 dev c0; echo 1 >/proc/sys/net/ipv4/ip_forward")
	inner.Run("bash", "-ec",
		`ip addr flush dev v0; ip addr add 198.51.100.2/24 dev v0
ip neigh add 198.51.100.1 lladdr 02:00:00:00:00:01 dev v0 nud permanent # the device has no ARP
ip route add default via 198.51.100.1`)
	policy := writePolicy(t, fmt.Sprintf(
		`classes:
  - {name: a, match: {cgroup: %s, proto: udp}}
  - {name: rest, match: {proto: udp}}
  - {name: own syn-ack, match: {cgroup: %[1]s, tcp-flags: syn+ack}}
  - {name: other syn-ack, match: {tcp-flags: syn+ack}}
  - {name: own ack, match: {cgroup: %[1]s, proto: tcp}}
  - {name: other ack, match: {tcp-flags: 0/fin+rst}}
`, a))
	p.runShaper("--policy", policy)
	_, at := p.addresses(placement{"tcx", "egress"}, false)
	listenUDP(t, p.far, at)
	counted := func(what string, a, rest int64) {
		t.Helper()
		eventually(t, func() error {
			s := p.stats()
			if x, y := s.classNamed(t, "a").Packets, s.classNamed(t, "rest").Packets; x != a || y != rest {
				return fmt.Errorf("%s: %d packets of the cgroup and %d others: want %d and %d", what, x, y, a, rest)
			}
			return nil
		})
	}
	c.run(p.near, a, sends(3, at))
	counted("own socket", 3, 0)
	c.run(inner, a, sends(4, at))
	counted("forwarded from a container", 3, 4)

	// The server closes first, so its side sends a SYN-ACK, a FIN and, in TIME_WAIT, the ACK of the
	// client's FIN.
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("TCP needs python3: apt-get install python3")
	}
	// The FINs of both sides may cross: then there is no TIME_WAIT without a socket.
	eventually(t, func() error {
		done := make(chan struct{})
		go func() {
			defer close(done)
			p.far.Run("python3", "-c", closingClient)
		}()
		c.run(p.near, a, "exec python3 -c '"+closingServer+"'")
		<-done
		s := p.stats()
		own, last := s.classNamed(t, "own syn-ack").Packets, s.classNamed(t, "other ack").Packets
		if other := s.classNamed(t, "other syn-ack").Packets; own == 0 || other > 0 || last == 0 {
			return fmt.Errorf("%d SYN-ACKs of the cgroup and %d others, %d ACKs in TIME_WAIT", own, other, last)
		}
		return nil
	})
}

// A server that closes its first connection at once, and its client, which then closes.
const (
	closingServer = `
import socket
s = socket.create_server(("10.0.0.1", 5001))
s.accept()[0].close()
`
	closingClient = `
import socket, time
for i in range(600):
    try:
        s = socket.create_connection(("10.0.0.1", 5001))
        break
    except ConnectionRefusedError:
        time.sleep(0.1)
s.recv(1)
time.sleep(0.5)
s.close()
`
)
