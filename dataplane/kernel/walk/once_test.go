package walk

import (
	"testing"

	"github.com/cilium/ebpf"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/image"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/kerneltest"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// newOnce loads the program with a chain of meters that use one budget, each with a label. Label 0: the
// budget charges every packet.
func newOnce(t testing.TB, maps [2]*ebpf.Map, labels ...uint16) *hooked {
	t.Helper()
	var first *dataplane.Meter
	for range labels {
		first = &dataplane.Meter{
			Name: "m", Params: meter.TokenBucket{Rate: meter.BitRate(1e11), Burst: 1 << 20}, Aware: true,
			PreColor: dataplane.PreColor{Map: map[uint32]meter.Color{}}, Then: first,
		}
	}
	beginBudget(t, maps, first)
	return newBudgetedBy(t, first, image.EgressEntry, maps, 0, func(g *image.Image) {
		for i, label := range labels {
			if g.Stages[i].Label = label; label != 0 {
				g.Constants.Once = 1
			}
		}
	})
}

// TestOnceIsRemoved checks that the kernel removes the code of count: once from programs that do not use
// it.
func TestOnceIsRemoved(t *testing.T) {
	kerneltest.NeedRoot(t)
	maps := hostMaps(t)
	instructions := func(label uint16) int {
		p, err := newOnce(t, maps, label).program.Info()
		if err != nil {
			t.Fatal(err)
		}
		list, err := p.Instructions()
		if err != nil {
			t.Fatal(err)
		}
		return len(list)
	}
	each, once := instructions(0), instructions(7)
	t.Logf("%d instructions, %d with count: once", each, once)
	if once-each < 10 {
		t.Errorf("count: once has %d instructions: want 10 or more", once-each)
	}
}

// BenchmarkOnce runs the program on a small packet, with a budget that charges every packet, or once.
// Labels that alternate make each meter charge and write its note.
func BenchmarkOnce(b *testing.B) {
	kerneltest.NeedRoot(b)
	for name, labels := range map[string][]uint16{
		"each": {0}, "judged before": {7}, "two each": {0, 0}, "two charged and noted": {7, 8},
	} {
		b.Run(name, func(b *testing.B) {
			h := newOnce(b, hostMaps(b), labels...)
			frame := make([]byte, 64)
			copy(frame, []byte{
				2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0, 0x45, 0, 0, 50, 0, 0, 0, 0, 64, 6, 0x66, 0xc4, 10,
				0, 0, 1, 10, 0, 0, 2,
			})
			b.ResetTimer()
			if _, _, err := h.program.Benchmark(frame, b.N, nil); err != nil {
				b.Fatal(err)
			}
		})
	}
}
