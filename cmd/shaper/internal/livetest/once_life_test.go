package livetest

import (
	"fmt"
	"strings"
	"testing"
)

// TestLiveOnceLife checks that packets are charged at egress while ingress has no user, and once while
// it has one, whichever user begins, is reloaded or is killed first.
func TestLiveOnceLife(t *testing.T) {
	skipInVM(t)
	p := newOnceRouter(t)
	const n, bytes = 20, 20 * onceLength
	total := int64(0)
	send := func(what string, charges int64) {
		t.Helper()
		p.datagrams(p.far, p.other, "10.2.0.2", n)
		total += charges * bytes
		p.wantCharged(what, "v1", "egress", total)
	}
	p.user("v1", "egress")
	send("egress alone", 1)
	in := p.user("v0", "ingress")
	send("both", 1)
	in.stopBySIGTERM()
	send("ingress has gone", 1)
	in = p.user("v0", "ingress")
	send("ingress is back", 1)
	in.killWithGuard()
	eventually(t, func() error { // the kernel frees programs with a delay
		if s := p.statsList(); len(s) != 1 {
			return fmt.Errorf("stats are %+v: want only v1", s)
		}
		return nil
	})
	send("ingress was killed", 1)
	p.user("v0", "ingress")
	send("ingress is back again", 1)
	p.wantExit(0, "reload", "v1", "--policy", oncePolicy(t, "count: each"))
	send("egress counts each", 2)
	p.wantExit(0, "reload", "v1", "--policy", oncePolicy(t, "count: once"))
	send("egress counts once again", 1)
	p.wantExit(0, "reload", "v0", "--meter", unlimitedMeter)
	send("ingress has another policy", 1)
}

// TestLiveOnceColor checks that a packet has the color of its charge at the second user.
func TestLiveOnceColor(t *testing.T) {
	skipInVM(t)
	p := newOnceRouter(t)
	const n, green = 50, 10
	text := fmt.Sprintf(`classes:
  - name: all
    meter: {type: srtcm, cir: 1bit, cbs: %d, ebs: %d, share: {budget: uplinks, store: host, count: once}}
    yellow: %%s
    red: pass
`, green*onceLength+100, 20*onceLength)
	p.runOn("v0", writePolicy(t, fmt.Sprintf(text, "pass")), "--direction", "ingress")
	p.runOn("v1", writePolicy(t, fmt.Sprintf(text, "pass")), "--direction", "egress")
	p.datagrams(p.far, p.other, "10.2.0.2", n)
	for _, at := range [][2]string{{"v0", "ingress"}, {"v1", "egress"}} {
		s := p.stats(at[0], "--direction", at[1])
		c := s.classNamed(t, "all")
		if c.Green.Packets != green || c.Yellow.Packets != 20 || c.Red.Packets != n-green-20 {
			t.Errorf("%v: %d green, %d yellow, %d red: want %d, 20, %d", at, c.Green.Packets, c.Yellow.Packets,
				c.Red.Packets, green, n-green-20)
		}
	}
}

// TestLiveOnceQueueDrops checks that the second user does not give back the tokens of a packet that its
// queue drops: they are those of the first one.
func TestLiveOnceQueueDrops(t *testing.T) {
	skipInVM(t)
	if !haveQdisc(t, "htb") {
		t.Skip("this kernel has no htb qdisc")
	}
	p := newOnceRouter(t)
	p.user("v0", "ingress")
	p.runOn("v1", writePolicy(t, fmt.Sprintf(`classes:
  - name: all
    meter: {type: token-bucket, rate: 1bit, burst: %d, share: {budget: uplinks, store: host, count: once}}
    green: {queue: q}
queues:
  q: {rate: 8kbit, limit: 2p, fair: false}
`, onceBurst)), "--direction", "egress", "--pacer", "htb")
	const n = 20
	p.arrives(p.near, n, p.sender(p.far, "10.1.0.1")) // waits for no queue
	p.wantCharged("for this host", "v0", "ingress", n*onceLength)
	send := p.sender(p.far, "10.2.0.2")
	for range n {
		if err := send(); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, func() error {
		if s := p.stats("v1"); s.classNamed(t, "all").Packets != n {
			return fmt.Errorf("v1 has %+v: want %d packets", s.Classes, n)
		}
		return nil
	})
	s := p.stats("v1")
	if c := s.classNamed(t, "all"); c.Dropped.Packets < n/2 {
		t.Errorf("the queue dropped %d of %d packets", c.Dropped.Packets, n)
	}
	p.wantCharged("dropped by the queue", "v0", "ingress", 2*n*onceLength)
}

