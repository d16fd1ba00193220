package livetest

import (
	"flag"
	"fmt"
	"math"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/tcpmodel"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"

	"github.com/a-seed-32e5a53f/shaper/dataplane/nettest"
)

// tcpCase is TCP through a policer, or with limit set, through a queue, of 50 Mbit/s.
type tcpCase struct {
	rtt    time.Duration
	burst  int64
	limit  time.Duration
	flows  int
	paced  bool
	during time.Duration // time of a run, with the start
}

const modelRate = 50_000_000 // bit/s

// pairs are ten pairs of RTT and burst: from less than a tenth to twice the rate * RTT.
var pairs = []tcpCase{
	{rtt: 5 * time.Millisecond, burst: 10_000},
	{rtt: 5 * time.Millisecond, burst: 64 << 10},
	{rtt: 10 * time.Millisecond, burst: 16 << 10},
	{rtt: 10 * time.Millisecond, burst: 128 << 10},
	{rtt: 20 * time.Millisecond, burst: 32 << 10},
	{rtt: 20 * time.Millisecond, burst: 250_000},
	{rtt: 40 * time.Millisecond, burst: 32 << 10},
	{rtt: 40 * time.Millisecond, burst: 250_000},
	{rtt: 100 * time.Millisecond, burst: 64 << 10},
	{rtt: 100 * time.Millisecond, burst: 1 << 20},
}

// queues are cases of a queue instead of a policer.
var queues = []tcpCase{
	{rtt: 20 * time.Millisecond, limit: 20 * time.Millisecond},
	{rtt: 40 * time.Millisecond, limit: 10 * time.Millisecond},
	{rtt: 40 * time.Millisecond, limit: 50 * time.Millisecond},
}

func (c tcpCase) String() string {
	what := fmt.Sprintf("burst %d", c.burst)
	if c.limit > 0 {
		what = fmt.Sprintf("queue %v", c.limit)
	}
	return fmt.Sprintf("%v %s", c.rtt, what)
}

// model returns the goodput of the model, Mbit/s.
func (c tcpCase) model(t *testing.T, control tcpmodel.Control) float64 {
	t.Helper()
	bottleneck := tcpmodel.Queue(queue.Config{Rate: meter.BitRate(modelRate), Time: c.limit})
	if c.limit == 0 {
		profile, err := meter.TokenBucket{Rate: meter.BitRate(modelRate), Burst: c.burst}.Profile()
		if err != nil {
			t.Fatal(err)
		}
		bottleneck = tcpmodel.Policer(profile)
	}
	r, err := tcpmodel.Run(tcpmodel.Path{
		RTT: c.rtt, Control: control, Paced: c.paced, Flows: c.flows, Settle: -1, Duration: c.during,
	}, bottleneck)
	if err != nil {
		t.Fatal(err)
	}
	return float64(r.Goodput) / 1e6
}

// attach creates the path with its bottleneck. The policer or queue sees the packets of another
// host, one by one.
func (c tcpCase) attach(t *testing.T) (p *tcpPath, end func()) {
	t.Helper()
	p = newTCPPath(t, true, c.rtt)
	for _, feature := range []string{"tso", "gso", "gro"} {
		p.from.Offload("v0", feature, false)
		p.to.Offload("v0", feature, false)
	}
	if c.limit == 0 {
		return p, p.runShaper("--meter",
			fmt.Sprintf("token-bucket rate=%dbit burst=%d", modelRate, c.burst)).stopBySIGTERM
	}
	policy := fmt.Sprintf(
		"classes: [{name: all, green: {queue: q}}]\nqueues: {q: {rate: %dbit, limit: %v, fair: false}}",
		modelRate, c.limit)
	return p, p.runShaper("--policy", writePolicy(t, policy)).stopBySIGTERM
}

// connect connects the sender with the receiver.
func (p *tcpPath) connect(dialer *net.Dialer) (out, in net.Conn) {
	p.t.Helper()
	var listener net.Listener
	var err error
	p.to.Do(func() { listener, err = net.Listen("tcp4", p.at.String()+":0") })
	if err != nil {
		p.t.Fatal(err)
	}
	defer listener.Close()
	p.from.Do(func() { out, err = dialer.Dial("tcp4", listener.Addr().String()) })
	if err != nil {
		p.t.Fatal(err)
	}
	if in, err = listener.Accept(); err != nil {
		out.Close()
		p.t.Fatal(err)
	}
	return out, in
}

