package replay

import (
	"bytes"
	"io"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// BenchmarkRun replays 20,000 packets of IMIX from 1,000 sources, at 3 Gbit/s.
func BenchmarkRun(b *testing.B) {
	c := littleEndian().pcap(magicNano, ethernet)
	r := rand.New(rand.NewPCG(1, 2))
	now := uint32(0)
	for i := range 20_000 {
		n := [...]int{64, 64, 64, 64, 64, 64, 64, 594, 594, 594, 594, 1518}[r.IntN(12)]
		p := ipv4(n-14, 0, uint16(i))
		src := netip.AddrFrom4([4]byte{10, 0, byte(r.IntN(4)), byte(r.IntN(250))}).As4()
		copy(p[12:], src[:])
		c.packet(0, now, ethernetFrame(p))
		now += uint32(n) * 8 / 3
	}
	trtcm := meter.TRTCM{CIR: meter.BitRate(1e9), CBS: 64 << 10, PIR: meter.BitRate(2e9), PBS: 64 << 10}
	mark := &dataplane.Action{Marks: []dataplane.Mark{{Field: dataplane.DSCP, Value: 12}}}
	paced := func(rate float64, config queue.Config, link *dataplane.Link) *dataplane.Action {
		config.Rate = meter.BitRate(int64(rate))
		q := &dataplane.Queue{Name: "q", Config: config, Link: link}
		if link != nil {
			q.Rate = meter.Rate{}
		}
		return &dataplane.Action{Queue: q}
	}
	for _, bench := range []struct {
		name  string
		class dataplane.Class
	}{
		{"trtcm", dataplane.Class{Meter: &dataplane.Meter{Name: "m", Params: trtcm}, Yellow: mark}},
		{"per source", dataplane.Class{Meter: &dataplane.Meter{Name: "m", Params: trtcm, Per: dataplane.Key{By: dataplane.BySrc}}}},
		{"queue", dataplane.Class{Green: paced(2.9e9, queue.Config{Time: 50 * time.Millisecond}, nil)}},
		{"full queue", dataplane.Class{Green: paced(2e9, queue.Config{Time: 5 * time.Millisecond}, nil)}},
		{"link", dataplane.Class{Green: paced(0, queue.Config{Packets: 1000}, &dataplane.Link{Name: "wan", Rate: meter.BitRate(2e9)})}},
	} {
		b.Run(bench.name, func(b *testing.B) {
			bench.class.Name = "all"
			for b.Loop() {
				if _, err := Run(b.Context(), bytes.NewReader(c.bytes), newPipeline(b, bench.class),
					Config{Output: io.Discard}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
