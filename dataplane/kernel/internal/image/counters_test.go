package image

import (
	"math"
	"slices"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/a-seed-32e5a53f/shaper/bpf"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/kerneltest"
)

// TestStatsWrap checks that counters wrap at 2^63 and are never negative.
func TestStatsWrap(t *testing.T) {
	kerneltest.NeedRoot(t)
	t.Parallel()
	shared, err := NewMaps()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(shared.Close)
	if err := shared.grow(&Image{}); err != nil {
		t.Fatal(err)
	}
	perCPU := make([]bpf.ShaperCounts, ebpf.MustPossibleCPU())
	var packets, bytes uint64
	for i := range perCPU {
		c := &perCPU[i]
		c.Colors[1].Packets, c.Colors[1].Bytes = math.MaxUint64-uint64(i), 1<<63-5+uint64(i)
		c.Drops[2][1].Packets, c.Marked[0].Bytes = 1<<63, math.MaxUint64
		c.Ce[1].Bytes = math.MaxUint64
		packets += c.Colors[1].Packets
		bytes += c.Colors[1].Bytes
	}
	if err := shared.Counters.Put(uint32(3), perCPU); err != nil {
		t.Fatal(err)
	}
	for i := range perCPU {
		perCPU[i] = bpf.ShaperCounts{}
		perCPU[i].Colors[0].Packets = 1<<63 + 1
	}
	if err := shared.Counters.Put(uint32(0), perCPU); err != nil {
		t.Fatal(err)
	}
	got, err := ReadStats(shared.Counters, []uint32{3, 1})
	if err != nil {
		t.Fatal(err)
	}
	cpus := int64(len(perCPU))
	want := make([]dataplane.ClassStats, 3)
	want[0].Colors[1] = dataplane.Count{
		Packets: int64(packets & math.MaxInt64), Bytes: int64(bytes & math.MaxInt64),
	}
	want[0].Marked[0].Bytes = math.MaxInt64 - cpus + 1
	want[0].CE[1].Bytes = math.MaxInt64 - cpus + 1
	want[2].Untaken.Packets = cpus
	for i := range got {
		if got[i] != want[i] {
			t.Errorf("entry %d: got %+v, want %+v", i, got[i], want[i])
		}
	}
}

// TestCounterMaps checks that the newest map of counters is found in whatever order the kernel
// lists the maps.
func TestCounterMaps(t *testing.T) {
	kerneltest.NeedRoot(t)
	t.Parallel()
	s, err := NewMaps()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	for _, slot := range []uint32{3, 30, 300} {
		if err := s.grow(&Image{classes: []bpf.ShaperClass{{Slot: slot}}}); err != nil {
			t.Fatal(err)
		}
	}
	all := append(slices.Clone(s.Counters.older), s.Counters.Map)
	if len(all) != 3 {
		t.Fatalf("got %d generations of counters, want 3", len(all))
	}
	for _, order := range [][3]int{{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}} {
		var c counterMaps
		for _, i := range order {
			c.Add(all[i])
		}
		if c.Map != s.Counters.Map || len(c.older) != 2 || slices.Contains(c.older, c.Map) {
			t.Errorf("order %v: got a newest map of %d slots and %d older ones, want %d slots and 2", order,
				c.MaxEntries(), len(c.older), s.Counters.MaxEntries())
		}
	}
}
