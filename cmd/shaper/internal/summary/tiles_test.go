package summary

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/episodes"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/report"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

// TestRecorder begins episodes at random packets, more than can be kept. Those with the most bytes
// keep the packets from before their first one on, and departures that were known later. The numbers of
// the packets may have gaps of many packets.
func TestRecorder(t *testing.T) {
	for _, gap := range []int64{1, 3, 5000} {
		t.Run(fmt.Sprint(gap), func(t *testing.T) { recordEpisodes(t, gap) })
	}
}

func recordEpisodes(t *testing.T, gap int64) {
	r := rand.New(rand.NewPCG(1, 0))
	const packets, delay = 60_000, 6000 // a delay of more packets than are recent
	var rec recorder
	var all []*episodes.Episode
	levels := make([]report.Level, 3) // the recorder copies them
	for id := int64(1); id <= packets; id++ {
		for i := range levels {
			levels[i] = report.Level{Meter: i, C: id}
		}
		rec.packet(report.TilePacket{
			Number: id * gap, At: id, Fate: report.Undecided, Levels: levels[:id%4],
		})
		if before := id - delay; before > 0 {
			rec.settled(&dataplane.Verdict{ID: before * gap, Done: dataplane.Pass, Departure: id})
		}
		if r.IntN(100) == 0 {
			e := &episodes.Episode{FirstPacket: gap * max(1, id-r.Int64N(2)*2000)}
			rec.begin(e)
			e.Bytes = 1 + r.Int64N(1e9)
			all = append(all, e)
		}
		if n := len(all); n > 0 && r.IntN(300) == 0 {
			all[r.IntN(n)].Detail = nil // it is not among the worst
		}
	}
	kept := 0
	for _, e := range all {
		if e.Detail == nil {
			continue
		}
		kept++
		tiles := rec.tiles([]*episodes.Episode{e})
		if len(tiles) != 1 {
			t.Fatalf("packet %d: %d tiles", e.FirstPacket, len(tiles))
		}
		first, n, from := tiles[0].Packets[0].At, int64(len(tiles[0].Packets)), e.FirstPacket/gap
		if first > from || from > chunkPackets && first > from-chunkPackets ||
			n < min(tileChunks*chunkPackets, packets-first+1) {
			t.Errorf("packet %d: a tile of %d packets from %d on", e.FirstPacket, n, first)
		}
		for i, p := range tiles[0].Packets {
			id := first + int64(i)
			if int64(len(p.Levels)) != id%4 ||
				slices.ContainsFunc(p.Levels, func(l report.Level) bool { return l.C != id }) {
				t.Fatalf("packet %d has levels %v", id, p.Levels)
			}
			if p.At != id || p.Number != id*gap || id+delay <= packets &&
				(p.Fate != report.Sent || p.Left != id+delay) {
				t.Fatalf("packet %d of a tile: got %+v", id, p)
			}
		}
	}
	if kept < maxTiles/2 || kept > maxTiles || len(rec.old) > maxTiles*tileChunks {
		t.Errorf("%d tiles and %d old chunks are kept, want at most %d tiles", kept, len(rec.old), maxTiles)
	}
}

// TestRecorderAllocations checks that packets share the allocations of their chunk.
func TestRecorderAllocations(t *testing.T) {
	var rec recorder
	levels := make([]report.Level, 2)
	if n := testing.AllocsPerRun(10*chunkPackets, func() {
		rec.packet(report.TilePacket{Number: rec.packets, Levels: levels})
	}); n != 0 {
		t.Errorf("%v allocations for a packet", n)
	}
}
