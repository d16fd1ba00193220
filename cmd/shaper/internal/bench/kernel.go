package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"
)

// wire is two network namespaces, a and b, joined by a veth pair v0, and the shaper command.
type wire struct {
	dir, shaper string
	a, b        string
}

func newWire(dir string) (*wire, error) {
	for _, name := range []string{"ip", "tc", "iperf3", "tcpdump"} {
		if _, err := exec.LookPath(name); err != nil {
			return nil, errors.New("apt-get install iproute2 iperf3 tcpdump")
		}
	}
	w := &wire{dir, filepath.Join(dir, "shaper-live"), nsName("a"), nsName("b")}
	if out, err := exec.Command("go", "build", "-o", w.shaper, "github.com/a-seed-32e5a53f/shaper/cmd/shaper").CombinedOutput(); err != nil {
		return nil, fmt.Errorf("go build: %w: %s", err, out)
	}
	for _, line := range []string{
		"netns add " + w.a, "netns add " + w.b,
		"-n " + w.a + " link add v0 type veth peer name v0 netns " + w.b,
		"-n " + w.a + " addr add 10.0.0.1/24 dev v0", "-n " + w.b + " addr add 10.0.0.2/24 dev v0",
		"-n " + w.a + " link set v0 up", "-n " + w.b + " link set v0 up", "-n " + w.a + " link set lo up",
	} {
		if out, err := exec.Command("ip", strings.Fields(line)...).CombinedOutput(); err != nil {
			return nil, fmt.Errorf("ip %s: %w: %s", line, err, out)
		}
	}
	return w, nil
}

// wireOf returns a function that creates a wire on its first call. end removes the wire and
// everything on it, and can be called at any time.
func wireOf(dir string) (get func() (*wire, error), end func()) {
	get = sync.OnceValues(func() (*wire, error) { return newWire(dir) })
	return get, func() {
		w := wire{dir, filepath.Join(dir, "shaper-live"), nsName("a"), nsName("b")}
		w.close()
	}
}

func nsName(end string) string { return fmt.Sprintf("shaper-bench-%d-%s", os.Getpid(), end) }

// close ends all processes in the namespaces and deletes them.
func (w *wire) close() {
	for _, ns := range []string{w.a, w.b} {
		w.in(ns, w.shaper, "detach", "v0")
		out, _ := exec.Command("ip", "netns", "pids", ns).Output()
		for _, field := range strings.Fields(string(out)) {
			if pid, err := strconv.Atoi(field); err == nil && pid != os.Getpid() {
				unix.Kill(pid, unix.SIGKILL)
			}
		}
		exec.Command("ip", "netns", "del", ns).Run()
	}
}

// each runs commands in a namespace, up to the first that fails. Words are separated by spaces.
func (w *wire) each(ns string, commands ...string) error {
	for _, command := range commands {
		if _, err := w.in(ns, strings.Fields(command)...); err != nil {
			return err
		}
	}
	return nil
}

// in runs a command in a namespace and returns its output.
func (w *wire) in(ns string, args ...string) ([]byte, error) {
	cmd := exec.Command("ip", append([]string{"netns", "exec", ns}, args...)...)
	out, err := cmd.Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			out = append(out, exit.Stderr...)
		}
		return nil, fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, out)
	}
	return out, nil
}

// attached returns a side that measures while a policy is attached.
func attached(get func() (*wire, error), policy string, f func(*wire) (float64, error)) side {
	return on(get, func(w *wire) (float64, error) {
		return w.shape(policy, func() (float64, error) { return f(w) })
	})
}

// shape attaches a policy while f runs.
func (w *wire) shape(policy string, f func() (float64, error)) (float64, error) {
	path := filepath.Join(w.dir, "policy.yaml")
	if err := os.WriteFile(path, []byte(policy), 0o600); err != nil {
		return 0, err
	}
	if _, err := w.in(w.a, w.shaper, "run", "v0", "--policy", path, "--background"); err != nil {
		return 0, err
	}
	v, err := f()
	_, e := w.in(w.a, w.shaper, "detach", "v0")
	return v, errors.Join(err, e)
}

// programOf returns a function that loads the program of a policy on its first call.
func programOf(get func() (*wire, error), policy string) func() (*ebpf.Program, error) {
	return sync.OnceValues(func() (*ebpf.Program, error) {
		w, err := get()
		if err != nil {
			return nil, err
		}
		return w.program(policy)
	})
}

// program returns the program that a policy attaches.
func (w *wire) program(policy string) (p *ebpf.Program, err error) {
	_, err = w.shape(policy, func() (float64, error) {
		out, err := w.in(w.a, w.shaper, "status", "--json")
		if err != nil {
			return 0, err
		}
		var status struct {
			Program uint32 `json:"program_id"`
		}
		if err := json.Unmarshal(out, &status); err != nil {
			return 0, err
		}
		p, err = ebpf.NewProgramFromID(ebpf.ProgramID(status.Program))
		return 0, err
	})
	return p, err
}

