package annotate

import (
	"bytes"
	"strings"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/google/gopacket/layers"
	"github.com/google/gopacket/pcapgo"
)

// TestOrder gives verdicts late and in any order. Packets must be written in the order of their
// arrival, as soon as all earlier ones have a verdict, and gopacket must read them.
func TestOrder(t *testing.T) {
	plan, err := compiled.Compile(&dataplane.Policy{Classes: []dataplane.Class{{Name: "all"}}})
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	w := New(&out, plan, "test")
	for id := range int64(6) {
		link := dataplane.LinkEthernet
		if id%2 == 1 {
			link = dataplane.LinkRaw
		}
		if err := w.Arrived(&dataplane.Packet{
			ID: 10 * id, Time: id, Link: link, WireLen: 100, Data: make([]byte, id),
		}); err != nil {
			t.Fatal(err)
		}
		if err := w.Packet(
			&dataplane.Verdict{ID: 10 * id, Done: dataplane.Queued | dataplane.Waiting}); err != nil {
			t.Fatal(err)
		}
	}
	for i, step := range []struct{ id, written int64 }{{10, 0}, {30, 0}, {0, 2}, {20, 4}, {50, 4}, {40, 6}} {
		if err := w.Settled(
			&dataplane.Verdict{ID: step.id, Departure: 1500, Done: dataplane.Queued}); err != nil {
			t.Fatal(err)
		}
		if err := w.Flush(); err != nil {
			t.Fatal(err)
		}
		if n := int64(strings.Count(out.String(), "shaper: packet ")); n != step.written {
			t.Errorf("step %d: %d packets written, want %d", i, n, step.written)
		}
	}
	r, err := pcapgo.NewNgReader(&out, pcapgo.NgReaderOptions{WantMixedLinkType: true})
	if err != nil {
		t.Fatal(err)
	}
	for id := range int64(6) {
		data, info, err := r.ReadPacketData()
		want := []layers.LinkType{layers.LinkTypeEthernet, layers.LinkTypeRaw}[id%2]
		if err != nil || int64(len(data)) != id || info.Length != 100 || info.Timestamp.UnixNano() != id ||
			info.AncillaryData[0] != want {
			t.Errorf("packet %d: %d bytes, %+v, %v", id, len(data), info, err)
		}
	}
	if w.bytes != 0 || len(w.pending) != 0 {
		t.Errorf("%d bytes of %d packets are left", w.bytes, len(w.pending))
	}
}

// TestLimit checks that a packet that stays queued does not take all memory.
func TestLimit(t *testing.T) {
	plan, err := compiled.Compile(&dataplane.Policy{Classes: []dataplane.Class{{Name: "all"}}})
	if err != nil {
		t.Fatal(err)
	}
	w := New(&bytes.Buffer{}, plan, "test")
	w.limit = 3 << 20
	for id := int64(1); ; id++ {
		err := w.Arrived(&dataplane.Packet{ID: id, Data: make([]byte, 1<<20)})
		if err == nil {
			continue
		}
		if want := "packet 1 is still queued after 3 MiB of later packets"; id != 3 ||
			!strings.HasPrefix(err.Error(), want) {
			t.Errorf("packet %d: %v, want packet 3: %s", id, err, want)
		}
		return
	}
}
