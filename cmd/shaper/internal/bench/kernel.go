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
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"
)

// whileAttached returns a side which measures under an attached policy.
func whileAttached(get func() (*wire, error), policy string, f func(*wire) (float64, error)) side {
	return onSource(get, func(w *wire) (float64, error) {
		return w.whileShaped(policy, func() (float64, error) { return f(w) })
	})
}

// whileShaped attaches a policy while f runs.
func (w *wire) whileShaped(policy string, f func() (float64, error)) (float64, error) {
	path := filepath.Join(w.dir, "policy.yaml")
	if err := errors.Join(os.WriteFile(path, []byte(policy), 0o600),
		os.WriteFile(filepath.Join(w.dir, "customers.csv"), keyedCustomers(), 0o600)); err != nil {
		return 0, err
	}
	if _, err := runIn(w.a, w.shaper, "run", "v0", "--policy", path, "--background"); err != nil {
		return 0, err
	}
	v, err := f()
	_, e := runIn(w.a, w.shaper, "detach", "v0")
	return v, errors.Join(err, e)
}

// programOf returns a function to load the program of a policy on its first call.
func programOf(get func() (*wire, error), policy string) func() (*ebpf.Program, error) {
	return sync.OnceValues(func() (*ebpf.Program, error) {
		w, err := get()
		if err != nil {
			return nil, err
		}
		return w.program(policy)
	})
}

