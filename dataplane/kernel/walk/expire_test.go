package walk

import (
	"math"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/a-seed-32e5a53f/shaper/bpf"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/image"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/kerneltest"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/record"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// TestExpiry checks that from its deadline on a program passes packets unchanged and
// uncounted. Without a deadline it never does.
func TestExpiry(t *testing.T) {
	kerneltest.NeedRoot(t)
	t.Parallel()
	const end = 1_000_000
	rows := []struct {
		expiry, now uint64
		passes      bool
	}{
		{0, 1, false},
		{0, math.MaxUint64 >> 1, false},
		{end, end - 1, false},
		{end, end, true},
		{end, end + 1, true},
		{end, math.MaxUint64 >> 1, true},
		{1, end, true},
		{end + 2, end, false},
		{math.MaxInt64, math.MaxInt64 - 1, false},
		{0, end, false},
	}
	policy := &dataplane.Policy{
		Classes: []dataplane.Class{{Name: "all", Green: &dataplane.Action{Drop: true}}},
	}
	for _, hook := range allEntries {
		h := newHooked(t, policy, hook, nil)
		dropped := int64(0)
		for i, r := range rows {
			h.setExpiry(t, r.expiry)
			record := bpf.ShaperRecord{Time: r.now, Wire: 100, Link: uint16(dataplane.LinkEthernet)}
			if err := h.loaded.Maps[bpf.ShaperMapRecords].Put(uint32(0), &record); err != nil {
				t.Fatal(err)
			}
			p := datagram(0, 0, 100)
			code, err := h.program.Run(&ebpf.RunOptions{Data: p.Data, DataOut: h.room[:len(p.Data)+256]})
			if err != nil {
				t.Fatal(err)
			}
			if want := h.returnCode(!r.passes); code != want {
				t.Errorf("%v, row %d: the program returned %d, want %d", image.Programs[hook], i, int32(code),
					int32(want))
			}
			if !r.passes {
				dropped++
			}
		}
		got, err := h.Stats()
		if err != nil {
			t.Fatal(err)
		}
		if n := got[0].Drops[0][dataplane.CauseColor].Packets; n != dropped ||
			got[0].Colors[0].Packets != dropped || got[1].Untaken.Packets != 0 {
			t.Errorf("%v: counted %d drops of %d packets, want %d of %[4]d and no unclassified packets",
				image.Programs[hook], n, got[0].Colors[0].Packets, dropped)
		}
	}
}

// TestExpiryQueue checks that a packet after the deadline is not queued.
func TestExpiryQueue(t *testing.T) {
	kerneltest.NeedRoot(t)
	t.Parallel()
	policy := queueAll(queue.Config{Rate: kerneltest.EightMbit, Bytes: 1 << 20})
	for _, pacer := range []record.Pacer{record.FQ, record.HTB} {
		h := newPaced(t, policy, pacer, false)
		h.setExpiry(t, uint64(10*kerneltest.Millisecond))
		in := skb{Priority: 7, Tstamp: 12345}
		if _, out := h.runQueued(t, datagram(10*kerneltest.Millisecond-1, 0, 1000), in); out == in {
			t.Errorf("%s: a packet before the deadline is not queued", pacer)
		}
		p := datagram(10*kerneltest.Millisecond, 0, 1000)
		if _, out := h.runQueued(t, p, in); out.Priority != in.Priority || out.Tstamp != in.Tstamp {
			t.Errorf("%s: a packet after the deadline has priority %#x and tstamp %d, want %#x and %d", pacer,
				out.Priority, out.Tstamp, in.Priority, in.Tstamp)
		}
		all, err := h.Stats()
		if err != nil {
			t.Fatal(err)
		}
		if n := all[0].Queued[0].Packets; n != 1 {
			t.Errorf("%s: counted %d queued packets, want 1", pacer, n)
		}
	}
}
