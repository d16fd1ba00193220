package walk

import (
	"testing"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/image"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/kerneltest"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// BenchmarkProgram runs the program on a small IPv4 packet, at rates that do not limit it: one of its own,
// and one that several interfaces share.
func BenchmarkProgram(b *testing.B) {
	kerneltest.NeedRoot(b)
	trtcm := &dataplane.Meter{
		Name:   "m",
		Params: meter.TRTCM{CIR: meter.BitRate(1e11), CBS: 1 << 20, PIR: meter.BitRate(2e11), PBS: 1 << 20},
	}
	perSource := &dataplane.Meter{
		Name: "m", Params: meter.TokenBucket{Rate: meter.BitRate(1e11), Burst: 1 << 20},
		Per: dataplane.Key{By: dataplane.BySrc},
	}
	mark := &dataplane.Action{Marks: []dataplane.Mark{{Field: dataplane.DSCP, Value: 10}}}
	queued := &dataplane.Action{
		Queue: &dataplane.Queue{Name: "q", Config: queue.Config{Rate: meter.BitRate(1e11), Bytes: 1 << 20}},
	}
	tcp := dataplane.Match{Proto: []dataplane.Range{{First: 6, Last: 6}}}
	for _, bench := range []struct {
		name  string
		class dataplane.Class
	}{
		{"trtcm", dataplane.Class{Meter: trtcm, Green: mark}},
		{"match", dataplane.Class{Match: tcp, Meter: trtcm, Green: mark}},
		{"per source", dataplane.Class{Meter: perSource}},
		{"queue", dataplane.Class{Meter: trtcm, Green: queued}},
	} {
		bench.class.Name = "all"
		policy := &dataplane.Policy{Classes: []dataplane.Class{bench.class}}
		b.Run(bench.name, func(b *testing.B) { newHooked(b, policy, image.EgressEntry, nil).benchmark(b) })
		b.Run(bench.name+" shared", func(b *testing.B) {
			shared(image.EgressEntry)(b, policy).(*hooked).benchmark(b)
		})
	}
}

func (h *hooked) benchmark(b *testing.B) {
	frame := make([]byte, 64)
	copy(frame, []byte{
		2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0, 0x45, 0, 0, 50, 0, 0, 0, 0, 64, 6, 0x66, 0xc4, 10,
		0, 0, 1, 10, 0, 0, 2,
	})
	b.ResetTimer()
	if _, _, err := h.program.Benchmark(frame, b.N, nil); err != nil {
		b.Fatal(err)
	}
}
