package meter

import (
	"encoding/binary"
	"errors"
)

// This file defines the binary format of a Table, and of Shards as several tables. See save.go for
// the other parts.
//
//	table = "mtt" format profile tables { rest keys { own [profile] state length key } } crc
//	tables, keys, own, length: 4 bytes; rest: the state of the shared meter
//
// own is 0, or the number of the key's own profile, from 1. If it is larger than all before,
// the profile follows. The keys of a table are in the order of use, the least recently used
// first, and then those with profiles of their own.

var errMixed = errors.New(
	"shards have different profiles: use SetProfile of Shards, not of the table of a shard")

// AppendBinary appends the table to b: the parameters, all keys with the exact states of their
// meters, the order of use, and a checksum. It implements encoding.BinaryAppender. Counts of
// evicted and refused keys are not saved.
//
// Keys may be strings, numbers, arrays and structs of numbers whose fields are all exported, and
// types implementing encoding.BinaryAppender and encoding.BinaryUnmarshaler, such as netip.Addr.
// For other keys it returns an error.
func (t *Table[K]) AppendBinary(b []byte) ([]byte, error) {
	if len(t.index) == 0 {
		panic(zeroTable)
	}
	w := newTableWriter(b, t.profile, 1)
	if err := appendTable(w, t); err != nil {
		return b, err
	}
	return w.close(), nil
}

// UnmarshalBinary replaces the keys of a table made by NewTable with those saved by AppendBinary of
// a Table or Shards, with all profiles. From then on their meters return what the saved ones would
// have returned. It implements encoding.BinaryUnmarshaler.
//
// The table keeps its TableConfig. If not all keys fit, it evicts as Set does. If its parameters
// are the saved ones, it keeps its Profile. To go on with other parameters, call SetProfile next.
//
// The error says whether the data are of another format, or corrupt, or have more keys with
// profiles of their own than fit, or logs too large for the table. Then nothing changes. The
// checksum detects damage, not forgery, but also forged data only take memory within the bounds of
// the table.
func (t *Table[K]) UnmarshalBinary(data []byte) error {
	if len(t.index) == 0 {
		panic(zeroTable)
	}
	next := []Table[K]{{}}
	if err := readTables(data, t, next, func(uint64) int { return 0 }); err != nil {
		return err
	}
	t.become(&next[0])
	return nil
}

// AppendBinary is Table.AppendBinary. It locks one shard at a time, so calls of other goroutines
// come before or after the moment at which the meter of their key is saved.
func (t *Shards[K]) AppendBinary(b []byte) ([]byte, error) {
	if len(t.shards) == 0 {
		panic(zeroShards)
	}
	t.whole.Lock()
	defer t.whole.Unlock()
	var w *tableWriter
	for i := range t.shards {
		s := &t.shards[i]
		s.mu.Lock()
		if i == 0 {
			w = newTableWriter(b, s.table.profile, len(t.shards))
		}
		err := appendTable(w, &s.table)
		s.mu.Unlock()
		if err != nil {
			return b, err
		}
	}
	return w.close(), nil
}

// UnmarshalBinary is Table.UnmarshalBinary. The keys are spread over the shards anew, so in almost
// full shards some may be evicted. If the number of shards differs from the saved one, the meters
// of packets whose key found no room begin anew. It locks all shards.
func (t *Shards[K]) UnmarshalBinary(data []byte) error {
	if len(t.shards) == 0 {
		panic(zeroShards)
	}
	t.whole.Lock()
	defer t.whole.Unlock()
	for i := range t.shards {
		t.shards[i].mu.Lock()
		defer t.shards[i].mu.Unlock()
	}
	next := make([]Table[K], len(t.shards))
	if err := readTables(data, &t.shards[0].table, next, t.number); err != nil {
		return err
	}
	for i := range next {
		t.shards[i].table.become(&next[i])
	}
	return nil
}

// become moves a new table into t, which keeps its counts.
func (t *Table[K]) become(n *Table[K]) {
	n.counts.Evicted += t.counts.Evicted
	n.counts.Refused += t.counts.Refused
	*t = Table[K]{
		counts: n.counts, rest: Meter{profile: n.rest.profile, state: n.rest.state},
		profile: n.profile, own: n.own, config: n.config, beside: n.beside, seed: n.seed, fresh: n.fresh,
		slots: n.slots, order: n.order, logs: n.logs, entries: n.entries, index: n.index,
	}
}

