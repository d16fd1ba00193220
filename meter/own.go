package meter

import "fmt"

// This file holds the profiles of a Table, and those of single keys. A key with a profile of its
// own is pinned: its slot is not in the order of use, so it cannot be evicted.

// profileOf returns the profile of a slot.
func (t *Table[K]) profileOf(i int) *Profile {
	if i < len(t.own) && t.own[i] != nil {
		return t.own[i]
	}
	return t.profile
}

// pinned reports whether Set gave the key of a slot a profile of its own.
func (t *Table[K]) pinned(i int) bool { return i < len(t.own) && t.own[i] != nil }

// full reports whether there is no room for a new key, as all keys are pinned.
func (t *Table[K]) full() bool { return t.Len() == t.config.Keys && t.order[0].newer == 0 }

// Set gives a key a profile of its own, and adds the key if it is new. A known key keeps its
// tokens, as with Meter.SetProfile; the clock of a new key begins at now. Until Unset or
// Delete, the key is never evicted, and SetProfile does not change it.
//
// If the table is full, Set evicts the least recently used key without a profile of its own, also
// with Idle. If there is none, the error is a FieldError, as it is for a NaN, or for a log too
// large for the table. Then nothing changes.
//
// If the profile needs a longer log than all before it, Set allocates logs of that length
// for all keys. Keys may share a profile.
func (t *Table[K]) Set(key K, now int64, p *Profile) error { return t.set(t.hash(key), key, now, p) }

func (t *Table[K]) set(hash uint64, key K, now int64, p *Profile) error {
	at, i, known := t.find(hash, key)
	if err := t.validate(p); err != nil {
		return err
	}
	switch {
	case known:
	case key != key:
		return &FieldError{"key", "is a NaN, which no packet's key equals"}
	case t.full():
		return &FieldError{"keys", fmt.Sprintf("%d all have a profile of their own", t.config.Keys)}
	}
	t.growLogs(p.entries())
	if t.own == nil {
		t.own = make([]*Profile, t.config.Keys)
	}
	if known {
		t.change(i, now, p)
	} else {
		i = t.add(at, hash, key)
		t.slots[i].state = t.config.fresh(p)
		p.begin(&t.slots[i].state, t.log(i), now)
	}
	if n := uint32(i + 1); t.own[i] == nil {
		t.unlink(n)
		t.order[n] = link{}
	}
	t.own[i] = p
	return nil
}

// validate returns the error of giving the table another profile, or a key one of its own. It
// counts the logs of all shards: the others may need longer ones next.
func (t *Table[K]) validate(p *Profile) error {
	if err := t.config.Validate(p); err != nil {
		return err
	}
	if n, keys := p.entries(), t.config.Keys+t.beside; n > t.entries && n > maxTableEntries/keys {
		return tooManyEntries(keys, p)
	}
	return nil
}

// Unset ends the effect of Set: the key returns to the profile of the table, keeps its tokens up to
// its bursts, and may be evicted. Unset reports whether the key had a profile of its own.
func (t *Table[K]) Unset(key K, now int64) bool { return t.unset(t.hash(key), key, now) }

func (t *Table[K]) unset(hash uint64, key K, now int64) bool {
	_, i, known := t.find(hash, key)
	if !known || !t.pinned(i) {
		return false
	}
	t.settle()
	t.change(i, now, t.profile)
	t.own[i] = nil
	t.append(uint32(i + 1))
	return true
}

// change is Meter.SetProfile for the meter of a slot.
func (t *Table[K]) change(i int, now int64, p *Profile) {
	old, s, log := t.profileOf(i), &t.slots[i].state, t.log(i)
	if old != p && !old.sameRule(p) {
		*s = p.adopt(log, now, old, *s, log)
	}
}

// growLogs makes the log of each slot at least this long.
func (t *Table[K]) growLogs(entries int) {
	if entries <= t.entries {
		return
	}
	logs := make([]entry, (t.config.Keys+1)*entries)
	for i := range t.slots {
		copy(logs[i*entries:], t.log(i))
	}
	t.logs, t.entries = logs, entries
}

// SetProfile is Meter.SetProfile for the meters of all keys without a profile of their own.
// Its time grows with the number of keys. It returns an error if the old or the new profile
// needs a log, unless they are equal.
func (t *Table[K]) SetProfile(now int64, p *Profile) error {
	old := t.profile
	if old.sameRule(p) {
		return nil
	}
	if old.entries() > 0 || p.entries() > 0 {
		return &FieldError{"type", "of a table cannot change to or from a kind with a log"}
	}
	for i := range t.slots {
		if !t.pinned(i) {
			t.change(i, now, p)
		}
	}
	t.profile = p
	t.fresh = t.config.fresh(p)
	t.rest.SetProfile(now, p)
	return nil
}