// TestLiveOnceRefused checks that planes which cannot charge a packet once say why.
func TestLiveOnceRefused(t *testing.T) {
	skipInVM(t)
	p := newOnceRouter(t)
	policy := oncePolicy(t, "count: once")
	p.wantError(2, `\S+:3:\d+: count once needs the note of a charge on the packet, which XDP programs cannot write: use --hook tc`,
		"run", "v0", "--policy", policy, "--direction", "ingress", "--hook", "xdp")
	p.wantError(2, `\S+:3:\d+: count once needs the note of a charge on the packet, which does not reach user space: leave it out here, or meter in the kernel`,
		"tap", "t7", "--peer", "t8", "--policy", policy)
}

// TestLiveOnceWarnings checks that run, status and check warn about users that charge a forwarded packet
// twice, with the remedy, and only while the host forwards.
func TestLiveOnceWarnings(t *testing.T) {
	skipInVM(t)
	p := newOnceRouter(t)
	each, once := oncePolicy(t, "count: each"), oncePolicy(t, "count: once")
	const twice = "budget uplinks charges a packet twice that is forwarded from v0 to v1: "
	want := func(what, remedy string) {
		t.Helper()
		status, _ := p.wantExit(0, "status", "v1")
		stated := "warning " + twice + remedy
		if got := strings.Join(strings.Fields(status), " "); strings.Contains(got, stated) != (remedy != "") ||
			remedy == "" && strings.Contains(got, "charges") {
			t.Errorf("%s: status prints %s", what, status)
		}
		checked, _ := p.wantExit(0, "check", each)
		if got := strings.Contains(checked, ":3:78: warning: "+twice+remedy+"\n"); got != (remedy != "") {
			t.Errorf("%s: check prints %s", what, checked)
		}
		if checked, _ = p.wantExit(0, "check", once); strings.Contains(checked, "uplinks charges a packet twice") {
			t.Errorf("%s: check of the remedy prints %s", what, checked)
		}
	}
	first := p.runOn("v0", each, "--both")
	second := p.runOn("v1", each, "--both")
	want("both", "write count: once below share: in both policies")
	second.err.awaitMatch(t, `v1 egress: warning: `+twice+`write count: once below share: in both policies\n`)
	if said := first.err.unfiltered(); strings.Contains(said, "twice") {
		t.Errorf("v0 alone: %s", said)
	}
	p.sh(p.near, "sysctl -qw net.ipv4.ip_forward=0")
	want("a host that does not forward", "")
	p.bridge()
	want("a bridge", "write count: once below share: in both policies")
	p.sh(p.near, "ip link set v1 nomaster")
	want("a bridge of one port", "")
	p.sh(p.near, "sysctl -qw net.ipv6.conf.all.forwarding=1")
	want("IPv6", "write count: once below share: in both policies")
	p.wantExit(0, "reload", "v0", "--policy", once, "--direction", "ingress")
	want("ingress once", "write count: once below share: in the policy of v1 egress")
	p.wantExit(0, "reload", "v1", "--policy", once, "--direction", "egress")
	status, _ := p.wantExit(0, "status", "v1")
	if !strings.Contains(strings.Join(strings.Fields(status), " "), "forwarded from v1 to v0: write") {
		t.Errorf("one way: status prints %s", status)
	}
	p.wantExit(0, "reload", "v0", "--policy", once)
	p.wantExit(0, "reload", "v1", "--policy", once)
	want("once", "")
}
