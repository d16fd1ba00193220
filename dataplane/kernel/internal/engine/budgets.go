package engine

import (
	"github.com/cilium/ebpf"

	"github.com/a-seed-32e5a53f/shaper/bpf"
)

// Budgets are the open maps of the host's budgets, for meters in user space.
type Budgets struct {
	ID     ebpf.MapID // of the first map
	maps   [2]*ebpf.Map
	memory Memory[bpf.ShaperBudget]
	loaded [3]*ebpf.Collection // the programs of BudgetMeter
}

// OpenBudgets opens maps of budgets in the order of BudgetMaps, and loads the programs of meters.
// maps may be closed afterwards. The caller must close the budgets.
func OpenBudgets(maps [2]*ebpf.Map) (b *Budgets, err error) {
	b = &Budgets{}
	defer func() {
		if err != nil {
			b.Close()
		}
	}()
	if b.ID, err = MapID(maps[0]); err != nil {
		return b, err
	}
	for i := range maps {
		if b.maps[i], err = maps[i].Clone(); err != nil {
			return b, err
		}
	}
	for i, name := range []string{
		bpf.BudgetProgShaperColor, bpf.BudgetProgShaperDraw, bpf.BudgetProgShaperRefund,
	} {
		if b.loaded[i], err = LoadBudgetProgram(name, BudgetMapsByName(maps)); err != nil {
			return b, err
		}
	}
	b.memory, err = MapMemory[bpf.ShaperBudget](maps[0])
	return b, err
}

// Close closes the maps. Meters must not be used any more.
func (b *Budgets) Close() {
	b.memory.Close()
	for _, c := range b.loaded {
		if c != nil {
			c.Close()
		}
	}
	for _, m := range b.maps {
		m.Close()
	}
}
