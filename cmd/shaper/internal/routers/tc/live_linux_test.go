package tc

import (
	"bytes"
	"math"
	"math/rand/v2"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/routers"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/dataplane/nettest"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// tcNamespace returns a namespace with the interface v0, and a function that runs a script there
// with the real tc.
func tcNamespace(t *testing.T) (*nettest.Namespace, func(script string) error) {
	t.Helper()
	if _, err := exec.LookPath("tc"); err != nil {
		t.Skip("tc is missing: install iproute2")
	}
	n, other := nettest.New(t), nettest.New(t)
	n.Veth(other)
	return n, func(script string) (err error) {
		n.Do(func() {
			cmd := exec.Command("tc", "-batch", "-")
			cmd.Stdin = strings.NewReader(regexp.MustCompile(`(?m)^tc `).ReplaceAllString(script, ""))
			var out bytes.Buffer
			cmd.Stderr = &out
			if err = cmd.Run(); err != nil {
				err = &tcError{err, out.String()}
			}
		})
		return err
	}
}

type tcError struct {
	error
	text string
}

func (e *tcError) Error() string { return e.error.Error() + ": " + e.text }

// liveText returns the configuration of v0.
func liveText(t *testing.T, n *nettest.Namespace) string {
	t.Helper()
	var s routers.Source
	var err error
	n.Do(func() { s, err = Dialect{}.Live("v0") })
	if err != nil {
		t.Fatal(err)
	}
	return s.Text
}

// TestTCLive exports random policies, runs the scripts with the real tc, and imports the interface:
// the policy must be the same.
func TestTCLive(t *testing.T) {
	_, run := tcNamespace(t)
	probe := `tc qdisc add dev v0 root handle 1: htb
tc filter add dev v0 parent 1: protocol ip flower ip_proto tcp dst_port 1 action police rate 8kbit burst 1k pipe action pedit ex munge ip dsfield set 4 retain 0xfc pipe action csum ip4h pipe action skbedit mark 1 pipe action drop
tc class add dev v0 parent 1: classid 1:1 htb rate 8bit quantum 1514
tc qdisc add dev v0 parent 1:1 fq_codel
tc qdisc replace dev v0 parent 1:1 codel
`
	r := random{live: true, plain: run(probe) != nil}
	const rounds = 60
	done := 0
	for seed := range uint64(rounds) {
		r.Rand = rand.New(rand.NewPCG(seed, 2))
		p := r.policy()
		if _, err := compiled.Compile(p); err != nil || mergeable(p) {
			continue
		}
		if e := (Dialect{}).Export(p, "v0"); len(e.Problems) == 0 {
			done++
			// A namespace of its own, because police actions outlive their filters for a moment.
			t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) { testTCLive(t, p, e.Text) })
		}
	}
	if done < rounds/5 {
		t.Errorf("only %d of %d policies were tested", done, rounds)
	}
	t.Logf("%d of %d policies, without police, flower and CoDel: %v", done, rounds, r.plain)
}

// testTCLive runs the script of a policy and imports the interface.
func testTCLive(t *testing.T, p *dataplane.Policy, script string) {
	n, run := tcNamespace(t)
	if err := run(script); err != nil {
		t.Fatalf("%v\n%s", err, script)
	}
	text := liveText(t, n)
	roundCoDel(p)
	if strings.Contains(script, "# guarantee") { // the kernel has no comments
		script = regexp.MustCompile("(?m)^# guarantee.*\n").ReplaceAllString(script, "")
		file, live := withoutNames(reimport(t, script, "v0")), withoutNames(reimport(t, text, "v0"))
		if file != live {
			t.Errorf("the interface was imported with other lines: %s\n%s", otherLines(file, live), text)
		}
		return
	}
	got, want := withoutNames(reimport(t, text, "v0")), ""
	for _, old := range []bool{false, true} {
		if want = withoutNames(canonical(roundBursts(p, old))); got == want {
			return
		}
	}
	t.Fatalf("the policy was imported with other lines: %s\nexported:\n%s\nlive:\n%s", otherLines(want, got),
		script, text)
}

// mergeable reports whether two classes in a row have no meter and the same action, so that without
// names they may be one class.
func mergeable(p *dataplane.Policy) bool {
	for i := range p.Classes[1:] {
		a, b := p.Classes[i], p.Classes[i+1]
		x, y := a.Action(0), b.Action(0)
		if a.Meter == nil && b.Meter == nil && x.Drop == y.Drop && x.Queue == y.Queue &&
			slices.Equal(x.Marks, y.Marks) || a.Meter != nil && a.Meter == b.Meter {
			return true
		}
	}
	return false
}

// roundBursts returns the policy with the bursts that tc stores, in the arithmetic of its
// tc_calc_xmittime: ticks of 64 ns, rounded up; before iproute2 6.15 (commit d947f365) those of whole
// microseconds, rounded down.
func roundBursts(p *dataplane.Policy, old bool) *dataplane.Policy {
	burst := func(rate meter.Rate, size int64) int64 {
		n, _ := rate.Burst(time.Second)
		us := 1e6 * (float64(size) / float64(n))
		ticks := math.Ceil(us * (1000. / 64))
		if old {
			ticks = math.Floor(math.Floor(us) * (1000. / 64))
		}
		bytes, _ := rate.Burst(time.Duration(ticks) * 64)
		return bytes
	}
	q := *p
	q.Classes = slices.Clone(p.Classes)
	done := map[*dataplane.Meter]*dataplane.Meter{}
	for i := range q.Classes {
		m := q.Classes[i].Meter
		if m == nil {
			continue
		}
		if done[m] == nil {
			c := *m
			switch params := m.Params.(type) {
			case meter.TokenBucket:
				params.Burst = burst(params.Rate, params.Burst)
				c.Params = params
			case meter.TRTCM:
				params.CBS, params.PBS = burst(params.CIR, params.CBS), burst(params.PIR, params.PBS)
				c.Params = params
			case meter.TRTCM4115:
				params.CBS, params.EBS = burst(params.CIR, params.CBS), burst(params.EIR, params.EBS)
				c.Params = params
			}
			done[m] = &c
		}
		q.Classes[i].Meter = done[m]
	}
	return &q
}