// small is an IPv4 TCP frame of 64 bytes without FCS.
var small = func() []byte {
	f := make([]byte, 64)
	copy(f, []byte{2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0, 0x45, 0, 0, 50, 0, 0, 0, 0, 64, 6, 0x66, 0xc4, 10, 0, 0, 1, 10, 0, 0, 2, 0, 80, 1, 187})
	return f
}()

// costOf returns the time of one run of a program, in ns.
func costOf(p *ebpf.Program) (float64, error) {
	_, d, err := p.Benchmark(small, 500_000, nil)
	return float64(d), err
}

// onCPUs returns the median time of one run while n CPUs run the program concurrently.
func onCPUs(p *ebpf.Program, n int) (float64, error) {
	var all sync.WaitGroup
	costs, errs := make([]float64, n), make([]error, n)
	for i := range n {
		all.Go(func() {
			runtime.LockOSThread() // not unlocked, because the thread is pinned
			var set unix.CPUSet
			set.Set(i)
			if errs[i] = unix.SchedSetaffinity(0, &set); errs[i] == nil {
				costs[i], errs[i] = costOf(p)
			}
		})
	}
	all.Wait()
	return median(costs), errors.Join(errs...)
}

const marked = `green: {dscp: af11}, yellow: {dscp: af12}`

// oneClass has one class for all packets, at rates above the offered load.
const oneClass = `classes: [{name: all, meter: {type: trtcm, cir: 1gbit, cbs: 64KiB, pir: 2gbit, pbs: 64KiB}, ` + marked + `}]`

// classesOf returns a policy with n classes by address, protocol and port. The last class
// matches the frame.
func classesOf(n int) string {
	var b strings.Builder
	b.WriteString("classes:\n")
	for i := range n {
		dst := fmt.Sprintf("10.%d.%d.0/28", 1+i/256, i%256)
		if i == n-1 {
			dst = "10.0.0.0/24"
		}
		fmt.Fprintf(&b, "- {name: c%d, match: {proto: tcp, dst: %s, dport: %d-%d}, meter: {type: trtcm, cir: 1gbit, cbs: 64KiB, pir: 2gbit, pbs: 64KiB}, %s}\n",
			i, dst, i%400, 443+i, marked)
	}
	return b.String()
}

const unlimited = `classes: [{name: all, meter: {type: trtcm, cir: 100gbit, cbs: 4MiB, pir: 200gbit, pbs: 4MiB}, ` + marked + `}]`

func kernelFigures(get func() (*wire, error)) []figure {
	cpus := func(program func() (*ebpf.Program, error), n int) side {
		return on(program, func(p *ebpf.Program) (float64, error) { return onCPUs(p, n) })
	}
	empty := sync.OnceValues(func() (*ebpf.Program, error) {
		return ebpf.NewProgram(&ebpf.ProgramSpec{
			Type: ebpf.SchedCLS, License: "Apache-2.0",
			Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, -1), asm.Return()},
		})
	})
	green := programOf(get, unlimited) // every packet writes to both buckets
	red := programOf(get, oneClass)
	cost := func(policy string) side { return on(programOf(get, policy), costOf) }
	one, matched, many, most := on(red, costOf), cost(classesOf(1)), cost(classesOf(256)), cost(classesOf(1024))
	over := amount("kernel: program over an empty one, 64 B, trTCM, mark, count", 90, 60, " ns", one, on(empty, costOf))
	over.measured = func(ours, empty float64) float64 { return ours - empty }
	return []figure{
		over,
		timeRatio("kernel: 256 classes against 1, matched by the same fields", 1.6, 1.3, many, matched),
		timeRatio("kernel: 1,024 classes against 1, matched by the same fields", 1.6, 1.3, most, matched),
		timeRatio("kernel: 1,024 classes against 1 that asks for nothing", 1.6, 1.3, most, one),
		timeRatio("kernel: two CPUs on one meter against one CPU, all green", 2, 1.3, cpus(green, 2), cpus(green, 1)),
		timeRatio("kernel: two CPUs on one meter against one CPU, mostly red", 2, 1.3, cpus(red, 2), cpus(red, 1)),
		speedRatio("kernel: TCP over veth, attached and never limiting, against not attached", 0.93, 0.98,
			attached(get, unlimited, (*wire).iperf), on(get, (*wire).iperf)),
		amount("kernel: UDP at 2 x PIR for 10 s, bytes passed beside burst + rate * t", 0.1, 0.0025, " %", on(get, (*wire).overload), nil),
		timeRatio("kernel: CPU per UDP packet against HTB that never limits", 1, 0.999,
			attached(get, unlimited, (*wire).cpuPerPacket),
			on(get, func(w *wire) (float64, error) { return w.htb("rate 100gbit burst 4mb cburst 4mb", w.cpuPerPacket) })),
		timeRatio("kernel: CPU per UDP packet against nothing attached", 1.3, 1.1,
			attached(get, unlimited, (*wire).cpuPerPacket), on(get, (*wire).cpuPerPacket)),
	}
}

