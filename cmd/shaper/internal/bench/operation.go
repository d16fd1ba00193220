package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/cilium/ebpf"
)

const million = 1_000_000

const linkPolicy = `
classes: [{name: all, green: {queue: q}}]
queues: {q: {link: uplink, limit: 40ms}}
links: {uplink: {rate: 10mbit}}`

// operationFigures measures commands and the API while the kernel shapes many customers.
func operationFigures(get func() (*wire, error)) []figure {
	// on measures with the file of a policy of n customers.
	on := func(n int, f func(w *wire, policy string) (float64, error)) side {
		return onSource(get, func(w *wire) (float64, error) {
			policy, err := w.policyOf(n)
			if err != nil {
				return 0, err
			}
			return f(w, policy)
		})
	}
	serve := func(f func(s *served) (float64, error)) side {
		return on(numCustomers, func(w *wire, policy string) (float64, error) {
			return w.whileServing(f, "--policy", policy, "--both")
		})
	}
	link := onSource(get, func(w *wire) (float64, error) {
		policy := filepath.Join(w.dir, "link.yaml")
		if err := os.WriteFile(policy, []byte(linkPolicy), 0o600); err != nil {
			return 0, err
		}
		return w.whileServing(func(s *served) (float64, error) { return s.changeTime(0.5, rateOfLink) },
			"--policy", policy)
	})
	median := func(s *served) (float64, error) { return s.changeTime(0.5, rateOfCustomer) }
	slow := func(s *served) (float64, error) { return s.changeTime(0.99, rateOfCustomer) }
	out := []figure{
		amount("kernel: shaper run, 100,000 customers from a file", 10, 2, " s",
			on(numCustomers, (*wire).attachTime), nil),
		amount("kernel: shaper run, a million customers from a file", 100, 20, " s",
			on(million, (*wire).attachTime), nil),
		amount("kernel: all maps of 100,000 customers, IPv4 and IPv6, for each customer", 400, 200, " B",
			on(numCustomers, func(w *wire, policy string) (float64, error) {
				maps, _, err := w.memoryOf(policy)
				return maps / numCustomers, err
			}), nil),
		amount("kernel: a million customers, maps and peak of the process", 2000, 300, " MB",
			on(million, func(w *wire, policy string) (float64, error) {
				maps, process, err := w.memoryOf(policy)
				return (maps + process) / 1e6, err
			}), nil),
		amount("kernel: a customer changed by the API, median of 500", 5, 0.2, " ms", serve(median), nil),
		amount("kernel: a customer changed by the API in a flood of 64 B, median of 500", 5, 0.2, " ms",
			serve(flooded(median)), nil),
		amount("kernel: a customer changed by the API in a flood of 64 B, 99 % of 500 take less", 5, noAim,
			" ms", serve(flooded(slow)), nil),
		amount("kernel: 10,000 customers changed in one call of the API", 1, 0.1, " s",
			serve((*served).changeMany), nil),
		amount("kernel: 10,000 customers changed by shaper set --file", 1, 0.1, " s",
			serve((*served).setMany), nil),
		amount("kernel: shaper stats --customers --top 20 of 100,000 customers", 1, 0.1, " s",
			serve((*served).topCustomers), nil),
		amount("kernel: the rate of a link changed by the API, median of 500", 5, 0.5, " ms", link, nil),
	}
	for i := range out {
		out[i].most = 3
	}
	return out
}

// policyOf returns the path of a policy of n customers.
func (w *wire) policyOf(n int) (string, error) {
	dir := filepath.Join(w.dir, fmt.Sprint("live", n))
	policy := filepath.Join(dir, "policy.yaml")
	if _, err := os.Stat(policy); err == nil {
		return policy, nil
	}
	return policy, writeTable(dir, n, meteredPlan)
}

// attachTime returns the time from the start of shaper run until it is attached, in s.
func (w *wire) attachTime(policy string) (float64, error) {
	begin := time.Now()
	return w.whileRunning(func(int) (float64, error) { return time.Since(begin).Seconds(), nil }, w.shaper,
		"run", "v0", "--policy", policy)
}

// memoryOf returns the memory of the maps of shaper run, and the peak memory of its process, in bytes.
func (w *wire) memoryOf(policy string) (maps, process float64, err error) {
	before, _, err := mapsAfter(0)
	if err != nil {
		return 0, 0, err
	}
	_, err = w.whileRunning(func(pid int) (_ float64, err error) {
		_, maps, err = mapsAfter(before)
		process = peakMemory(pid, w.shaper)
		return 0, err
	}, w.shaper, "run", "v0", "--policy", policy)
	return maps, process, err
}

// mapsAfter returns the last ID of the machine's eBPF maps, and the memory of the maps after a
// given ID, in bytes. New maps get higher IDs; old ones stay for a while after the end of their
// process.
func mapsAfter(id ebpf.MapID) (last ebpf.MapID, memory float64, err error) {
	for {
		next, err := ebpf.MapGetNextID(id)
		if errors.Is(err, os.ErrNotExist) {
			return id, memory, nil
		} else if err != nil {
			return 0, 0, err
		}
		id = next
		m, err := ebpf.NewMapFromID(id)
		if errors.Is(err, os.ErrNotExist) {
			continue
		} else if err != nil {
			return 0, 0, err
		}
		info, err := m.Info()
		m.Close()
		if err != nil {
			return 0, 0, err
		}
		used, _ := info.Memlock()
		memory += float64(used)
	}
}
