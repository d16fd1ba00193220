package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// A budget of two interfaces, in both directions. Its burst is neither full when the
// senders begin nor if the machine stalls.
const (
	sharedRate   = 20_000_000 // bytes per second
	sharedBurst  = 40_000_000
	sharedFrame  = 1000 // metered
	sharedPolicy = `classes: [{name: all, match: {proto: 253}, meter: {type: token-bucket, rate: 160mbit, burst: 40MB, initial: 50%, share: {budget: bench, store: host}}}]`
)

func budgetFigures(get func() (*wire, error)) []figure {
	return []figure{amount("kernel: two interfaces of one host, both directions, one budget: packets beside burst + rate * t, of 40,000", 40, 1, "", func() (float64, error) {
		w, err := get()
		if err != nil {
			return 0, err
		}
		return w.budget(time.Second)
	}, nil)}
}

// budget has four shapers, each with a process of its own, pass what four senders
// offer, and returns how many packets that is beside what their budget allows.
func (w *wire) budget(d time.Duration) (beside float64, err error) {
	path := filepath.Join(w.dir, "budget.yaml")
	if err := os.WriteFile(path, []byte(sharedPolicy), 0o600); err != nil {
		return 0, err
	}
	for _, line := range []string{"link add v1 type veth peer name v1 netns " + w.b, "link set v1 up"} {
		if _, err := w.in(w.a, append([]string{"ip"}, strings.Fields(line)...)...); err != nil {
			return 0, err
		}
	}
	defer func() {
		_, e := w.in(w.a, w.shaper, "detach", "--all")
		_, f := w.in(w.a, "ip", "link", "del", "v1")
		err = errors.Join(err, e, f)
	}()
	if _, err := w.in(w.b, "ip", "link", "set", "v1", "up"); err != nil {
		return 0, err
	}
	var senders []int
	for _, dev := range []string{"v0", "v1"} {
		for _, direction := range []string{"egress", "ingress"} {
			if _, err := w.in(w.a, w.shaper, "run", dev, "--direction", direction, "--policy", path, "--background"); err != nil {
				return 0, err
			}
			ns := map[string]string{"egress": w.a, "ingress": w.b}[direction]
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
	out, err := w.in(w.a, w.shaper, "stats", "--json")
	if err != nil {
		return 0, err
	}
	passed := int64(0)
	for line := range strings.Lines(string(out)) {
		var s struct {
			Classes []struct{ Green struct{ Bytes int64 } }
		}
		if err := json.Unmarshal([]byte(line), &s); err != nil {
			return 0, err
		}
		passed += s.Classes[0].Green.Bytes
	}
	allowed := func(ns int64) float64 { return sharedBurst/2 + sharedRate*float64(ns)/1e9 }
	if most := allowed(at[3] - at[0]); float64(passed) > most {
		return 0, fmt.Errorf("%d bytes passed, more than %.0f", passed, most)
	}
	return max(allowed(at[2]-at[1])-float64(passed), 0) / sharedFrame, nil
}

// fillBudget sends a packet between the first two times, floods for a while, and sends
// more between the last two than the bucket holds then.
func fillBudget(senders []int, d time.Duration) (at [4]int64, err error) {
	ip := []byte{0x45, 0, sharedFrame >> 8, sharedFrame & 0xff, 0, 1, 0, 0, 64, 253, 0, 0, 10, 0, 0, 77, 10, 0, 0, 99}
	frame := make([]byte, 14+sharedFrame)
	copy(frame, []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 1, 8, 0})
	copy(frame[14:], ip)
	send := func(fd, n int) error {
		for range n {
			if _, err := unix.Write(fd, frame); err != nil && !errors.Is(err, unix.ENOBUFS) {
				return err
			}
		}
		return nil
	}
	at[0] = monotonic()
	err = send(senders[0], 1)
	at[1] = monotonic()
	var stop atomic.Bool
	var all sync.WaitGroup
	errs := make([]error, len(senders))
	for i, fd := range senders {
		all.Go(func() {
			for !stop.Load() && errs[i] == nil {
				errs[i] = send(fd, 100)
			}
		})
	}
	time.Sleep(d)
	ended := monotonic()
	stop.Store(true)
	all.Wait()
	// What arrives on the other side of a veth pair is metered a little later.
	time.Sleep(50 * time.Millisecond)
	at[2] = monotonic()
	err = errors.Join(err, send(senders[0], int((at[2]-ended)*sharedRate/1e9/sharedFrame)+100))
	at[3] = monotonic()
	return at, errors.Join(append(errs, err)...)
}

// sendFrames opens a socket that sends out of a device of a namespace.
func sendFrames(ns, dev string) (fd int, err error) {
	err = inside(ns, func() error {
		link, err := net.InterfaceByName(dev)
		if err != nil {
			return err
		}
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		return unix.Bind(fd, &unix.SockaddrLinklayer{Ifindex: link.Index}) // without a protocol: it receives nothing
	})
	return fd, err
}

// monotonic is the clock of the kernel's programs, ns.
func monotonic() int64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		panic(err)
	}
	return t.Nano()
}