// roundCoDel rounds CoDel's times as the kernel does: it counts in units of 1024 ns, and prints µs.
func roundCoDel(p *dataplane.Policy) {
	round := func(d *time.Duration) { *d = (*d >> 10 << 10).Truncate(time.Microsecond) }
	done := map[*dataplane.Queue]bool{}
	for _, c := range p.Classes {
		for _, a := range []*dataplane.Action{c.Green, c.Yellow, c.Red} {
			if a != nil && a.Queue != nil && !done[a.Queue] && a.Queue.CoDel != (queue.CoDel{}) {
				done[a.Queue] = true
				round(&a.Queue.CoDel.Target)
				round(&a.Queue.CoDel.Interval)
			}
		}
	}
}

// TestTCLiveScripts imports scripts of people as a file and from the interface that they made: the
// policies are the same.
func TestTCLiveScripts(t *testing.T) {
	for name, script := range map[string]string{
		"v0": `tc qdisc add dev v0 root handle 1: stab overhead -14 linklayer ethernet htb default 0x30 r2q 5
tc class add dev v0 parent 1: classid 1:1 htb rate 10mbit
tc class add dev v0 parent 1:1 classid 1:10 htb rate 625kbps ceil 10mbit burst 15k
tc class add dev v0 parent 1:1 classid 1:20 htb rate 3mbit ceil 10mbit
tc class add dev v0 parent 1:1 classid 1:30 htb rate 2mbit ceil 10mbit
tc qdisc add dev v0 parent 1:10 handle 10: bfifo limit 64kb
tc qdisc add dev v0 parent 1:20 handle 20: pfifo limit 77
tc qdisc add dev v0 parent 1:30 handle 30: pfifo limit 1000
tc filter add dev v0 parent 1: protocol ip u32 match ip tos 0x10 0xfc flowid 1:20
tc filter add dev v0 parent 1: protocol ipv6 u32 match ip6 src 2001:db8::/33 match ip6 priority 0x20 0xe0 flowid 1:
tc filter add dev v0 parent 1: protocol ip u32 match ip dport 22 0xffff match ip protocol 6 0xff flowid 1:10
tc filter add dev v0 parent 1: protocol ip pref 7 u32 match ip dst 192.0.2.0/25 match ip sport 0x1000 0xf000 flowid 1:99
`,
		"v0-ingress": `tc qdisc add dev v0 clsact
tc filter add dev v0 ingress protocol arp pref 2 u32 match u32 0 0 flowid :1
tc filter add dev v0 ingress protocol ip pref 1 u32 match udp dst 53 0xffff match ip src 10.0.0.0/8 flowid :1
`,
	} {
		n, run := tcNamespace(t)
		if err := run(script); err != nil {
			t.Fatal(err)
		}
		text := liveText(t, n)
		if file, live := withoutNames(reimport(t, script, name)),
			withoutNames(reimport(t, text, name)); file != live {
			t.Errorf("the interface was imported with other lines: %s\n%s", otherLines(file, live), text)
		}
	}
}

// TestTCLiveNamed checks that parts of an interface that import does not know are named.
func TestTCLiveNamed(t *testing.T) {
	const htb = "tc qdisc add dev v0 root handle 1: htb\n"
	for script, want := range map[string]string{
		htb + "tc filter add dev v0 parent 1: pref 5 handle 2: protocol ip u32 divisor 256\n" +
			"tc filter add dev v0 parent 1: pref 5 protocol ip u32 ht 2:7 match ip src 10.0.0.7 flowid 1:\n": "hash tables",
		htb + "tc filter add dev v0 parent 1: pref 5 handle 2: protocol ip u32 divisor 256\n" +
			"tc filter add dev v0 parent 1: pref 5 protocol ip u32 ht 800:: match ip src 10.0.0.0/8 hashkey mask 0xff at 12 link 2:\n": "hash tables",
		htb + "tc filter add dev v0 parent 1: pref 5 protocol all u32 match ip dst 10.0.0.0/8 flowid 1:\n":                 "protocol ip or ipv6",
		htb + "tc filter add dev v0 parent 1: pref 5 protocol ip u32 match u32 0 0 action mirred egress redirect dev v0\n": "redirection to v0",
	} {
		n, run := tcNamespace(t)
		if err := run(script); err != nil {
			t.Fatal(err)
		}
		text := liveText(t, n)
		in, err := Dialect{}.Import(routers.Source{Text: text})
		if err != nil {
			t.Fatal(err)
		}
		if _, problems, err := in.Pick("v0"); err != nil || len(problems) != 1 ||
			!strings.Contains(problems[0].Reason, want) {
			t.Errorf("%s: problems %v, error %v; want one with %q", text, problems, err, want)
		}
	}
}
