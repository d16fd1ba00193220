package main

import (
	"bufio"
	_ "embed"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"

	"github.com/a-seed-32e5a53f/shaper/meter"
)

//go:embed peers/rte_meter.c
var rteMeter []byte

// peer is the running C program.
type peer struct {
	in  io.Writer
	out *bufio.Reader
}

var errNoDPDK = errors.New("apt-get install libdpdk-dev pkg-config gcc")

// newPeer compiles rte_meter.c and starts it with the stream.
func newPeer(dir string) (*peer, error) {
	flags, err := exec.Command("pkg-config", "--cflags", "libdpdk").Output()
	if err != nil {
		return nil, errNoDPDK
	}
	if _, err := exec.LookPath("cc"); err != nil {
		return nil, errNoDPDK
	}
	source, program := filepath.Join(dir, "rte_meter.c"), filepath.Join(dir, "rte_meter")
	if err := os.WriteFile(source, rteMeter, 0o600); err != nil {
		return nil, err
	}
	args := append(strings.Fields(string(flags)), "-O3", "-march=native", "-o", program, source,
		"-lrte_meter", "-lrte_eal")
	if out, err := exec.Command("cc", args...).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("cc: %w: %s", err, out)
	}
	packets := filepath.Join(dir, "stream")
	if err := writeStream(packets); err != nil {
		return nil, err
	}
	cmd := exec.Command(program, packets)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	return &peer{in, bufio.NewReader(out)}, cmd.Start()
}

func writeStream(path string) error {
	s := stream()
	b := make([]byte, 0, 16*streamLen)
	for i, ns := range s.ns {
		b = binary.LittleEndian.AppendUint64(b, uint64(ns))
		b = binary.LittleEndian.AppendUint64(b, uint64(s.lengths[i]))
	}
	return os.WriteFile(path, b, 0o600)
}

// run returns the time per packet of one run, in ns, and the colors.
func (p *peer) run(name string) (ns float64, colors [3]int, err error) {
	if _, err = fmt.Fprintln(p.in, name); err != nil {
		return 0, colors, err
	}
	line, err := p.out.ReadString('\n')
	if err == nil {
		_, err = fmt.Sscan(line, &ns, &colors[meter.Green], &colors[meter.Yellow], &colors[meter.Red])
	}
	if err != nil {
		err = fmt.Errorf("rte_meter %s: %w", name, err)
	}
	return ns, colors, err
}

func peerFigures(dir string) []figure {
	start := sync.OnceValues(func() (*peer, error) { return newPeer(dir) })
	all := sync.OnceValue(func() []meter.Meter { return make([]meter.Meter, numMeters) })

	forms := []struct {
		what, run string
		bar, aim  float64
		ours      func(k *kind) float64
	}{
		{"one meter, a packet at a time", "", 1, 0.7, func(k *kind) float64 { return k.one(stream()) }},
		{
			"a million meters, bursts of 32 across them", "-n", 0.7, 0.4,
			func(k *kind) float64 { return k.many(stream(), all()) },
		},
		{
			"a million meters, bursts of 32 across them, prefetched by both", "-ahead", 1, 0.9,
			func(k *kind) float64 { return k.many(stream(), all()) },
		},
		{
			"a million meters, a packet at a time", "-n", 1.3, 1.1,
			func(k *kind) float64 { return k.manyOne(stream(), all()) },
		},
		{
			"one meter, bursts of 32 with one time", "-burst", 0.5, 0.3,
			func(k *kind) float64 { return k.bursts(stream()) },
		},
	}
	var figures []figure
	for _, f := range forms {
		for _, k := range kinds {
			ours := func() (float64, error) { return f.ours(&k), nil }
			other := func() (float64, error) {
				p, err := start()
				if err != nil {
					return 0, err
				}
				colors := count(stream().colors)
				ns, theirs, err := p.run(k.name + f.run)
				for c := range colors {
					if diff := colors[c] - theirs[c]; err == nil && max(diff, -diff) > streamLen/100 {
						// rte_meter truncates its period, of 100 CPU cycles or more, to whole ones.
						err = fmt.Errorf("colors differ: %v, rte_meter %v", colors, theirs)
					}
				}
				return ns, err
			}
			figures = append(figures, timeRatio("rte_meter, "+k.name+": "+f.what, f.bar, f.aim, ours, other))
		}
	}
	return figures
}