// goodput returns the goodput of new flows, Mbit/s, and how late the delay was.
func (p *tcpPath) goodput(control tcpmodel.Control, c tcpCase) (rate float64, late time.Duration) {
	p.t.Helper()
	// The algorithm is set before the connection begins: one that begins with BBR keeps pacing.
	dialer := net.Dialer{Control: func(_, _ string, conn syscall.RawConn) error {
		var err error
		if failed := conn.Control(func(fd uintptr) {
			if err = unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION,
				control.String()); err == nil &&
				c.paced {
				err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MAX_PACING_RATE, math.MaxInt32)
			}
		}); failed != nil {
			return failed
		}
		return err
	}}
	var received atomic.Int64
	p.back.lateness() // of earlier flows
	begin := time.Now()
	for range max(1, c.flows) {
		out, in := p.connect(&dialer)
		defer out.Close()
		defer in.Close()
		go func() {
			buf := make([]byte, 1<<17)
			for err := error(nil); err == nil; _, err = out.Write(buf) {
			}
		}()
		go func() {
			buf := make([]byte, 1<<18)
			for n, err := 0, error(nil); err == nil; n, err = in.Read(buf) {
				received.Add(int64(n))
			}
		}()
	}
	time.Sleep(c.during)
	return float64(received.Load()) * 8 / 1e6 / time.Since(begin).Seconds(), p.back.lateness()
}

// quiet is the largest delay that does not count as a disturbed run.
func (c tcpCase) quiet() time.Duration { return max(time.Millisecond, c.rtt/20) }

// TestQuietTCPModel compares the model with paced TCP of this host, at ten pairs of RTT and burst and
// with queues. A run in which the delay was late does not count against the model. If the delay
// was late in all runs, the case is skipped.
func TestQuietTCPModel(t *testing.T) {
	nettest.Quiet(t)
	skipInVM(t)
	for i, c := range append(slices.Clone(pairs), queues...) {
		control := tcpmodel.Control((i + i/2) % 2)
		c.paced, c.during = true, 8*time.Second
		t.Run(strings.ReplaceAll(fmt.Sprint(control, " ", c), " ", "_"), func(t *testing.T) {
			t.Parallel()
			p, end := c.attach(t)
			defer end()
			model, judged := c.model(t, control), false
			for attempt := range 6 {
				time.Sleep(time.Duration(attempt) * time.Second)
				rate, late := p.goodput(control, c)
				t.Logf("TCP %.2f Mbit/s, model %.2f (%+.1f %%); delay late by %v", rate, model,
					100*(model/rate-1), late)
				if math.Abs(model/rate-1) <= 0.15 {
					return
				}
				judged = judged || late <= c.quiet()
			}
			if judged {
				t.Error("want the model within 15 %")
			} else {
				t.Skip("the machine is too busy: the delay was late in each run")
			}
		})
	}
}

// TestMeasureTCPModel prints the rows of the tables in docs/PLANNING.md: medians of three runs. It checks
// nothing, and runs only if -run names it.
func TestMeasureTCPModel(t *testing.T) {
	if !strings.Contains(flag.Lookup("test.run").Value.String(), "TestMeasureTCPModel") {
		t.Skip("a measurement: -run TestMeasureTCPModel -v -parallel 3 -timeout 1h")
	}
	for _, how := range []struct {
		name    string
		control tcpmodel.Control
		tcpCase
	}{
		{"cubic, paced", tcpmodel.CUBIC, tcpCase{paced: true}},
		{"cubic", tcpmodel.CUBIC, tcpCase{}},
		{"reno, paced", tcpmodel.Reno, tcpCase{paced: true}},
		{"reno", tcpmodel.Reno, tcpCase{}},
		{"4 flows of cubic, paced", tcpmodel.CUBIC, tcpCase{paced: true, flows: 4}},
	} {
		for _, c := range append(slices.Clone(pairs), queues...) {
			c.paced, c.flows, c.during = how.paced, how.flows, 12*time.Second
			t.Run("", func(t *testing.T) {
				t.Parallel()
				p, end := c.attach(t)
				defer end()
				var rates []float64
				var late time.Duration
				for range 3 {
					rate, l := p.goodput(how.control, c)
					rates, late = append(rates, rate), max(late, l)
				}
				slices.Sort(rates)
				model := c.model(t, how.control)
				t.Logf("%s | %v | %.1f | %.1f | %.2f | %.1f, delay late by %v", how.name, c, model, rates[1],
					model/rates[1], rates, late)
			})
		}
	}
}
