package livetest

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
)

// dialMetrics returns a function that connects to the metrics server of a process.
func (p *pair) dialMetrics(r *process) func() (net.Conn, error) {
	p.t.Helper()
	r.err.awaitMatch(p.t, `shaper: metrics at http://\S+/metrics\n`)
	_, address, _ := strings.Cut(r.err.String(), "http://")
	address, _, _ = strings.Cut(address, "/")
	return func() (conn net.Conn, err error) {
		p.near.Do(func() { conn, err = net.Dial("tcp", address) })
		return conn, err
	}
}

// TestLiveMetricsIdle checks that shaping, commands and metrics work although there are more
// idle connections than the process may have descriptors.
func TestLiveMetricsIdle(t *testing.T) {
	skipInVM(t)
	const limit, clients = 256, 2000
	p := newPair(t)
	path := writePolicy(t,
		"classes: [{name: a, meter: {type: srtcm, count: packets, cir: 1p/1000s, cbs: 3, ebs: 0}}]")
	cmd := p.shaperCommand("run", "v0", "--policy", path, "--metrics", ":0")
	cmd.Args = append([]string{"sh", "-c", fmt.Sprintf(`ulimit -n %d; exec "$0" "$@"`, limit)}, cmd.Args...)
	cmd.Path = "/bin/sh"
	r := p.startCommand(cmd)
	r.awaitAttached()
	connect := p.dialMetrics(r)
	for range clients {
		conn, err := connect()
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
	}
	if open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", r.cmd.Process.Pid)); err != nil ||
		len(open) > limit/2 {
		t.Errorf("%d of %d descriptors are open: %v", len(open), limit, err)
	}
	_, at := p.addresses(placements[0], false)
	in := listenUDP(t, p.far, at)
	sendUDP(t, newSender(t, p.near, at, 0, 0), 5, 100)
	if got := len(in.receiveAll()); got != 3 {
		t.Errorf("%d packets passed: want 3", got)
	}
	r.reloadBySIGHUP()
	if got := p.scrapeMetrics(r)[`shaper_dropped_packets_total{class="a",color="red",direction="egress",interface="v0",reason="color"}`]; got != 2 {
		t.Errorf("metrics count %v dropped packets: want 2", got)
	}
	if got := strings.Count(r.err.String(), "\n"); got != 1 {
		t.Errorf("stderr %q: want where the metrics are", &r.err)
	}
	r.stopBySIGTERM()
}

// expiry is the deadline of a shaper at tcx egress.
type expiry struct {
	deadline uint64 // on the monotonic clock, ns
	index    int    // interface
}

// expiryOfOnly returns the deadline of the only shaper.
func (p *pair) expiryOfOnly() (e expiry) {
	p.t.Helper()
	eventually(p.t, func() (err error) {
		var list []*kernel.Shaper
		p.near.Do(func() { list, err = kernel.List() })
		for _, sh := range list {
			defer sh.Close()
		}
		if err != nil || len(list) != 1 || list[0].Expires == 0 {
			return errors.Join(err, fmt.Errorf("%d shapers: want one with a deadline", len(list)))
		}
		e = expiry{list[0].Expires, list[0].Place.Index}
		return nil
	})
	return e
}

// detachLateness waits until a shaper is detached, and returns the time since its deadline.
func (p *pair) detachLateness(e expiry) time.Duration {
	p.t.Helper()
	var now unix.Timespec
	clock := func() int64 {
		if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
			p.t.Fatal(err)
		}
		return now.Nano()
	}
	p.near.Do(func() { // poll as often as possible, in one namespace
		for end := time.Now().Add(waitLimit); ; time.Sleep(time.Millisecond) {
			r, err := link.QueryPrograms(link.QueryOptions{Target: e.index, Attach: ebpf.AttachTCXEgress})
			if err == nil && len(r.Programs) == 0 {
				return
			}
			if err != nil || time.Now().After(end) {
				p.t.Fatalf("the shaper is still attached: %v, %v", r, err)
			}
		}
	})
	return time.Duration(clock() - int64(e.deadline)).Round(time.Millisecond)
}

