package decisions

import (
	"io"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
)

// BenchmarkPacket writes the row of a packet.
func BenchmarkPacket(b *testing.B) {
	plan, err := compiled.Compile(&dataplane.Policy{Classes: []dataplane.Class{{Name: "all"}}})
	if err != nil {
		b.Fatal(err)
	}
	for _, format := range []string{"csv", "json"} {
		b.Run(format, func(b *testing.B) {
			w := New(io.Discard, plan, format == "json")
			v := dataplane.Verdict{
				Now: 1.7e18, Departure: 1.7e18, Length: 594, Packets: 1, Done: dataplane.Pass, HasDSCP: true,
			}
			for b.Loop() {
				v.ID++
				v.Now += 1000
				if err := w.Packet(&dataplane.Packet{Time: v.Now}, &v); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