// iperf returns the time per byte of TCP from a to b, in ns, counted at b.
func (w *wire) iperf() (float64, error) {
	server := exec.Command("ip", "netns", "exec", w.b, "iperf3", "-s", "-1")
	if err := server.Start(); err != nil {
		return 0, err
	}
	defer server.Wait()
	time.Sleep(200 * time.Millisecond)
	out, err := w.in(w.a, "timeout", "30", "iperf3", "-c", "10.0.0.2", "-t", "2", "-J")
	if err != nil {
		server.Process.Kill()
		return 0, err
	}
	var result struct {
		End struct {
			Received struct {
				BitsPerSecond float64 `json:"bits_per_second"`
			} `json:"sum_received"`
		} `json:"end"`
	}
	if err := json.Unmarshal(out, &result); err != nil {
		return 0, err
	}
	return 8e9 / result.End.Received.BitsPerSecond, nil
}

// htb makes the device send through one hand-configured HTB class.
func (w *wire) htb(class string, f func() (float64, error)) (float64, error) {
	if err := w.each(w.a, "tc qdisc add dev v0 root handle 1: htb default 10", "tc class add dev v0 parent 1: classid 1:10 htb "+class); err != nil {
		return 0, err
	}
	v, err := f()
	return v, errors.Join(err, w.each(w.a, "tc qdisc del dev v0 root"))
}

// blasted is the result of a blast.
type blasted struct {
	Packets int
	CPU     time.Duration // CPU time of the sending thread
}

// blast sends UDP from a to b. It sends packets of a given length at a given rate; 0 is as fast
// as possible.
func (w *wire) blast(size, rate int, d time.Duration) (b blasted, err error) {
	exe, err := os.Executable()
	if err != nil {
		return b, err
	}
	out, err := w.in(w.a, exe, "-blast", fmt.Sprintf("%d,%d,%d", size, rate, d.Milliseconds()))
	if err != nil {
		return b, err
	}
	return b, json.Unmarshal(out, &b)
}

// blast is the process that w.blast starts.
func blast(args string) error {
	var size, rate, ms int
	if _, err := fmt.Sscanf(args, "%d,%d,%d", &size, &rate, &ms); err != nil {
		return err
	}
	runtime.LockOSThread()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
	if err != nil {
		return err
	}
	to := &unix.SockaddrInet4{Port: 9, Addr: [4]byte{10, 0, 0, 2}}
	data := make([]byte, size)
	var b blasted
	begin, used := time.Now(), threadTime()
	for time.Since(begin) < time.Duration(ms)*time.Millisecond {
		if rate > 0 && float64(b.Packets) > time.Since(begin).Seconds()*float64(rate) {
			continue
		}
		if err := unix.Sendto(fd, data, 0, to); err != nil && !errors.Is(err, unix.ECONNREFUSED) && !errors.Is(err, unix.ENOBUFS) {
			return err
		}
		b.Packets++
	}
	b.CPU = threadTime() - used
	return json.NewEncoder(os.Stdout).Encode(b)
}

func threadTime() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
		panic(err)
	}
	return time.Duration(t.Nano())
}

func (w *wire) cpuPerPacket() (float64, error) {
	b, err := w.blast(64, 0, time.Second)
	return float64(b.CPU) / float64(b.Packets), err
}

// overload offers twice the PIR. It returns the difference between the bytes that passed and
// the bytes that burst and rate allow, in percent. The times are those of passed packets by the
// kernel's clock.
func (w *wire) overload() (float64, error) {
	const (
		pir, pbs = 50_000_000, 64 << 10
		payload  = 1472
		length   = payload + 28
	)
	policy := fmt.Sprintf(`classes: [{name: all, meter: {type: trtcm, cir: 20mbit, cbs: 64KiB, pir: %dbit, pbs: %d}}]`, pir, pbs)
	trace := filepath.Join(w.dir, "passed.pcap")
	return w.shape(policy, func() (float64, error) {
		dump := exec.Command("ip", "netns", "exec", w.b, "tcpdump", "-i", "v0", "-B", "65536", "-s", "64", "--time-stamp-precision=nano", "-U", "-w", trace, "udp", "and", "port", "9")
		if err := dump.Start(); err != nil {
			return 0, err
		}
		time.Sleep(time.Second)
		_, err := w.blast(payload, 2*pir/8/length, 10*time.Second)
		time.Sleep(500 * time.Millisecond)
		dump.Process.Signal(unix.SIGINT)
		dump.Wait()
		if err != nil {
			return 0, err
		}
		n, first, last, err := stamps(trace)
		if err != nil {
			return 0, err
		}
		allowed := pbs + pir/8*(last-first).Seconds()
		return 100 * math.Abs(float64(n*length)-allowed) / allowed, nil
	})
}
