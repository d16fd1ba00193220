package main

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

const (
	captured      = 4_000_000 // packets
	capturedShort = captured / 10
	captureSpace  = 2_800_000_000 // bytes, for all captures
)

var replayArgs = []string{
	"-o", "/dev/null", "--meter", "trtcm cir=1gbit cbs=64KiB pir=2gbit pbs=64KiB", "--yellow", "dscp=af12",
}

// captures holds two files with the same traffic, and the programs to read them.
type captures struct {
	long, short string
	small       string // 64-byte frames
	shaper      string
}

func newCaptures(dir string) (*captures, error) {
	var fs syscall.Statfs_t
	if err := syscall.Statfs(dir, &fs); err != nil {
		return nil, err
	}
	if free := fs.Bavail * uint64(fs.Bsize); free < captureSpace {
		return nil, fmt.Errorf("%s has %d MB free, %d are needed: choose another -dir", dir, free/1e6,
			captureSpace/1_000_000)
	}
	if _, err := exec.LookPath("tcpdump"); err != nil {
		return nil, errors.New("apt-get install tcpdump")
	}
	// tcpdump reads as its own user.
	if err := os.Chmod(dir, 0o755); err != nil {
		return nil, err
	}
	at := func(name string) string { return filepath.Join(dir, name) }
	c := &captures{at("long.pcap"), at("short.pcap"), at("small.pcap"), at("shaper")}
	small := [][]byte{smallFrame[:60]}
	if err := errors.Join(writeCapture(c.long, captured, frames()),
		writeCapture(c.short, capturedShort, frames()), writeCapture(c.small, captured, small)); err != nil {
		return nil, err
	}
	if out, err := exec.Command("go", "build", "-o", c.shaper,
		"github.com/a-seed-32e5a53f/shaper/cmd/shaper").CombinedOutput(); err != nil {
		return nil, fmt.Errorf("go build: %w: %s", err, out)
	}
	return c, nil
}

// writeCapture writes n of the frames, at random and at 3 Gbit/s, with timestamps in nanoseconds.
func writeCapture(path string, n int, all [][]byte) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	w := bufio.NewWriterSize(f, 1<<20)
	le := binary.LittleEndian
	b := le.AppendUint32(nil, 0xa1b23c4d)
	b = le.AppendUint16(b, 2)
	b = le.AppendUint16(b, 4)
	b = append(b, make([]byte, 8)...)
	b = le.AppendUint32(b, 65535)
	b = le.AppendUint32(b, 1) // link type Ethernet
	w.Write(b)
	r := rand.New(rand.NewPCG(4, 2))
	now := int64(1.7e18)
	for range n {
		f := all[r.IntN(len(all))]
		b = le.AppendUint32(b[:0], uint32(now/1e9))
		b = le.AppendUint32(b, uint32(now%1e9))
		b = le.AppendUint32(b, uint32(len(f)))
		b = le.AppendUint32(b, uint32(len(f)))
		w.Write(b)
		w.Write(f)
		now += int64(float64(len(f)) * 8 / 3 * 2 * r.Float64())
	}
	return errors.Join(w.Flush(), f.Close())
}

// first returns the path of a capture with the first n packets.
func (c *captures) first(n int) (path string, err error) {
	if n == captured {
		return c.long, nil
	}
	path = fmt.Sprintf("%s.%d", c.long, n)
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	return path, writeCapture(path, n, frames())
}

// elapsed runs a program and returns the time per packet of n, in ns.
func elapsed(n int, name string, args ...string) (float64, error) {
	start := time.Now()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		return 0, fmt.Errorf("%s: %w: %s", name, err, out)
	}
	return since(start, n), nil
}

// memory runs a program and returns its peak memory, in MiB. It reads /proc while the program
// runs, because the value of wait(2) includes the memory of this process before exec.
func memory(name string, args ...string) (float64, error) {
	cmd := exec.Command(name, args...)
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	peak := 0.0
	for {
		select {
		case err := <-done:
			return peak, err
		case <-time.After(time.Millisecond):
		}
		peak = max(peak, peakMemory(cmd.Process.Pid, name)/(1<<20))
	}
}

