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
	"sync"
	"syscall"
	"time"
)

const (
	captured      = 4_000_000 // packets
	capturedShort = captured / 10
	captureSpace  = 1_700_000_000 // bytes, both captures
)

var replayArgs = []string{"-o", "/dev/null", "--meter", "trtcm cir=1gbit cbs=64KiB pir=2gbit pbs=64KiB", "--yellow", "dscp=af12"}

// captures are two files of the same traffic and the programs that read them.
type captures struct {
	long, short string
	shaper      string
}

func newCaptures(dir string) (*captures, error) {
	var fs syscall.Statfs_t
	if err := syscall.Statfs(dir, &fs); err != nil {
		return nil, err
	}
	if free := fs.Bavail * uint64(fs.Bsize); free < captureSpace {
		return nil, fmt.Errorf("%s has %d MB free, %d are needed: choose another -dir", dir, free/1e6, captureSpace/1_000_000)
	}
	if _, err := exec.LookPath("tcpdump"); err != nil {
		return nil, errors.New("apt-get install tcpdump")
	}
	// tcpdump reads as a user of its own.
	if err := os.Chmod(dir, 0o755); err != nil {
		return nil, err
	}
	c := &captures{filepath.Join(dir, "long.pcap"), filepath.Join(dir, "short.pcap"), filepath.Join(dir, "shaper")}
	if err := errors.Join(writeCapture(c.long, captured), writeCapture(c.short, capturedShort)); err != nil {
		return nil, err
	}
	if out, err := exec.Command("go", "build", "-o", c.shaper, "github.com/a-seed-32e5a53f/shaper/cmd/shaper").CombinedOutput(); err != nil {
		return nil, fmt.Errorf("go build: %w: %s", err, out)
	}
	return c, nil
}

// writeCapture writes n of the frames at random, at 3 Gbit/s, with stamps in
// nanoseconds.
func writeCapture(path string, n int) error {
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
	b = le.AppendUint32(b, 1) // Ethernet
	w.Write(b)
	r := rand.New(rand.NewPCG(4, 2))
	all, now := frames(), int64(1.7e18)
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

// process runs a program and returns its time and its largest memory in MiB.
func process(name string, args ...string) (elapsed time.Duration, mib float64, err error) {
	cmd := exec.Command(name, args...)
	start := time.Now()
	out, err := cmd.CombinedOutput()
	if err != nil {
		return 0, 0, fmt.Errorf("%s: %w: %s", name, err, out)
	}
	elapsed = time.Since(start)
	return elapsed, float64(cmd.ProcessState.SysUsage().(*syscall.Rusage).Maxrss) / 1024, nil
}

func (c *captures) replay(path string) (time.Duration, float64, error) {
	return process(c.shaper, append([]string{"replay", path}, replayArgs...)...)
}

func replayFigures(dir string) []figure {
	start := sync.OnceValues(func() (*captures, error) { return newCaptures(dir) })
	with := func(f func(c *captures) (float64, error)) side {
		return func() (float64, error) {
			c, err := start()
			if err != nil {
				return 0, err
			}
			return f(c)
		}
	}
	ours := with(func(c *captures) (float64, error) {
		t, _, err := c.replay(c.long)
		return float64(t) / captured, err
	})
	tcpdump := with(func(c *captures) (float64, error) {
		t, _, err := process("tcpdump", "--time-stamp-precision=nano", "-r", c.long, "-w", "/dev/null")
		return float64(t) / captured, err
	})
	memory := func(path func(c *captures) string) side {
		return with(func(c *captures) (float64, error) {
			_, mib, err := c.replay(path(c))
			return mib, err
		})
	}
	return []figure{
		speedRatio("tcpdump -r -w /dev/null, 4 M packets: replay with trTCM and marks, packets/s", 1.2, 2.5, ours, tcpdump),
		amount("memory of replay, 1.5 GB; beside it of 150 MB", 64, noAim, " MiB",
			memory(func(c *captures) string { return c.long }), memory(func(c *captures) string { return c.short })),
	}
}