type tableWriter struct {
	b       []byte
	start   int
	profile *Profile
	own     map[*Profile]uint32 // numbers
}

func newTableWriter(b []byte, p *Profile, tables int) *tableWriter {
	w := &tableWriter{b: b, start: len(b), profile: p.made(), own: map[*Profile]uint32{}}
	w.b = append(w.b, savedTable...)
	w.b = append(w.b, savedFormat)
	w.b = p.appendParams(w.b)
	w.uint32(tables)
	return w
}

func (w *tableWriter) uint32(n int) { w.b = binary.LittleEndian.AppendUint32(w.b, uint32(n)) }

func (w *tableWriter) close() []byte { return appendChecksum(w.b, w.start) }

func appendTable[K comparable](w *tableWriter, t *Table[K]) error {
	if t.profile != w.profile && t.profile.params != w.profile.params {
		return errMixed
	}
	w.b = t.profile.appendState(w.b, t.rest.state, t.rest.profile.log)
	w.uint32(t.Len())
	t.settle()
	for n := t.order[0].newer; n != 0; n = t.order[n].newer {
		if err := appendSlot(w, t, int(n-1)); err != nil {
			return err
		}
	}
	for i, own := range t.own {
		if own != nil {
			if err := appendSlot(w, t, i); err != nil {
				return err
			}
		}
	}
	return nil
}

func appendSlot[K comparable](w *tableWriter, t *Table[K], i int) (err error) {
	p := t.profile
	if !t.pinned(i) {
		w.uint32(0)
	} else if p = t.own[i]; w.own[p] > 0 {
		w.uint32(int(w.own[p]))
	} else {
		w.own[p] = uint32(len(w.own) + 1)
		w.uint32(len(w.own))
		w.b = p.appendParams(w.b)
	}
	w.b = p.appendState(w.b, t.slots[i].state, t.log(i))
	w.uint32(0) // the length of the key
	start := len(w.b)
	if w.b, err = appendKey(w.b, &t.slots[i].key); err != nil {
		return err
	}
	binary.LittleEndian.PutUint32(w.b[start-4:], uint32(len(w.b)-start))
	return nil
}

// tableReader reads saved tables into new ones.
type tableReader[K comparable] struct {
	*savedReader
	tables []Table[K]
	number func(hash uint64) int // of the table of a hash
	shared *Profile              // of keys without one of their own
	own    []*Profile            // by number, from 1
}

// readTables adds the saved keys to tables, which it initializes like the current ones.
func readTables[K comparable](
	data []byte, current *Table[K], tables []Table[K], number func(hash uint64) int,
) error {
	r := tableReader[K]{savedReader: openSaved(data, savedTable), tables: tables, number: number}
	r.shared = r.profile(current.profile)
	saved := r.uint32()
	if r.err != nil {
		return r.err
	}
	if err := current.validate(r.shared); err != nil {
		return err
	}
	for i := range tables {
		if err := tables[i].init(r.shared, current.config, current.seed); err != nil {
			return err
		}
		tables[i].beside = current.beside
	}
	for i := uint32(0); i < saved && r.err == nil; i++ {
		s, log := r.state(r.shared)
		if saved == uint32(len(tables)) {
			tables[i].rest.state = s
			copy(tables[i].rest.profile.log, log)
		}
		for keys := r.uint32(); keys > 0 && r.err == nil; keys-- {
			r.slot()
		}
	}
	return r.close()
}

// slot reads a key and its meter.
func (r *tableReader[K]) slot() {
	number, p := r.uint32(), r.shared
	if number == uint32(len(r.own)+1) {
		r.own = append(r.own, r.profile(r.shared))
	}
	switch {
	case number > uint32(len(r.own)):
		r.fail(errCorrupt)
	case number > 0:
		p = r.own[number-1]
	}
	s, log := r.state(p)
	var key K
	if length := r.uint32(); r.err != nil || !readKey(r.next(int(length)), &key) || key != key {
		r.fail(errCorrupt)
		return
	}
	hash := r.tables[0].hash(key)
	t := &r.tables[r.number(hash)]
	at, _, known := t.find(hash, key)
	var i int
	switch {
	case known:
		r.fail(errCorrupt)
		return
	case number > 0:
		if err := t.set(hash, key, 0, p); err != nil {
			r.fail(err)
			return
		}
		_, i, _ = t.find(hash, key)
	case t.full(): // in the same way as the key would be evicted
		return
	default:
		i = t.add(at, hash, key)
	}
	t.slots[i].state = s
	copy(t.log(i), log)
}
