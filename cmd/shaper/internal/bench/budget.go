package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/a-seed-32e5a53f/shaper/dataplane/nettest"
)

// A budget of two interfaces, in both directions. Its burst is not full when the senders begin,
// and does not become full if the machine stalls.
const (
	sharedRate   = 20_000_000 // bytes per second
	sharedBurst  = 40_000_000
	sharedFrame  = 1000 // metered length, bytes
	sharedPolicy = `classes: [{name: all, match: {proto: 253}, meter: {type: token-bucket, rate: 160mbit, burst: 40MB, initial: 50%, share: {budget: bench, store: host}}}]`
)

// A budget on a server with one host.
const (
	lostRescue = 2_000_000 // rate without the server, bytes per second
	lostPolicy = `classes: [{name: all, match: {proto: 253}, meter: {type: token-bucket, rate: 160mbit, burst: 100kB, share: {budget: bench, store: "unix://%s", rescue: 10%%}}}]`
)

func budgetFigures(get func() (*wire, error)) []figure {
	lost := amount("kernel: server of a budget killed for 30 s under full load, bytes off the rescue share",
		1, noAim, " %",
		onSource(get, func(w *wire) (float64, error) { return w.lostServerError(30 * time.Second) }), nil)
	lost.most = 1
	return []figure{lost, amount("kernel: two interfaces of one host, both directions, one budget: packets off burst + rate * t, of 40,000",
		40, 1, "",
		onSource(get, func(w *wire) (float64, error) { return w.budgetError(time.Second) }), nil)}
}

// budgetError runs four shapers, each in its own process, which meter the packets of four senders.
// It returns the number of packets passed beyond the budget.
func (w *wire) budgetError(d time.Duration) (beside float64, err error) {
	path := filepath.Join(w.dir, "budget.yaml")
	if err := os.WriteFile(path, []byte(sharedPolicy), 0o600); err != nil {
		return 0, err
	}
	err = catchFailure(func() error {
		w.a.VethNamed("v1", w.b, "v1")
		return nil
	})
	if err != nil {
		return 0, err
	}
	defer func() {
		err = errors.Join(err, runEach(w.a, w.shaper+" detach --all"), runEach(w.a, "ip link del v1"))
	}()
	var senders []int
	for _, dev := range []string{"v0", "v1"} {
		for _, direction := range []string{"egress", "ingress"} {
			if _, err := runIn(w.a, w.shaper, "run", dev, "--direction", direction, "--policy", path,
				"--background"); err != nil {
				return 0, err
			}
			ns := map[string]*nettest.Namespace{"egress": w.a, "ingress": w.b}[direction]
			fd, err := sendFrames(ns, dev)
			if err != nil {
				return 0, err
			}
			defer unix.Close(fd)
			senders = append(senders, fd)
		}
	}
	at, err := fillBudget(senders, d)
	if err != nil {
		return 0, err
	}
	passed, err := w.passedBytes()
	if err != nil {
		return 0, err
	}
	allowed := func(ns int64) float64 { return sharedBurst/2 + sharedRate*float64(ns)/1e9 }
	if most := allowed(at[3] - at[0]); float64(passed) > most {
		return 0, fmt.Errorf("%d bytes passed, more than %.0f", passed, most)
	}
	return max(allowed(at[2]-at[1])-float64(passed), 0) / sharedFrame, nil
}

// passedBytes returns the bytes passed by the first classes of all shapers.
func (w *wire) passedBytes() (bytes int64, err error) {
	out, err := runIn(w.a, w.shaper, "stats", "--json")
	for line := range strings.Lines(string(out)) {
		var s struct {
			Classes []struct{ Green struct{ Bytes int64 } }
		}
		if err := json.Unmarshal([]byte(line), &s); err != nil {
			return 0, err
		}
		bytes += s.Classes[0].Green.Bytes
	}
	return bytes, err
}

