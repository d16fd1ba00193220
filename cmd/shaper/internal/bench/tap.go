package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/a-seed-32e5a53f/shaper/dataplane/nettest"
)

// whileForwarding runs a program in a that creates the TAP device tap0, and far if that is tap1, while
// f runs. Meanwhile a and b have their addresses on tap0 and far.
func (w *wire) whileForwarding(
	far string, f func(pid int) (float64, error), args ...string,
) (float64, error) {
	v, err := w.whileRunning(func(pid int) (float64, error) {
		if far != "v0" {
			err := catchFailure(func() error {
				w.a.Move(far, w.b)
				return nil
			})
			if err != nil {
				return 0, err
			}
		}
		if err := w.moveAddresses("tap0", far); err != nil {
			return 0, err
		}
		return f(pid)
	}, args...)
	return v, errors.Join(err, w.moveAddresses("v0", "v0"))
}

// moveAddresses assigns the addresses of a and b to the given devices.
func (w *wire) moveAddresses(a, b string) error {
	move := func(ns *nettest.Namespace, dev, address string) error {
		return runEach(ns, "ip addr flush dev v0", "ip link set "+dev+" up",
			"ip addr add "+address+" dev "+dev, "ip neigh flush all")
	}
	return errors.Join(move(w.a, a, "10.0.0.1/24"), move(w.b, b, "10.0.0.2/24"))
}

// whileTap runs shaper tap between tap0 and v0, or between tap0 and a tap1 in b.
func (w *wire) whileTap(far, policy string, f func(pid int) (float64, error)) (float64, error) {
	path := filepath.Join(w.dir, "tap.yaml")
	if err := os.WriteFile(path, []byte(policy), 0o600); err != nil {
		return 0, err
	}
	to := "--uplink"
	if far != "v0" {
		to = "--peer"
	}
	return w.whileForwarding(far, f, w.shaper, "tap", "tap0", to, far, "--policy", path)
}

// whileRelay runs a plain loop between tap0 and a tap1 in b.
func (w *wire) whileRelay(f func(pid int) (float64, error)) (float64, error) {
	exe, err := os.Executable()
	if err != nil {
		return 0, err
	}
	return w.whileForwarding("tap1", f, exe, "-relay")
}

// relayFrames is the plain loop. It moves frames between tap0 and tap1, one at a time, until the
// process ends.
func relayFrames() error {
	var devices [2]*os.File
	for i := range devices {
		name := fmt.Sprintf("tap%d", i)
		fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
		if err != nil {
			return err
		}
		request, err := unix.NewIfreq(name)
		if err != nil {
			return err
		}
		request.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI)
		if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, request); err != nil {
			return err
		}
		devices[i] = os.NewFile(uintptr(fd), name)
	}
	errs := make(chan error)
	pass := func(from, to *os.File) {
		buf := make([]byte, 1<<16)
		for {
			n, err := from.Read(buf)
			if err != nil {
				errs <- err
				return
			}
			to.Write(buf[:n]) // rejected frames are lost
		}
	}
	go pass(devices[0], devices[1])
	go pass(devices[1], devices[0])
	fmt.Println("tap0 and tap1")
	return <-errs
}

const (
	floodSize  = 64 // payload, bytes
	floodBatch = 64 // packets per system call
	floodPort  = 9  // first port
	floodTime  = time.Second
)

