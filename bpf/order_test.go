package bpf

import (
	"maps"
	"testing"
	"unsafe"

	"github.com/cilium/ebpf/asm"
)

// TestRingOrder checks that the end of a queue's ring is read twice and written once by instructions
// that are barriers: on CPUs other than x86 nothing else keeps the accesses of a ring in order. Of the
// atomic instructions, those that fetch the previous value are.
func TestRingOrder(t *testing.T) {
	spec, err := LoadShaper()
	if err != nil {
		t.Fatal(err)
	}
	const end = int16(unsafe.Offsetof(ShaperBacklog{}.End))
	queues := 0
	for name, program := range spec.Programs {
		got, in, admits := map[asm.AtomicOp]int{}, "", false
		for i := range program.Instructions {
			ins := &program.Instructions[i]
			if symbol := ins.Symbol(); symbol != "" {
				in = symbol
			}
			if in != "admit" {
				continue
			}
			admits = true
			if op := ins.OpCode.AtomicOp(); op != asm.InvalidAtomic && ins.Offset == end {
				got[op]++
			}
		}
		if !admits {
			continue
		}
		queues++
		if want := map[asm.AtomicOp]int{asm.FetchAdd: 2, asm.Xchg: 1}; !maps.Equal(got, want) {
			t.Errorf("%s: got %v at the end of a ring, want %v", name, got, want)
		}
	}
	if queues == 0 {
		t.Error("no program calls admit")
	}
}