// peakMemory returns the peak memory of a process, in bytes, or 0 if it does not run the program.
func peakMemory(pid int, program string) float64 {
	status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	exe, _ := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	_, rest, ok := strings.Cut(string(status), "VmHWM:")
	if !ok || exe != program {
		return 0
	}
	kib := 0.0
	fmt.Sscan(rest, &kib)
	return kib * 1024
}

func dumped(path string) []string {
	return []string{"--time-stamp-precision=nano", "-r", path, "-w", "/dev/null"}
}

// queued returns the arguments of a replay through a full queue of 50 ms, 15 MiB.
func (c *captures) queued() ([]string, error) {
	policy := filepath.Join(filepath.Dir(c.long), "queue.yaml")
	text := "classes: [{name: all, green: {queue: q}}]\nqueues: {q: {rate: 2500mbit, limit: 50ms}}\n"
	return []string{"replay", c.long, "-o", "/dev/null", "--policy", policy},
		os.WriteFile(policy, []byte(text), 0o600)
}

func replayed(path string) []string { return append([]string{"replay", path}, replayArgs...) }

func replayFigures(start func() (*captures, error)) []figure {
	ours := onSource(start,
		func(c *captures) (float64, error) { return elapsed(captured, c.shaper, replayed(c.long)...) })
	tcpdump := onSource(start, func(c *captures) (float64, error) {
		return elapsed(captured, "tcpdump", dumped(c.long)...)
	})
	inKernel := onSource(start, func(c *captures) (float64, error) {
		return elapsed(captured, c.shaper, append(replayed(c.long), "--engine", "bpf")...)
	})
	long := onSource(start,
		func(c *captures) (float64, error) { return memory(c.shaper, replayed(c.long)...) })
	short := onSource(start,
		func(c *captures) (float64, error) { return memory(c.shaper, replayed(c.short)...) })
	queued := func(measure func(name string, args ...string) (float64, error)) side {
		return onSource(start, func(c *captures) (float64, error) {
			args, err := c.queued()
			if err != nil {
				return 0, err
			}
			return measure(c.shaper, args...)
		})
	}
	timed := func(name string, args ...string) (float64, error) { return elapsed(captured, name, args...) }
	zipped := onSource(start, func(c *captures) (float64, error) {
		out := filepath.Join(filepath.Dir(c.long), "out.pcap.gz")
		defer os.Remove(out)
		return elapsed(captured, c.shaper, append(replayed(c.long), "-o", out)...)
	})
	onOne := func(args func(c *captures) []string) side {
		return onSource(start, func(c *captures) (float64, error) {
			return elapsed(captured, "taskset", append([]string{"-c", "1"}, args(c)...)...)
		})
	}
	oursOnOne := func(path func(c *captures) string) side {
		return onOne(func(c *captures) []string { return append([]string{c.shaper}, replayed(path(c))...) })
	}
	tcpdumpOnOne := func(path func(c *captures) string) side {
		return onOne(func(c *captures) []string { return append([]string{"tcpdump"}, dumped(path(c))...) })
	}
	imix, small64 := func(c *captures) string { return c.long }, func(c *captures) string { return c.small }
	return []figure{
		speedRatio("tcpdump -r -w /dev/null, 4 M packets: replay with trTCM and marks, packets/s", 1.2, 2.5,
			ours, tcpdump),
		speedRatio("tcpdump -r -w /dev/null, both on one core: replay with trTCM and marks, packets/s", 1,
			1.5, oursOnOne(imix), tcpdumpOnOne(imix)),
		speedRatio("tcpdump -r -w /dev/null, 64 B, both on one core: replay with trTCM and marks, packets/s",
			0.8, 1.5, oursOnOne(small64), tcpdumpOnOne(small64)),
		speedRatio("replay --engine bpf against --engine go, packets/s", 1.0/3, 1, inKernel, ours),
		speedRatio("replay through a full queue, 3 Gbit/s into 2.5, against plain replay, packets/s", 0.5,
			0.7, queued(timed), ours),
		amount("memory of replay through that queue of 15 MiB; other: plain replay", 64, 45, " MiB",
			queued(memory), long),
		speedRatio("replay -o x.gz against -o /dev/null, packets/s", 0.25, 0.5, zipped, ours),
		amount("memory of replay, 1.5 GB; other: 150 MB", 64, noAim, " MiB", long, short),
	}
}
