package kernel

import (
	"fmt"

	"github.com/cilium/ebpf"

	"github.com/a-seed-32e5a53f/shaper/bpf"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/cause"
)

// changeBudget gives a budget other parameters while packets go through it.
func changeBudget(maps [2]*ebpf.Map, slot uint32, to *bpf.ShaperProfile) error {
	c, err := loadBudgetProgram(bpf.ShareProgShaperChange, budgetMapsByName(maps))
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
	code, err := r.run(c.Programs[bpf.ShareProgShaperChange].FD())
	if err == nil && code != 0 {
		err = fmt.Errorf("there is no slot %d", slot)
	}
	return cause.Of(err)
}

// loadShare loads a program of share.c, with the maps of budgets or of leases.
func loadBudgetProgram(program string, given map[string]*ebpf.Map) (*ebpf.Collection, error) {
	spec, err := bpf.LoadShare()
	if err != nil {
		return nil, err
	}
	for name := range spec.Programs {
		if name != program {
			delete(spec.Programs, name)
		}
	}
	options := ebpf.CollectionOptions{MapReplacements: given}
	for name := range spec.Maps {
		switch m := given[name]; {
		case m != nil:
			spec.Maps[name].MaxEntries = m.MaxEntries()
		case name != bpf.ShareMapIncoming && name != bpf.ShareMapGranted:
			delete(spec.Maps, name) // of programs that meter packets
		}
	}
	clear(spec.Variables) // the policy's, which these programs do not read
	c, err := ebpf.NewCollectionWithOptions(spec, options)
	return c, cause.Of(err)
}

// byName are the maps of budgets by their names.
func budgetMapsByName(maps [2]*ebpf.Map) map[string]*ebpf.Map {
	return map[string]*ebpf.Map{budgetMaps[0]: maps[0], budgetMaps[1]: maps[1]}
}
