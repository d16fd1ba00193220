package walk

import (
	"testing"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/kerneltest"
	"github.com/a-seed-32e5a53f/shaper/dataplane/pipeline"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// TestTrailers meters super-packets of a capture that have bytes after the IP packet: the program and
// the pipeline count the same segments and bytes.
func TestTrailers(t *testing.T) {
	kerneltest.NeedRoot(t)
	t.Parallel()
	policy := oneClass(dataplane.Class{Meter: &dataplane.Meter{
		Params: meter.TRTCM{CIR: meter.BitRate(8e6), CBS: 4000, PIR: meter.BitRate(16e6), PBS: 1 << 40},
	}})
	w, err := newWalker(policy, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	for trailer := range 64 {
		data := datagram(0, 0, 2960).Data // 14 bytes more with Ethernet
		for len(data) < 2974+trailer {
			data = append(data, 0)
		}
		const segments, segment, headers = 2, 1514, 54
		packet := func() []dataplane.Packet {
			return []dataplane.Packet{{
				Data: data, WireLen: len(data) + (segments-1)*headers, Link: dataplane.LinkEthernet,
				Time: 1e9, Segments: segments, Segment: segment,
			}}
		}
		l, err := pipeline.New(policy)
		if err != nil {
			t.Fatal(err)
		}
		var want dataplane.Verdict
		l.Process(&packet()[0], &want)
		got := make([]dataplane.Verdict, 1)
		if err := w.Process(packet(), got); err != nil {
			t.Fatal(err)
		}
		if got[0].Length != want.Length || got[0].Packets != want.Packets || want.Length > 4000 {
			t.Errorf("%d bytes after the IP packet: %d bytes of %d packets, want %d of %d", trailer,
				got[0].Length, got[0].Packets, want.Length, want.Packets)
		}
	}
}