// program returns the program attached by a policy.
func (w *wire) program(policy string) (p *ebpf.Program, err error) {
	_, err = w.whileShaped(policy, func() (float64, error) {
		out, err := runIn(w.a, w.shaper, "status", "--json")
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

// smallFrame is an IPv4 TCP frame of 64 bytes without FCS.
var smallFrame = func() []byte {
	f := make([]byte, 64)
	copy(f, []byte{
		2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0, 0x45, 0, 0, 50, 0, 0, 0, 0, 64, 6, 0x66, 0xc4, 10, 0, 0, 1,
		10, 0, 0, 2, 0, 80, 1, 187,
	})
	return f
}()

// vxlanFrame has smallFrame in a tunnel between the same addresses.
var vxlanFrame = func() []byte {
	outer := append([]byte(nil), smallFrame[:34]...)
	outer[17], outer[23] = 100, 17
	return append(append(outer, 0, 80, 0x12, 0xb5, 0, 80, 0, 0, 8, 0, 0, 0, 0, 0, 1, 0), smallFrame...)
}()

// costOf returns the time of one run of a program, in ns.
func costOf(p *ebpf.Program) (float64, error) { return costWith(smallFrame)(p) }

// costWith returns costOf for another frame.
func costWith(frame []byte) func(p *ebpf.Program) (float64, error) {
	return func(p *ebpf.Program) (float64, error) {
		_, d, err := p.Benchmark(frame, 500_000, nil)
		return float64(d), err
	}
}

// onCPUs returns the time of one run on the first CPU, while n - 1 others run the program from before its
// first run until after its last one.
func onCPUs(p *ebpf.Program, n int) (cost float64, err error) {
	var others, ready sync.WaitGroup
	var ended atomic.Bool
	pinned := func(cpu int, run func() error) error {
		runtime.LockOSThread() // not unlocked, because the thread is pinned
		var set unix.CPUSet
		set.Set(cpu)
		if err := unix.SchedSetaffinity(0, &set); err != nil {
			return err
		}
		return run()
	}
	errs := make([]error, n)
	for i := 1; i < n; i++ {
		ready.Add(1)
		others.Go(func() {
			begun := sync.OnceFunc(ready.Done)
			defer begun()
			errs[i] = pinned(i, func() error {
				for !ended.Load() {
					if _, _, err := p.Benchmark(smallFrame, 20_000, nil); err != nil {
						return err
					}
					begun()
				}
				return nil
			})
		})
	}
	ready.Wait()
	done := make(chan struct{})
	go func() {
		defer close(done)
		errs[0] = pinned(0, func() (err error) {
			cost, err = costOf(p)
			return err
		})
	}()
	<-done
	ended.Store(true)
	others.Wait()
	return cost, errors.Join(errs...)
}

const markActions = `green: {dscp: af11}, yellow: {dscp: af12}`

// oneClassPolicy puts all packets into one class, at rates above the offered load.
const oneClassPolicy = `classes: [{name: all, meter: {type: trtcm, cir: 1gbit, cbs: 64KiB, pir: 2gbit, pbs: 64KiB}, ` +
	markActions + `}]`

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
		fmt.Fprintf(&b,
			"- {name: c%d, match: {proto: tcp, dst: %s, dport: %d-%d}, meter: {type: trtcm, cir: 1gbit, cbs: 64KiB, pir: 2gbit, pbs: 64KiB}, %s}\n",
			i, dst, i%400, 443+i, markActions)
	}
	return b.String()
}

// redPolicy colors all packets red, apart from the first ones.
const redPolicy = `classes: [{name: all, meter: {type: trtcm, cir: 1mbit, cbs: 2kB, pir: 2mbit, pbs: 2kB}, red: {dscp: af13}, ` +
	markActions + `}]`

const unlimitedQueuePolicy = `
classes: [{name: all, green: {queue: q}}]
queues: {q: {rate: 10gbit, limit: 100ms}}`

const unlimitedPolicy = `classes: [{name: all, meter: {type: trtcm, cir: 100gbit, cbs: 4MiB, pir: 200gbit, pbs: 4MiB}, ` +
	markActions + `}]`

func kernelFigures(get func() (*wire, error)) []figure {
	cpus := func(program func() (*ebpf.Program, error), n int) side {
		return onSource(program, func(p *ebpf.Program) (float64, error) { return onCPUs(p, n) })
	}
	empty := sync.OnceValues(func() (*ebpf.Program, error) {
		return ebpf.NewProgram(&ebpf.ProgramSpec{
			Type: ebpf.SchedCLS, License: "Apache-2.0",
			Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, -1), asm.Return()},
		})
	})
	green := programOf(get, unlimitedPolicy) // every packet writes to both buckets
	red := programOf(get, redPolicy)
	cost := func(policy string) side { return onSource(programOf(get, policy), costOf) }
	tunneled := func(policy string) side { return onSource(programOf(get, policy), costWith(vxlanFrame)) }
	one, matched, many, most := cost(oneClassPolicy), cost(classesOf(1)), cost(classesOf(256)),
		cost(classesOf(1024))
	over := amount("kernel: program over an empty one, 64 B, trTCM, mark, count", 60, 45, " ns", one,
		onSource(empty, costOf))
	over.measured = func(ours, empty float64) float64 { return ours - empty }
	return []figure{
		over,
		timeRatio("kernel: 256 classes against 1, matched by the same fields", 1.6, 1.3, many, matched),
		timeRatio("kernel: 1,024 classes against 1, matched by the same fields", 1.6, 1.3, most, matched),
		timeRatio("kernel: 1,024 classes against 1 without a match", 1.6, 1.3, most, one),
		timeRatio("kernel: two CPUs on one meter against one CPU, all green", 2, 1.5, cpus(green, 2),
			cpus(green, 1)),
		timeRatio("kernel: two CPUs on one meter against one CPU, all red", 2, 1.5, cpus(red, 2),
			cpus(red, 1)),
		speedRatio("kernel: TCP over veth, attached and never limiting, against not attached", 0.93, 0.98,
			whileAttached(get, unlimitedPolicy, (*wire).iperf), onSource(get, (*wire).iperf)),
		amount("kernel: UDP at 2 x PIR for 10 s, bytes passed compared with burst + rate * t", 0.1, 0.0025,
			" %", onSource(get, (*wire).overload), nil),
		timeRatio("kernel: CPU per UDP packet against HTB that never limits", 1, 0.999,
			whileAttached(get, unlimitedPolicy, (*wire).cpuPerPacket),
			onSource(get, func(w *wire) (float64, error) {
				return w.whileHTB("rate 100gbit burst 4mb cburst 4mb", w.cpuPerPacket)
			})),
		timeRatio("kernel: CPU per UDP packet with a queue against HTB, neither of which limits", 1.3, 0.95,
			whileAttached(get, unlimitedQueuePolicy, (*wire).cpuPerPacket),
			onSource(get, func(w *wire) (float64, error) {
				return w.whileHTB("rate 10gbit burst 4mb cburst 4mb", w.cpuPerPacket)
			})),
		timeRatio("kernel: CPU per UDP packet against nothing attached", 1.3, 1.1,
			whileAttached(get, unlimitedPolicy, (*wire).cpuPerPacket), onSource(get, (*wire).cpuPerPacket)),
		more("kernel: customers by MAC address over customers by address, a packet", 20, 0,
			cost(customersBy("mac")), cost(customersBy("address"))),
		more("kernel: customers by mark over customers by address, a packet", 20, 0,
			cost(customersBy("mark")), cost(customersBy("address"))),
		more("kernel: customers by cgroup over customers by address, a packet", 20, 0,
			cost(customersBy("cgroup")), cost(customersBy("address"))),
		more("kernel: customers by VNI over customers by address, a packet in VXLAN", 20, 0,
			tunneled(customersBy("vni")), tunneled(customersBy("address"))),
		more("kernel: customers by the address in a tunnel over customers by address, a packet in VXLAN", 20, 0,
			tunneled(customersBy("inner-address")), tunneled(customersBy("address"))),
	}
}

