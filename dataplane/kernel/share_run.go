package kernel

import (
	"fmt"

	"github.com/cilium/ebpf"

	"github.com/a-seed-32e5a53f/shaper/bpf"
)

// changeBudget gives a budget other parameters while packets go through it.
func changeBudget(maps [2]*ebpf.Map, slot uint32, to *bpf.ShaperProfile) error {
	c, err := loadShare(bpf.ShareProgShaperChange, maps)
	if err != nil {
		return err
	}
	defer c.Close()
	return runChange(c, slot, to, 0)
}

// runChange is changeBudget by a program that is loaded, at a time (ns), 0 for now.
func runChange(c *ebpf.Collection, slot uint32, to *bpf.ShaperProfile, now uint64) error {
	if err := c.Maps[bpf.ShareMapIncoming].Put(uint32(0), to); err != nil {
		return err
	}
	r := testRun{}
	r.Cb = [5]uint32{slot, uint32(now), uint32(now >> 32)}
	code, err := r.do(c.Programs[bpf.ShareProgShaperChange].FD())
	if err == nil && code != 0 {
		err = fmt.Errorf("there is no slot %d", slot)
	}
	return explain(err)
}

// loadShare loads a program by which user space takes part in budgets.
func loadShare(program string, maps [2]*ebpf.Map) (*ebpf.Collection, error) {
	spec, err := bpf.LoadShare()
	if err != nil {
		return nil, err
	}
	for name := range spec.Programs {
		if name != program {
			delete(spec.Programs, name)
		}
	}
	keep := map[string]bool{bpf.ShareMapIncoming: true}
	options := ebpf.CollectionOptions{MapReplacements: map[string]*ebpf.Map{}}
	for i, name := range budgetMaps {
		keep[name], options.MapReplacements[name] = true, maps[i]
		spec.Maps[name].MaxEntries = maps[i].MaxEntries()
	}
	for name := range spec.Maps {
		if !keep[name] {
			delete(spec.Maps, name)
		}
	}
	clear(spec.Variables) // the policy's, which these programs do not read
	c, err := ebpf.NewCollectionWithOptions(spec, options)
	return c, explain(err)
}
