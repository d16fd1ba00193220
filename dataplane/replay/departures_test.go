package replay

import (
	"bytes"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

// TestDepartures schedules packets of several queues at random, and compares the output with
// all records sorted by departure and number. Some queues stop, so that lists end, and some
// records are larger than a segment.
func TestDepartures(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	for range 20 {
		type packet struct {
			moment
			raw []byte
		}
		queues := make([]int64, 1+rnd.IntN(6)) // latest departure
		var got bytes.Buffer
		r := run{out: newOutput(&got)}
		var scheduled []packet
		most, now := 0, int64(0)
		for number := range int64(5000) {
			if rnd.IntN(500) == 0 { // an idle time, in which all packets depart
				now += 100_000
			}
			now += int64(rnd.IntN(10))
			if err := r.release(now); err != nil {
				t.Fatal(err)
			}
			q := &queues[rnd.IntN(len(queues))]
			*q = max(*q, now) + int64(rnd.IntN(12*len(queues)))
			size := 16 + rnd.IntN(1500)
			if rnd.IntN(300) == 0 {
				size = segmentSize - 1 + rnd.IntN(3)
			}
			raw := bytes.Repeat(binary.LittleEndian.AppendUint64(nil, uint64(number)), size/8+1)[:size]
			r.scheduled.push(moment{*q, number}, raw)
			scheduled = append(scheduled, packet{moment{*q, number}, raw})
			most = max(most, len(r.scheduled.lists))
		}
		if err := r.release(math.MaxInt64); err != nil {
			t.Fatal(err)
		}
		if err := r.out.endRun(); err != nil {
			t.Fatal(err)
		}
		if err := r.out.flush(); err != nil {
			t.Fatal(err)
		}
		slices.SortFunc(scheduled, func(a, b packet) int {
			if a.before(b.moment) {
				return -1
			}
			return 1
		})
		var want bytes.Buffer
		for _, p := range scheduled {
			want.Write(p.raw)
		}
		if !bytes.Equal(got.Bytes(), want.Bytes()) {
			t.Fatalf("%d queues: the output is not in the order of departures", len(queues))
		}
		if most > len(queues) {
			t.Errorf("%d queues: got %d lists", len(queues), most)
		}
		if n := len(r.scheduled.heads) + len(r.scheduled.lists); n > 0 {
			t.Errorf("%d lists after all packets departed", n)
		}
	}
}

// TestHeld puts and takes records at random, and compares their bytes.
func TestHeld(t *testing.T) {
	rnd := rand.New(rand.NewPCG(4, 2))
	h := held{pages: map[int64]*page{}}
	kept := map[int64]heldRecord{}
	for number := range int64(20_000) {
		if rnd.IntN(3) > 0 {
			raw := make([]byte, 12+rnd.IntN(2000))
			for i := range raw {
				raw[i] = byte(rnd.Uint32())
			}
			rec := record{
				Packet: &dataplane.Packet{Shift: rnd.Int64()}, raw: raw, fcsCorrect: rnd.IntN(2) == 0,
			}
			h.put(number, &rec)
			kept[number] = heldRecord{raw, rec.fcsCorrect, rec.Shift}
		}
		for range rnd.IntN(3) {
			n := max(number-int64(rnd.IntN(200)), 0)
			want, exists := kept[n]
			delete(kept, n)
			if got, ok := h.take(n); ok != exists || !bytes.Equal(got.raw, want.raw) ||
				got.fcsCorrect != want.fcsCorrect {
				t.Fatalf("record %d differs, found %t", n, ok)
			}
		}
	}
	for n := range kept {
		h.take(n)
	}
	if len(h.pages) > 0 {
		t.Errorf("%d pages are left", len(h.pages))
	}
}

// TestSizeClass checks that memory for a record is large enough, wastes little, and has an
// index of its own.
func TestSizeClass(t *testing.T) {
	sizes := map[int]int{}
	for n := 1; n <= maxRecord; n++ {
		index, size := sizeClass(n)
		if size < n || size > n+max(n/16, 32) || index >= len(held{}.spare) {
			t.Fatalf("%d bytes: got a size of %d with index %d", n, size, index)
		}
		if other, ok := sizes[index]; ok && other != size {
			t.Fatalf("index %d has the sizes %d and %d", index, other, size)
		}
		sizes[index] = size
	}
}