// lostServerError kills the server of a budget and then offers twice the rescue share. It returns
// the bytes passed beyond the rescue share, in percent.
func (w *wire) lostServerError(d time.Duration) (percent float64, err error) {
	socket := filepath.Join(w.dir, "store")
	client, kill, err := startServer("redis-server", "--unixsocket", socket)
	if err != nil {
		return 0, err
	}
	defer client.Close()
	defer kill()
	path := filepath.Join(w.dir, "lost.yaml")
	if err := os.WriteFile(path, fmt.Appendf(nil, lostPolicy, socket), 0o600); err != nil {
		return 0, err
	}
	run := exec.Command(w.shaper, "run", "v0", "--policy", path)
	said, err := run.StderrPipe()
	if err != nil {
		return 0, err
	}
	if err := startIn(w.a, run); err != nil {
		return 0, err
	}
	defer func() {
		_ = run.Process.Signal(os.Interrupt)
		err = errors.Join(err, run.Wait())
	}()
	lines := bufio.NewScanner(said)
	await := func(what string) error {
		for lines.Scan() {
			if strings.Contains(lines.Text(), what) {
				return nil
			}
		}
		return fmt.Errorf("shaper run does not say %q", what)
	}
	if err := await("160 Mbit/s of 160 Mbit/s"); err != nil {
		return 0, err
	}
	fd, err := sendFrames(w.a, "v0")
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	var stop atomic.Bool
	done := make(chan error)
	go func() {
		var err error
		for next := monotonic(); !stop.Load() && err == nil; next += 2_000_000 {
			err = floodBudget(fd, 2*lostRescue/500/sharedFrame)
			time.Sleep(time.Duration(next - monotonic()))
		}
		done <- err
	}()
	defer func() {
		stop.Store(true)
		err = errors.Join(err, <-done)
	}()
	kill()
	if err := await("limited to the rescue share"); err != nil {
		return 0, err
	}
	go func() { _, _ = io.Copy(io.Discard, said) }()
	time.Sleep(time.Second) // until the rest of the burst is used
	var passed, at [2]float64
	for i := range passed {
		before := monotonic()
		bytes, err := w.passedBytes()
		if err != nil {
			return 0, err
		}
		passed[i], at[i] = float64(bytes), float64(before+monotonic())/2
		if i == 0 {
			time.Sleep(d)
		}
	}
	return 100 * math.Abs((passed[1]-passed[0])/(lostRescue*(at[1]-at[0])/1e9)-1), nil
}

// floodBudget sends n frames for the policies to meter.
func floodBudget(fd, n int) error {
	frame := make([]byte, 14+sharedFrame)
	copy(frame, []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 1, 8, 0})
	copy(frame[14:], []byte{
		0x45, 0, sharedFrame >> 8, sharedFrame & 0xff, 0, 1, 0, 0, 64, 253, 0, 0, 10, 0, 0, 77, 10, 0, 0, 99,
	})
	for range n {
		if _, err := unix.Write(fd, frame); err != nil && !errors.Is(err, unix.ENOBUFS) {
			return err
		}
	}
	return nil
}

// fillBudget sends a packet between the first two times and then floods for a while. Between
// the last two times it sends more packets than the bucket holds then.
func fillBudget(senders []int, d time.Duration) (at [4]int64, err error) {
	at[0] = monotonic()
	err = floodBudget(senders[0], 1)
	at[1] = monotonic()
	var stop atomic.Bool
	var all sync.WaitGroup
	errs := make([]error, len(senders))
	for i, fd := range senders {
		all.Go(func() {
			for !stop.Load() && errs[i] == nil {
				errs[i] = floodBudget(fd, 100)
			}
		})
	}
	time.Sleep(d)
	ended := monotonic()
	stop.Store(true)
	all.Wait()
	// Packets are metered a little after their arrival on the other side of a veth pair.
	time.Sleep(50 * time.Millisecond)
	at[2] = monotonic()
	err = errors.Join(err, floodBudget(senders[0], int((at[2]-ended)*sharedRate/1e9/sharedFrame)+100))
	at[3] = monotonic()
	return at, errors.Join(append(errs, err)...)
}

// sendFrames opens a socket to send from a device of a namespace.
func sendFrames(ns *nettest.Namespace, dev string) (fd int, err error) {
	err = doIn(ns, func() error {
		link, err := net.InterfaceByName(dev)
		if err != nil {
			return err
		}
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		return unix.Bind(fd, &unix.SockaddrLinklayer{Ifindex: link.Index}) // protocol 0: it receives nothing
	})
	return fd, err
}

// monotonic returns the time of the clock of eBPF programs, in ns.
func monotonic() int64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		panic(err)
	}
	return t.Nano()
}
