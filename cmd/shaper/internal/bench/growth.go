package main

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/pipeline"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// growth measures the cost of a packet while something grows.
type growth struct {
	rounds   int
	captures *captures
	wire     func() (*wire, error) // nil without root
}

// measure returns the charts.
func (g *growth) measure() (charts []chart, err error) {
	for _, f := range []func() (chart, error){g.packets, g.classes, g.keys, g.queued, g.cpus} {
		c, err := f()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", c.title, err)
		}
		charts = append(charts, c)
	}
	return charts, nil
}

// line measures a side for each x: the median of the rounds.
func (g *growth) line(name string, xs []int, at func(x int) side) (line, error) {
	l := line{name: name}
	for _, x := range xs {
		f := amount(name, 0, noAim, " ns", at(x), nil)
		r := f.measure(g.rounds)
		if r.err != nil {
			return l, fmt.Errorf("%s %d: %w", name, x, r.err)
		}
		l.points = append(l.points, point{float64(x), r.value})
	}
	return l, nil
}

// add measures a line and adds it to the chart, unless an earlier one failed.
func (c *chart) add(err error, g *growth, name string, xs []int, at func(x int) side) error {
	if err != nil {
		return err
	}
	l, err := g.line(name, xs, at)
	c.lines = append(c.lines, l)
	return err
}

// packets replays captures of different lengths by whole processes.
func (g *growth) packets() (chart, error) {
	c := chart{title: "Packets in a capture: replay", x: "packets"}
	xs := []int{10_000, 100_000, 1_000_000, captured}
	of := func(name string, args func(path string) []string) func(n int) side {
		return func(n int) side {
			return func() (float64, error) {
				path, err := g.captures.first(n)
				if err != nil {
					return 0, err
				}
				return elapsed(n, name, args(path)...)
			}
		}
	}
	err := c.add(nil, g, "shaper replay", xs, of(g.captures.shaper, replayed))
	return c, c.add(err, g, "tcpdump -r -w", xs, of("tcpdump", dumped))
}

// classes processes a packet of the last of n classes, which match by three fields.
func (g *growth) classes() (chart, error) {
	c := chart{title: "Classes", x: "classes"}
	err := c.add(nil, g, "Go", []int{1, 16, 256, 1024, 4096}, func(n int) side {
		pl := sync.OnceValues(func() (*pipeline.Pipeline, error) {
			file, err := policyfile.Load("classes", []byte(classesOf(n)))
			if err != nil {
				return nil, err
			}
			return pipeline.New(file.Policy)
		})
		return onSource(pl, func(l *pipeline.Pipeline) (float64, error) {
			const packets = 200_000
			p, v := dataplane.Packet{
				Data: append([]byte(nil), smallFrame...), Link: dataplane.LinkEthernet,
			}, dataplane.Verdict{}
			start := time.Now()
			for range packets {
				p.Time += 1000
				l.Process(&p, &v)
			}
			if v.Class != int32(n-1) {
				return 0, fmt.Errorf("the packet is of class %d", v.Class)
			}
			return since(start, packets), nil
		})
	})
	if g.wire != nil {
		err = c.add(err, g, "kernel", []int{1, 16, 256, 1024},
			func(n int) side { return onSource(programOf(g.wire, classesOf(n)), costOf) })
	}
	return c, err
}

// keys meters packets from n random sources, each with a meter.
func (g *growth) keys() (chart, error) {
	c := chart{title: "Keys: a meter for each source address", x: "keys"}
	xs := []int{1, 1 << 10, 1 << 16, 1 << 20}
	of := func(inKernel bool) func(n int) side {
		return func(n int) side {
			return onSource(sync.OnceValues(func() (*sources, error) {
				return newSources(dataplane.Key{By: dataplane.BySrc}, uint32(n), inKernel)
			}), (*sources).random)
		}
	}
	err := c.add(nil, g, "Go", xs, of(false))
	if g.wire != nil {
		err = c.add(err, g, "kernel", xs, of(true))
	}
	return c, err
}

// queued replays a capture through a queue that holds n packets most of the time.
func (g *growth) queued() (chart, error) {
	c := chart{title: "Packets in a full queue: replay", x: "queued packets"}
	return c, c.add(nil, g, "shaper replay", []int{10, 100, 1_000, 10_000, 100_000}, func(n int) side {
		return func() (float64, error) {
			path := filepath.Join(filepath.Dir(g.captures.long), "queue.yaml")
			policy := fmt.Sprintf(
				"classes: [{name: all, green: {queue: q}}]\nqueues: {q: {rate: 2gbit, limit: %dB}}\n", n*352)
			if err := os.WriteFile(path, []byte(policy), 0o600); err != nil {
				return 0, err
			}
			return elapsed(capturedShort, g.captures.shaper, "replay", g.captures.short, "--policy", path,
				"-o", "/dev/null")
		}
	})
}

// cpus lets n CPUs meter at once. The cost is the time of one packet on one CPU.
func (g *growth) cpus() (chart, error) {
	c := chart{title: "CPUs", x: "CPUs"}
	var xs []int
	for n := 1; n <= runtime.NumCPU(); n *= 2 {
		xs = append(xs, n)
	}
	shards := sync.OnceValues(newKeyShards)
	err := c.add(nil, g, "one Locked", xs, func(n int) side {
		return func() (float64, error) {
			return float64(n) * kinds[1].shared(stream().first(limited), n), nil
		}
	})
	err = c.add(err, g, "Shards of 1M keys", xs, func(n int) side {
		return onSource(shards,
			func(t *meter.Shards[uint64]) (float64, error) { return float64(n) * shareKeys(t, n), nil })
	})
	if g.wire != nil {
		program := programOf(g.wire, unlimitedPolicy)
		err = c.add(err, g, "kernel, one meter", xs, func(n int) side {
			return func() (float64, error) {
				p, err := program()
				if err != nil {
					return 0, err
				}
				return onCPUs(p, n)
			}
		})
	}
	return c, err
}
