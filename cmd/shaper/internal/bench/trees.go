package main

import (
	"fmt"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync"
)

const module = "github.com/a-seed-32e5a53f/shaper/"

// goBench runs a benchmark of a package and returns its metrics by unit.
func goBench(pkg, pattern string) (map[string]float64, error) {
	out, err := exec.Command("go", "test", "-run", "^$", "-bench", pattern, "-benchtime", "200ms",
		module+pkg).CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("go test: %w: %s", err, out)
	}
	metrics := map[string]float64{}
	for line := range strings.Lines(string(out)) {
		fields := strings.Fields(line)
		for i := 2; strings.HasPrefix(line, "Benchmark") && i+1 < len(fields); i += 2 {
			if metrics[fields[i+1]], err = strconv.ParseFloat(fields[i], 64); err != nil {
				return nil, fmt.Errorf("go test printed %q", line)
			}
		}
	}
	if len(metrics) == 0 {
		return nil, fmt.Errorf("go test ran no benchmark: %s", out)
	}
	return metrics, nil
}

// logged returns a number that a test logs, the group of a pattern. A test that fails has logged it, too.
func logged(test func() string, pattern string) side {
	return func() (float64, error) {
		out := test()
		m := regexp.MustCompile(pattern).FindStringSubmatch(out)
		if m == nil {
			return 0, fmt.Errorf("go test did not log %s: %s", pattern, out)
		}
		return strconv.ParseFloat(m[1], 64)
	}
}

// goTest returns a function that runs tests of a package once and returns their log.
func goTest(pkg, tests string, args ...string) func() string {
	return sync.OnceValue(func() string {
		out, _ := exec.Command("go", append([]string{"test", "-v", "-run", tests, module + pkg}, args...)...).
			CombinedOutput()
		return string(out)
	})
}

// treeFigures has figures of trees of links, from Go benchmarks and tests in package queue.
func treeFigures() []figure {
	var figures []figure
	for _, t := range []struct {
		customers, links string
		size             int
		bar, aim         float64
	}{{"10,000", "500", 10_000, 300, 150}, {"100,000", "5,000", 100_000, 500, 250}} {
		for _, l := range []struct{ load, name string }{
			{"few", "few of them active"}, {"busy", "all active"},
		} {
			flat := 0.0
			figures = append(figures, figure{
				what: fmt.Sprintf("tree: a packet, %s customers under %s links, %s, over a link of one queue",
					t.customers, t.links, l.name),
				bar: t.bar, aim: t.aim, unit: " ns", each: " ns",
				ours: func() (float64, error) {
					metrics, err := goBench("queue", fmt.Sprintf("^BenchmarkTree$/^%d$/^%s$", t.size, l.load))
					flat = metrics["ns/flat"]
					return metrics["ns/tree"], err
				},
				other:    func() (float64, error) { return flat, nil },
				measured: func(ours, other float64) float64 { return ours - other },
			})
		}
	}
	perOp := func(pattern string) side {
		return func() (float64, error) {
			metrics, err := goBench("queue", pattern)
			return metrics["ns/op"], err
		}
	}
	fluid := goTest("queue", "TestTreeFluid|TestTreeShares", "-trees", "1000")
	once := func(f figure) figure { f.most = 1; return f }
	memory := goTest("dataplane/pipeline", "TestWaitingMemory")
	return append(
		figures,
		amount("link: 4,096 active queues, a packet in and out; other: 1 queue", 350, 150, " ns",
			perOp("^BenchmarkLinkActive$/^4096$"), perOp("^BenchmarkLinkActive$/^1$")),
		timeRatio("fair queue: a drop with 1,024 flows over one with 1", 2, 1.2,
			perOp("^BenchmarkShed$/^flows$/^random=false$/^flows=1024$"),
			perOp("^BenchmarkShed$/^flows$/^random=false$/^flows=1$")),
		once(amount("link: memory of a waiting packet, beside its bytes; other: with a meter per key", 300, 150,
			" B", logged(memory, `one meter: (\d+) B`), logged(memory, `meter per key: (\d+) B`))),
		once(amount("1,000 random trees: lag behind the guaranteed part, packets per level, largest", 1, 1, "",
			logged(fluid, `the guaranteed part: .*max ([\d.]+)`), nil)),
		once(amount("1,000 random trees: lag behind the fluid rule, packets per level, largest; other: 99 %", 3,
			1.5, "", logged(fluid, `behind the fluid: .*max ([\d.]+)`),
			logged(fluid, `behind the fluid: .*p99 ([\d.]+)`))),
		once(amount("1,000 random trees: error of a long-run share, points, largest; other: 99 %", 0.2, 0.01, "",
			logged(fluid, `points of share: .*max ([\d.]+)`),
			logged(fluid, `points of share: .*p99 ([\d.]+)`))),
	)
}