// customersBy is a policy whose customers have a key.
func customersBy(key string) string {
	return "classes: [{name: all, per: customer, meter: plan}]\n" +
		"plans: {p: {type: trtcm, cir: 100gbit, cbs: 4MiB, pir: 200gbit, pbs: 4MiB}}\n" +
		"customers: {file: customers.csv, key: " + key + "}\n"
}

// keyedCustomers is the file of 1,000 customers with a key of each kind, but one cgroup. The first has those
// of smallFrame and vxlanFrame in a test run of the kernel, whose socket is in the cgroup of this process.
func keyedCustomers() []byte {
	b := []byte("customer,address,mac,vni,mark,cgroup,plan\n1,10.0.0.2,02:00:00:00:00:01,1,0,/,p\n")
	for i := 2; i <= 1000; i++ {
		b = fmt.Appendf(b, "%d,10.1.%d.%d,02:00:00:01:%02x:%02x,%d,%d,,p\n", i, i>>8, i&255, i>>8, i&255, i, i)
	}
	return b
}

// iperf returns the time per byte of TCP from a to b, in ns, counted at b.
func (w *wire) iperf() (float64, error) {
	server := exec.Command("iperf3", "-s", "-1")
	if err := startIn(w.b, server); err != nil {
		return 0, err
	}
	defer server.Wait()
	time.Sleep(200 * time.Millisecond)
	out, err := runIn(w.a, "timeout", "30", "iperf3", "-c", "10.0.0.2", "-t", "2", "-J")
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

// whileHTB makes the device send through one hand-configured HTB class.
func (w *wire) whileHTB(class string, f func() (float64, error)) (float64, error) {
	if err := runEach(w.a, "tc qdisc add dev v0 root handle 1: htb default 10",
		"tc class add dev v0 parent 1: classid 1:10 htb "+class); err != nil {
		return 0, err
	}
	v, err := f()
	return v, errors.Join(err, runEach(w.a, "tc qdisc del dev v0 root"))
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
	out, err := runIn(w.a, exe, "-blast", fmt.Sprintf("%d,%d,%d", size, rate, d.Milliseconds()))
	if err != nil {
		return b, err
	}
	return b, json.Unmarshal(out, &b)
}

// blast is the process started by w.blast.
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
		if err := unix.Sendto(fd, data, 0, to); err != nil && !errors.Is(err, unix.ECONNREFUSED) &&
			!errors.Is(err, unix.ENOBUFS) {
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

// overload offers twice the PIR. It returns the difference between the bytes passed and the bytes
// allowed by burst and rate, in percent. Times are those of passed packets, by the kernel's clock.
func (w *wire) overload() (float64, error) {
	const (
		pir, pbs = 50_000_000, 64 << 10
		payload  = 1472
		length   = payload + 28
	)
	policy := fmt.Sprintf(
		`classes: [{name: all, meter: {type: trtcm, cir: 20mbit, cbs: 64KiB, pir: %dbit, pbs: %d}}]`, pir,
		pbs)
	trace := filepath.Join(w.dir, "passed.pcap")
	return w.whileShaped(policy, func() (float64, error) {
		dump := exec.Command("tcpdump", "-i", "v0", "-B", "65536", "-s", "64", "--time-stamp-precision=nano",
			"-U", "-w", trace, "udp", "and", "port", "9")
		if err := startIn(w.b, dump); err != nil {
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