// TestLiveMetricsScrapes checks that --for ends in time while many clients scrape the largest
// number of classes continuously. Some clients read nothing.
func TestLiveMetricsScrapes(t *testing.T) {
	skipInVM(t)
	p := newPair(t)
	var b strings.Builder
	b.WriteString("classes:\n")
	for i := range 1024 {
		fmt.Fprintf(&b,
			"  - {name: c%d, match: {dport: %d}, meter: {type: trtcm, cir: 1mbit, cbs: 10kB, pir: 2mbit, pbs: 20kB}}\n",
			i, 1+i)
	}
	r := p.runShaper("--policy", writePolicy(t, b.String()), "--metrics", ":0", "--for", "15s")
	begin, deadline := time.Now(), p.expiryOfOnly()
	if len(p.scrapeMetrics(r)) < 1024 {
		t.Error("a scrape before the flood is not complete")
	}
	connect := p.dialMetrics(r)
	var clients sync.WaitGroup
	var whole atomic.Int64
	for i := range 200 {
		clients.Go(func() {
			for {
				conn, err := connect()
				if err != nil {
					return // shaper has ended
				}
				_ = conn.SetDeadline(time.Now().Add(waitLimit))
				_, _ = io.WriteString(conn,
					"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
				if i%10 == 0 {
					defer conn.Close() // reads nothing
					continue
				}
				if n, err := io.Copy(io.Discard, conn); err == nil && n > 1<<20 {
					whole.Add(1)
				}
				conn.Close()
			}
		})
	}
	late := p.detachLateness(deadline)
	t.Logf("detached %v after its deadline", late)
	r.waitForExit()
	clients.Wait()
	t.Logf("ended after %v, peak memory %v MiB, %d whole scrapes", time.Since(begin),
		r.cmd.ProcessState.SysUsage().(*syscall.Rusage).Maxrss/1024, whole.Load())
	if !strings.Contains(r.out.String(), "v0 egress: detached\n") {
		t.Errorf("not detached: %.300q, stderr %.300q", &r.out, &r.err)
	}
}

// TestLiveMetricsBusy checks that a port in use causes a warning, and that the metrics are
// served once it is free. An invalid address is an error.
func TestLiveMetricsBusy(t *testing.T) {
	skipInVM(t)
	p := newPair(t)
	var listener net.Listener
	var err error
	p.near.Do(func() { listener, err = net.Listen("tcp", "127.0.0.1:9090") })
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	before := p.deviceState()
	p.wantError(2, `--metrics "9090": want an address such as 127.0.0.1:9190`, "run", "v0", "--metrics",
		"9090", "--meter", unlimitedMeter)
	p.wantState(before)
	r := p.runShaper("--metrics", ":9090", "--meter", unlimitedMeter)
	const warning = `^shaper: --metrics: listen tcp 127\.0\.0\.1:9090: bind: address already in use: shaping continues, trying again every 3s\n`
	r.err.awaitMatch(t, warning+"$")
	listener.Close()
	r.err.awaitMatch(t, warning+`shaper: metrics at http://127\.0\.0\.1:9090/metrics\n$`)
	if got := p.scrapeMetrics(r)[`shaper_attached{direction="egress",interface="v0"}`]; got != 1 {
		t.Errorf("attached is %v: want 1", got)
	}
	r.stopBySIGTERM()
}

// TestLiveMetricsState checks the metrics of a shaper that is unconfirmed, has a new policy, or
// waits for its interface.
func TestLiveMetricsState(t *testing.T) {
	skipInVM(t)
	p := newPair(t)
	r := p.runShaper("--metrics", ":0", "--policy", writePolicy(t, "classes: [{name: a}]"), "--confirm",
		"10min")
	const labels = `{direction="egress",interface="v0"}`
	want := func(attached, unconfirmed float64, class string) {
		t.Helper()
		eventually(t, func() error {
			got := p.scrapeMetrics(r)
			classes := ""
			for name := range got {
				if rest, ok := strings.CutPrefix(name, `shaper_packets_total{class="`); ok {
					classes, _, _ = strings.Cut(rest, `"`)
				}
			}
			a, e, u := got["shaper_attached"+labels], got["shaper_effective"+labels],
				got["shaper_unconfirmed"+labels]
			if a != attached || e != attached || u != unconfirmed || classes != class {
				return fmt.Errorf(
					"attached %v, effective %v, unconfirmed %v, class %q: want %v, %[5]v, %v, %q", a, e, u,
					classes, attached, unconfirmed, class)
			}
			return nil
		})
	}
	want(1, 1, "a")
	p.wantExit(0, "confirm")
	want(1, 0, "a")
	p.wantExit(0, "reload", "--policy", writePolicy(t, "classes: [{name: b}]"))
	want(1, 0, "b")
	p.near.Delete("v0")
	want(0, 0, "")
	p.near.Veth(p.far)
	want(1, 0, "b")
	r.stopBySIGTERM()
}

// TestLiveMetrics checks the numbers that Prometheus reads, and that they are served on
// loopback only.
func TestLiveMetrics(t *testing.T) {
	p := newPair(t)
	r := p.runShaper("--metrics", ":0", "--direction", "both", "--policy", writePolicy(t, `
classes:
  - name: voice
    match: {dscp: af21}
    meter: {type: srtcm, count: packets, cir: 1p/1000s, cbs: 3, ebs: 2}
    yellow: {dscp: af12}
    red: drop
  - name: strict
    match: {proto: udp}
    green: {ecn: ce, else: drop}
`))
	r.out.awaitMatch(t, "v0 ingress")
	r.err.awaitMatch(t, `^shaper: metrics at http://127\.0\.0\.1:\d+/metrics\n$`)
	_, at := p.addresses(placements[0], false)
	listenUDP(t, p.far, at)
	sendUDP(t, newSender(t, p.near, at, af21, 0), 8, 100)
	sendUDP(t, newSender(t, p.near, at, 0, 0), 2, 300)
	p.near.Inject("v0", append(taggedFrame(1)[:12:12], make([]byte, 48)...))
	got := p.scrapeMetrics(r)
	s := p.stats("--direction", "egress")
	for name, want := range map[string]float64{
		`packets_total{class="voice",color="green",`:                       3,
		`packets_total{class="voice",color="yellow",`:                      2,
		`packets_total{class="voice",color="red",`:                         3,
		`bytes_total{class="voice",color="red",`:                           300,
		`marked_packets_total{class="voice",color="yellow",`:               2,
		`dropped_packets_total{class="voice",color="red",reason="color",`:  3,
		`dropped_packets_total{class="strict",color="green",reason="ecn",`: 2,
		`dropped_bytes_total{class="strict",color="green",reason="ecn",`:   600,
		`unclassified_packets_total{`:                                      1,
		`tokens{bucket="Tc",class="voice",meter="voice",stage="0",`:        0,
		`burst{bucket="Te",class="voice",meter="voice",stage="0",`:         2,
	} {
		// Labels are in alphabetical order.
		value, ok := -1.0, false
		for full, v := range got {
			if sameMetric(full, "shaper_"+name+`direction="egress",interface="v0"}`) {
				value, ok = v, true
			}
		}
		if !ok || value != want {
			t.Errorf("%s is %v, found %v: want %v", name, value, ok, want)
		}
	}
	for name := range got { // what the policy cannot do has no metrics
		if strings.Contains(name, `marked_packets_total{class="voice",color="green"`) ||
			strings.Contains(name, `class="strict",color="yellow"`) || strings.Contains(name, `reason="codel"`) ||
			strings.Contains(name, `class="strict",color="green",`) && strings.Contains(name, `reason="color"`) {
			t.Errorf("got %s", name)
		}
	}
	found := 0
	for name, v := range got {
		if strings.HasPrefix(name, "shaper_info{") &&
			strings.Contains(name, fmt.Sprintf(`program_id="%d"`, s.ProgramID)) && v == 1 {
			found++
		}
	}
	if found != 1 {
		t.Errorf("%d times shaper_info of program %d in %v: want once", found, s.ProgramID, got)
	}
	var err error
	var conn net.Conn
	address := "10.0.0.1" +
		r.err.String()[strings.LastIndex(r.err.String(), ":"):strings.LastIndex(r.err.String(), "/")]
	p.near.Do(func() { conn, err = net.Dial("tcp", address) })
	if err == nil {
		conn.Close()
		t.Errorf("metrics are served at %s: want loopback only", address)
	}
	r.stopBySIGTERM()
}
