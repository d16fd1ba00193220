package engine

import (
	"fmt"
	"runtime"
	"slices"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/a-seed-32e5a53f/shaper/bpf"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/cause"
)

// ChangeBudget changes the parameters of the budget in a slot while packets are metered.
func ChangeBudget(maps [2]*ebpf.Map, slot uint32, to *bpf.ShaperProfile) error {
	c, err := LoadBudgetProgram(bpf.BudgetProgShaperChange, BudgetMapsByName(maps))
	if err != nil {
		return err
	}
	defer c.Close()
	return RunChange(c, slot, to, 0)
}

// RunChange is ChangeBudget by a loaded program, at a time (ns of CLOCK_MONOTONIC), 0 for
// now.
func RunChange(c *ebpf.Collection, slot uint32, to *bpf.ShaperProfile, now uint64) error {
	if err := c.Maps[bpf.BudgetMapIncoming].Put(uint32(0), to); err != nil {
		return err
	}
	return RunOnSlot(c.Programs[bpf.BudgetProgShaperChange], slot, now)
}

// RunOnSlot runs a program changing the state in a slot, at a time (ns of CLOCK_MONOTONIC), 0 for
// now.
func RunOnSlot(program *ebpf.Program, slot uint32, now uint64) error {
	r := testRun{}
	r.Cb = [5]uint32{slot, uint32(now), uint32(now >> 32)}
	code, err := r.Run(program.FD())
	if err == nil && code != 0 {
		err = fmt.Errorf("slot %d is out of range", slot)
	}
	return cause.Of(err)
}

// LoadBudgetProgram loads a program of bpf/src/budget.c. given are the maps of budgets or
// of leases, by name.
func LoadBudgetProgram(program string, given map[string]*ebpf.Map) (*ebpf.Collection, error) {
	spec, err := bpf.LoadBudget()
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
		case name != bpf.BudgetMapIncoming && name != bpf.BudgetMapGranted && name != bpf.BudgetMapMoves &&
			name != bpf.BudgetMapAdditions:
			delete(spec.Maps, name) // only metering programs use it
		}
	}
	clear(spec.Variables) // only metering programs read them
	c, err := ebpf.NewCollectionWithOptions(spec, options)
	return c, cause.Of(err)
}

// BudgetMapsByName returns the maps of budgets by their names in bpf/src/maps.h.
func BudgetMapsByName(maps [2]*ebpf.Map) map[string]*ebpf.Map {
	return map[string]*ebpf.Map{BudgetMaps[0]: maps[0], BudgetMaps[1]: maps[1]}
}

// testRun runs an eBPF program by BPF_PROG_TEST_RUN. The packet is empty; its context holds the
// arguments. It allocates nothing.
type testRun struct {
	skbContext
	frame [14]byte
	attr  programRunAttr
}

// skbContext is the start of struct __sk_buff of linux/bpf.h.
type skbContext struct {
	_        [2]uint32
	Mark     uint32
	_        [5]uint32
	Priority uint32
	_        [3]uint32
	Cb       [5]uint32
	_        uint32
}

// programRunAttr is union bpf_attr of BPF_PROG_TEST_RUN.
type programRunAttr struct {
	program, code           uint32
	dataSize, dataSizeOut   uint32
	data, dataOut           uint64
	repeat, duration        uint32
	contextSize, contextOut uint32
	context, contextOutAt   uint64
	flags, cpu, batch, _    uint32
}

// Run runs a program and returns its return code.
func (r *testRun) Run(program int) (uint32, error) {
	r.attr = programRunAttr{
		program: uint32(program), dataSize: uint32(len(r.frame)),
		data: uint64(uintptr(unsafe.Pointer(&r.frame))), repeat: 1,
		contextSize: uint32(unsafe.Sizeof(r.skbContext)),
		context:     uint64(uintptr(unsafe.Pointer(&r.skbContext))),
	}
	for {
		_, _, e := unix.Syscall(unix.SYS_BPF, unix.BPF_PROG_TEST_RUN, uintptr(unsafe.Pointer(&r.attr)),
			unsafe.Sizeof(r.attr))
		runtime.KeepAlive(r)
		switch e {
		case 0:
			return r.attr.code, nil
		case unix.EINTR, unix.EAGAIN:
		default:
			return 0, e
		}
	}
}

// RunOnList runs a program on a list, as many values at a time as fit into the map.
func RunOnList[T any](p *ebpf.Program, m *ebpf.Map, list []T) error {
	for chunk := range slices.Chunk(list, int(m.MaxEntries())) {
		if err := PutArray(m, chunk); err != nil {
			return err
		}
		var r testRun
		r.Cb[0] = uint32(len(chunk))
		done, err := r.Run(p.FD())
		if err == nil && done != uint32(len(chunk)) {
			err = fmt.Errorf("%d of %d customers were changed", done, len(chunk))
		}
		if err != nil {
			return cause.Of(err)
		}
	}
	return nil
}

// BudgetMaps are the names of the maps of all budgets.
var BudgetMaps = [2]string{bpf.ShaperMapBudgets, bpf.ShaperMapLocks}