// floodTAP sends UDP to b as fast as possible, alternating several flows. It returns the time and
// a process's CPU time per packet that reached b's sockets, in ns. The sockets are full and not
// read, so two cores suffice: one for the sender, one for the process.
func (w *wire) floodTAP(pid, flows int) (elapsed, cpu float64, err error) {
	for i := range flows {
		fd, err := openUDP(w.b)
		if err != nil {
			return 0, 0, err
		}
		defer unix.Close(fd)
		err = errors.Join(unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 0),
			unix.Bind(fd, &unix.SockaddrInet4{Port: floodPort + i}))
		if err != nil {
			return 0, 0, err
		}
	}
	out, err := openUDP(w.a)
	if err != nil {
		return 0, 0, err
	}
	defer unix.Close(out)
	var stop atomic.Bool
	done := make(chan error)
	go func() { done <- sendAll(out, flows, &stop) }()
	defer func() {
		stop.Store(true)
		err = errors.Join(err, <-done)
	}()
	time.Sleep(200 * time.Millisecond)
	packets, used, begin := int64(0), time.Duration(0), time.Now()
	for _, sign := range []int64{-1, 1} {
		n, err := w.rejectedPackets()
		if err != nil {
			return 0, 0, err
		}
		t, err := processTime(pid)
		if err != nil {
			return 0, 0, err
		}
		packets, used = packets+sign*n, used+time.Duration(sign)*t
		if sign < 0 {
			begin = time.Now()
			time.Sleep(floodTime)
		} else {
			elapsed = float64(time.Since(begin))
		}
	}
	if packets < 1000 {
		return 0, 0, fmt.Errorf("%d packets arrived", packets)
	}
	return elapsed / float64(packets), float64(used) / float64(packets), nil
}

// sendAll sends until it is stopped.
func sendAll(fd, flows int, stop *atomic.Bool) error {
	var messages [floodBatch]unix.Mmsghdr
	var to [floodBatch]unix.RawSockaddrInet4
	payload := make([]byte, floodSize)
	buffer := unix.Iovec{Base: &payload[0], Len: floodSize}
	for i := range messages {
		port := floodPort + uint16(i%flows)
		to[i] = unix.RawSockaddrInet4{
			Family: unix.AF_INET, Port: port<<8 | port>>8, Addr: [4]byte{10, 0, 0, 2},
		}
		messages[i].Hdr = unix.Msghdr{
			Name: (*byte)(unsafe.Pointer(&to[i])), Namelen: unix.SizeofSockaddrInet4, Iov: &buffer, Iovlen: 1,
		}
	}
	for !stop.Load() {
		_, _, errno := unix.Syscall6(unix.SYS_SENDMMSG, uintptr(fd), uintptr(unsafe.Pointer(&messages)),
			floodBatch, 0, 0, 0)
		if errno != 0 && errno != unix.ENOBUFS {
			return fmt.Errorf("sendmmsg: %w", errno)
		}
	}
	return nil
}

// rejectedPackets returns the number of packets that arrived at full UDP sockets of b.
func (w *wire) rejectedPackets() (n int64, err error) {
	var text []byte
	err = doIn(w.b, func() (err error) {
		text, err = os.ReadFile("/proc/thread-self/net/snmp")
		return err
	})
	if err != nil {
		return 0, err
	}
	var names []string
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if fields[0] != "Udp:" {
			continue
		}
		if names == nil {
			names = fields
			continue
		}
		for i, name := range names {
			if name == "RcvbufErrors" {
				_, err := fmt.Sscan(fields[i], &n)
				return n, err
			}
		}
	}
	return 0, errors.New("/proc/net/snmp has no RcvbufErrors")
}

// processTime returns the CPU time of a process, including interrupts: a frame that it writes
// to a TAP device is received at once, in its context.
func processTime(pid int) (time.Duration, error) {
	const schedClock = 2 // CPUCLOCK_SCHED, see clock_getcpuclockid(3)
	var t unix.Timespec
	err := unix.ClockGettime(int32(^pid<<3|schedClock), &t)
	return time.Duration(t.Nano()), err
}

// ping returns the average round trip from a to b, in µs.
func (w *wire) ping() (float64, error) {
	out, err := runIn(w.a, strings.Fields("ping -q -c 100 -i 0.01 10.0.0.2")...)
	if err != nil {
		return 0, err
	}
	var least, average float64 // ms
	_, times, _ := strings.Cut(string(out), "min/avg/max/mdev = ")
	_, err = fmt.Sscanf(times, "%f/%f/", &least, &average)
	return 1000 * average, err
}

