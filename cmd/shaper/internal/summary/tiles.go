package summary

import (
	"cmp"
	"slices"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/episodes"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/report"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

const (
	chunkPackets = 256
	tileChunks   = 8  // chunks of an episode: one before its first packet, and those after it
	recentChunks = 16 // chunks in which an episode of packets that a link dropped later may begin
	maxTiles     = 64 // episodes keeping their chunks; those with the most bytes
)

// recorder records the packets around the beginning of episodes. Its memory is bounded: all
// packets are in recent chunks, and episodes keep theirs.
type recorder struct {
	packets int64 // so far
	recent  [recentChunks]*chunk
	now     *chunk
	kept    []*episodes.Episode // their Detail is a tile
	old     []*chunk            // chunks of kept, no longer recent, in order
}

// chunk holds chunkPackets packets in the order of the capture. Their numbers may have gaps,
// because a replay can leave packets out.
type chunk struct {
	index   int64 // among all chunks
	packets []report.TilePacket
	levels  []report.Level // of the packets
}

// tile holds the chunks of an episode.
type tile struct {
	chunks []*chunk
}

// packet adds a packet. It copies the levels.
func (r *recorder) packet(p report.TilePacket) {
	if r.packets%chunkPackets == 0 {
		r.next(r.packets / chunkPackets)
	}
	r.packets++
	first := len(r.now.levels)
	r.now.levels = append(r.now.levels, p.Levels...)
	p.Levels = slices.Clip(r.now.levels[first:])
	r.now.packets = append(r.now.packets, p)
}

// next begins a chunk.
func (r *recorder) next(index int64) {
	levels := 0 // as many as in the chunk before
	if r.now != nil {
		levels = len(r.now.levels)
	}
	r.now = &chunk{
		index: index, packets: make([]report.TilePacket, 0, chunkPackets),
		levels: make([]report.Level, 0, levels),
	}
	r.recent[index%recentChunks] = r.now
	r.kept = slices.DeleteFunc(r.kept, func(e *episodes.Episode) bool { return e.Detail == nil })
	clear(r.old) // episodes no longer kept release their chunks
	r.old = r.old[:0]
	for _, e := range r.kept {
		t := e.Detail.(*tile)
		if len(t.chunks) < tileChunks {
			t.chunks = append(t.chunks, r.now)
		}
		for _, c := range t.chunks {
			if c.index <= index-recentChunks {
				r.old = append(r.old, c)
			}
		}
	}
	r.old = inOrder(r.old)
}

// inOrder sorts chunks and removes duplicates.
func inOrder(list []*chunk) []*chunk {
	slices.SortFunc(list, func(a, b *chunk) int { return cmp.Compare(a.index, b.index) })
	return slices.Compact(list)
}

// recentOf returns the index of the recent chunk of a packet, also if the packet itself was left out. For
// packets before all recent chunks it is the first one.
func (r *recorder) recentOf(number int64) int64 {
	index, first := r.now.index, max(r.now.index-recentChunks+1, 0)
	for index > first && r.recent[index%recentChunks].packets[0].Number > number {
		index--
	}
	return index
}

// find returns a packet by its number, or nil if it is not kept.
func (r *recorder) find(number int64) *report.TilePacket {
	c := r.recent[r.recentOf(number)%recentChunks]
	if c.packets[0].Number > number {
		after, _ := slices.BinarySearchFunc(r.old, number+1,
			func(c *chunk, n int64) int { return cmp.Compare(c.packets[0].Number, n) })
		if after == 0 {
			return nil
		}
		c = r.old[after-1]
	}
	i, found := slices.BinarySearchFunc(c.packets, number,
		func(p report.TilePacket, n int64) int { return cmp.Compare(p.Number, n) })
	if !found {
		return nil
	}
	return &c.packets[i]
}

// settled adds the departure of a packet decided later by a link.
func (r *recorder) settled(v *dataplane.Verdict) {
	if p := r.find(v.ID); p != nil {
		p.SetOutcome(v)
	}
}

// begin starts the tile of an episode.
func (r *recorder) begin(e *episodes.Episode) {
	t := &tile{}
	first := max(r.recentOf(e.FirstPacket)-1, r.now.index-recentChunks+1, 0)
	for index := first; index <= r.now.index && len(t.chunks) < tileChunks; index++ {
		t.chunks = append(t.chunks, r.recent[index%recentChunks])
	}
	e.Detail = t
	if len(r.kept) == maxTiles {
		least := slices.MinFunc(r.kept,
			func(a, b *episodes.Episode) int { return cmp.Compare(a.Total().Bytes, b.Total().Bytes) })
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
	all = inOrder(all)
	for i, c := range all {
		if i == 0 || all[i-1].index+1 != c.index {
			out = append(out, report.Tile{})
		}
		t := &out[len(out)-1]
		t.Packets = append(t.Packets, c.packets...)
	}
	return out
}
