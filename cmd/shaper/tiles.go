package main

import (
	"slices"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/episodes"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/report"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

const (
	chunkPackets = 256
	tileChunks   = 8  // chunks of an episode: one before its first packet, and those after it
	recentChunks = 16 // chunks in which an episode of packets that a link dropped later may begin
	maxTiles     = 64 // episodes that keep their chunks; those with the most bytes
)

// recorder records the packets around the beginning of episodes. Its memory is bounded: all
// packets are in recent chunks, and episodes keep theirs.
type recorder struct {
	recent [recentChunks]*chunk
	now    *chunk
	kept   []*episodes.Episode // their Detail is a tile
	old    map[int64]*chunk    // chunks of kept that are no longer recent, by number
}

// chunk has chunkPackets packets in the order of the capture.
type chunk struct {
	number  int64 // packets number * chunkPackets + 1 and following
	packets []report.TilePacket
}

// tile has the chunks of an episode.
type tile struct {
	chunks []*chunk
}

// packet adds a packet.
func (r *recorder) packet(p report.TilePacket, id int64) {
	if number := (id - 1) / chunkPackets; r.now == nil || r.now.number != number {
		r.next(number)
	}
	r.now.packets = append(r.now.packets, p)
}

// next begins a chunk.
func (r *recorder) next(number int64) {
	r.now = &chunk{number: number, packets: make([]report.TilePacket, 0, chunkPackets)}
	r.recent[number%recentChunks] = r.now
	r.kept = slices.DeleteFunc(r.kept, func(e *episodes.Episode) bool { return e.Detail == nil })
	r.old = map[int64]*chunk{}
	for _, e := range r.kept {
		t := e.Detail.(*tile)
		if len(t.chunks) < tileChunks {
			t.chunks = append(t.chunks, r.now)
		}
		for _, c := range t.chunks {
			if c.number <= number-recentChunks {
				r.old[c.number] = c
			}
		}
	}
}

// find returns the chunk of a packet, or nil if it is not kept.
func (r *recorder) find(id int64) *chunk {
	number := (id - 1) / chunkPackets
	if c := r.recent[number%recentChunks]; c != nil && c.number == number {
		return c
	}
	return r.old[number]
}

// settled adds the departure of a packet that a link decided later.
func (r *recorder) settled(v *dataplane.Verdict) {
	if c := r.find(v.ID); c != nil {
		c.packets[(v.ID-1)%chunkPackets].SetOutcome(v)
	}
}

// begin starts the tile of an episode.
func (r *recorder) begin(e *episodes.Episode) {
	t := &tile{}
	first := max((e.FirstPacket-1)/chunkPackets-1, r.now.number-recentChunks+1, 0)
	for number := first; number <= r.now.number && len(t.chunks) < tileChunks; number++ {
		if c := r.recent[number%recentChunks]; c.number == number {
			t.chunks = append(t.chunks, c)
		}
	}
	e.Detail = t
	if len(r.kept) == maxTiles {
		least := slices.MinFunc(r.kept, func(a, b *episodes.Episode) int { return int(min(max(a.Bytes-b.Bytes, -1), 1)) })
		least.Detail = nil
		r.kept = slices.DeleteFunc(r.kept, func(e *episodes.Episode) bool { return e.Detail == nil })
	}
	r.kept = append(r.kept, e)
}

// tiles returns the packets around episodes, without gaps within a tile.
func (r *recorder) tiles(list []*episodes.Episode) (out []report.Tile) {
	var all []*chunk
	for _, e := range list {
		if t, ok := e.Detail.(*tile); ok {
			all = append(all, t.chunks...)
		}
	}
	slices.SortFunc(all, func(a, b *chunk) int { return int(min(max(a.number-b.number, -1), 1)) })
	all = slices.Compact(all)
	for i, c := range all {
		if i == 0 || all[i-1].number+1 != c.number {
			out = append(out, report.Tile{First: c.number*chunkPackets + 1})
		}
		t := &out[len(out)-1]
		t.Packets = append(t.Packets, c.packets...)
	}
	return out
}