func tapFigures(get func() (*wire, error)) []figure {
	plane := func(far, policy string, f func(w *wire, pid int) (float64, error)) side {
		return onSource(get, func(w *wire) (float64, error) {
			return w.whileTap(far, policy, func(pid int) (float64, error) { return f(w, pid) })
		})
	}
	uplink := func(policy string, f func(w *wire) (float64, error)) side {
		return plane("v0", policy, func(w *wire, _ int) (float64, error) { return f(w) })
	}
	even := timeRatio(
		"TAP: UDP 1472 B through a queue of 50 Mbit/s against hand-configured HTB, p99 error of the gaps", 3,
		1.3,
		uplink(queuedPolicy(evenRate, "l2"), gapsFigure(spread)), handMade(get, evenRate, gapsFigure(spread)))
	even.each = " µs"
	uneven := amount("TAP: UDP 1472 B through a queue of 50 Mbit/s, standard deviation of the gaps; other: hand-configured HTB",
		30, 15, " µs",
		uplink(queuedPolicy(evenRate, "l2"), gapsFigure(deviation)),
		handMade(get, evenRate, gapsFigure(deviation)))
	figures := append([]figure{even, uneven}, rateFigures("TAP", get, uplink)...)
	roundTrip := timeRatio("TAP to TAP: ping every 10 ms against a plain loop in Go, average", 1.2, 1.05,
		plane("tap1", unlimitedPolicy, func(w *wire, _ int) (float64, error) { return w.ping() }),
		onSource(get, func(w *wire) (float64, error) {
			return w.whileRelay(func(int) (float64, error) { return w.ping() })
		}))
	roundTrip.each = " µs"
	figures = append(figures, roundTrip)
	for _, m := range []struct {
		flows int
		name  string
	}{{1, "one flow"}, {16, "16 flows alternating"}} {
		flood := func(cpu bool) func(w *wire, pid int) (float64, error) {
			return func(w *wire, pid int) (float64, error) {
				elapsed, used, err := w.floodTAP(pid, m.flows)
				if cpu {
					return used, err
				}
				return elapsed, err
			}
		}
		for _, cpu := range []bool{false, true} {
			what := "packets/s"
			if cpu {
				what = "packets per CPU time of the process"
			}
			figures = append(figures, speedRatio(
				"TAP to TAP: 64 B UDP, "+m.name+", against a plain loop in Go: "+what, 2, 4,
				plane("tap1", unlimitedPolicy, flood(cpu)),
				onSource(get, func(w *wire) (float64, error) {
					return w.whileRelay(func(pid int) (float64, error) { return flood(cpu)(w, pid) })
				})))
		}
	}
	gigabits := func(w *wire) (float64, error) {
		ns, err := w.iperf()
		return 8 / ns, err
	}
	tcp := amount("TAP to TAP: TCP with offloads; other: bare veth", 3, noAim, " Gbit/s",
		plane("tap1", unlimitedPolicy, func(w *wire, _ int) (float64, error) { return gigabits(w) }),
		onSource(get, gigabits))
	tcp.more = true
	return append(figures, tcp)
}

// wheelFigures has figures of a Go benchmark in the tree.
func wheelFigures() []figure {
	bench := func(pattern, unit string) side {
		return func() (float64, error) {
			metrics, err := goBench("dataplane/tap", "^BenchmarkWheel$/^"+pattern+"$")
			return metrics[unit], err
		}
	}
	var figures []figure
	for _, p := range []struct{ name, pattern string }{
		{"of one queue", "one_queue"},
		{"of 1,000 queues", "1000_queues"},
		{"at random within a second", "uniform_over_1s"},
	} {
		figures = append(figures, amount("wheel: 100,000 waiting "+p.name+", add and take one", 100, 50,
			" ns", bench(p.pattern, "ns/op"), nil))
	}
	return append(figures,
		amount("the same: allocations", 0, noAim, "", bench("uniform_over_1s", "allocs/op"), nil))
}
