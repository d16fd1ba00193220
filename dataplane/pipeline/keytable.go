package pipeline

import (
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// keyTable is a meter for each key. Most keys are small: IPv4 addresses, VLAN IDs and DSCPs
// fit into 8 bytes. The first key that does not replaces the table of small keys by one of
// all keys. So a table of IPv4 addresses takes half the memory and fewer cache misses.
type keyTable struct {
	dataplane.KeyReader
	small *meter.Table[uint64]              // nil if there is a key that is not small
	all   *meter.Table[dataplane.PacketKey] // nil if all keys are small
	moved bool                              // another pipeline has inherited the table

	// Keys for prefetch.
	smallBatch []uint64
	batch      []dataplane.PacketKey
}

func newKeyTable(p *compiled.Stage) *keyTable {
	k := &keyTable{
		KeyReader: dataplane.NewKeyReader(p.Key), smallBatch: make([]uint64, 0, batchSize),
		batch: make([]dataplane.PacketKey, 0, batchSize),
	}
	if p.Key.By == dataplane.ByFlow {
		k.all, _ = meter.NewTable[dataplane.PacketKey](p.Profile, p.TableConfig()) // Compile checked it
	} else {
		k.small, _ = meter.NewTable[uint64](p.Profile, p.TableConfig())
	}
	return k
}

// enlarge replaces the table of small keys by one of all keys.
func (k *keyTable) enlarge() {
	if k.small == nil {
		return
	}
	k.all = meter.Rekey(k.small, k.FromSmall)
	k.small = nil
}

// color meters a packet by the meter of its key, or by one for all packets without a key. A
// red packet uses no key.
func (k *keyTable) color(p *dataplane.Packet, now int64, n int, in meter.Color) meter.Color {
	if in == meter.Red {
		return in
	}
	if k.small != nil {
		if key, ok := k.SmallKey(p); ok {
			return k.small.Color(key, now, n, in)
		}
	}
	key, ok := k.Key(p)
	if !ok {
		return k.table().Rest().Color(now, n, in)
	}
	k.enlarge()
	return k.all.Color(key, now, n, in)
}

// explain is color with an explanation and the key.
func (k *keyTable) explain(
	p *dataplane.Packet, now int64, n int, in meter.Color,
) (text string, e meter.Explanation) {
	key, ok := k.Key(p)
	if ok {
		text = string(k.AppendText(nil, key))
	}
	small, fits := k.SmallKey(p)
	switch {
	case !ok && in != meter.Red:
		return text, k.table().Rest().Explain(now, n, in)
	case fits && k.small != nil:
		return text, k.small.Explain(small, now, n, in)
	}
	k.enlarge()
	return text, k.all.Explain(key, now, n, in)
}

// prefetchLater adds the key of a packet to the next prefetch. It reports whether it is the
// first one.
func (k *keyTable) prefetchLater(p *dataplane.Packet) bool {
	if k.small != nil {
		if key, ok := k.SmallKey(p); ok {
			k.smallBatch = append(k.smallBatch, key)
			return len(k.smallBatch) == 1
		}
	} else if key, ok := k.Key(p); ok {
		k.batch = append(k.batch, key)
		return len(k.batch) == 1
	}
	return false
}

// prefetch loads the memory of the keys of prefetchLater.
func (k *keyTable) prefetch() {
	if k.small != nil {
		k.small.Prefetch(k.smallBatch)
		k.smallBatch = k.smallBatch[:0]
	} else {
		k.all.Prefetch(k.batch)
		k.batch = k.batch[:0]
	}
}

// anyTable has the methods of a meter.Table that do not depend on the type of its keys.
type anyTable interface {
	Rest() *meter.Meter
	Stats() meter.TableStats
	SetProfile(now int64, p *meter.Profile) error
}

func (k *keyTable) table() anyTable {
	if k.small != nil {
		return k.small
	}
	return k.all
}
