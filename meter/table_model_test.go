package meter

import (
	"slices"
)

// slowTable has a meter for each key, in a slice in the order of use.
type slowTable[K comparable] struct {
	profile *Profile
	config  TableConfig
	meters  []*keyed[K] // least recently used first
	rest    Meter
	stats   TableStats
}

type keyed[K comparable] struct {
	key   K
	meter Meter
	own   bool // a profile was set
}

func newSlowTable[K comparable](p *Profile, config TableConfig) *slowTable[K] {
	t := &slowTable[K]{profile: p, config: config}
	t.rest = t.fresh(t.profile)
	return t
}

func (t *slowTable[K]) fresh(p *Profile) Meter {
	if t.config.Empty {
		return NewWithTokens(p, 0, 0)
	}
	c, e := p.Bursts()
	return NewWithTokens(p, c, e) // the clock begins with the first packet
}

// oldest returns the index of the key to evict, or -1 if all keys have a profile of their own.
func (t *slowTable[K]) oldest() int {
	return slices.IndexFunc(t.meters, func(k *keyed[K]) bool { return !k.own })
}

// full reports whether a packet of a new key finds no room.
func (t *slowTable[K]) full(now int64) bool {
	if len(t.meters) < t.config.Keys {
		return false
	}
	i := t.oldest()
	if i < 0 || !t.config.Idle {
		return i < 0
	}
	m := &t.meters[i].meter
	return !m.profile.rested(m.state, m.profile.log, now)
}

func (t *slowTable[K]) setProfile(now int64) {
	for _, k := range t.meters {
		if !k.own {
			k.meter.SetProfile(now, t.profile)
		}
	}
	t.rest.SetProfile(now, t.profile)
}

// set reports whether there was room.
func (t *slowTable[K]) set(key K, now int64, p *Profile) bool {
	if m := t.find(key); m != nil {
		m.SetProfile(now, p)
	} else if len(t.meters) == t.config.Keys && t.oldest() < 0 {
		return false
	} else {
		t.add(key, p).begin(now)
	}
	for _, k := range t.meters {
		k.own = k.own || k.key == key
	}
	return true
}

func (t *slowTable[K]) unset(key K, now int64) bool {
	i := slices.IndexFunc(t.meters, func(k *keyed[K]) bool { return k.key == key && k.own })
	if i < 0 {
		return false
	}
	t.meters[i].own = false
	t.use(key, now).SetProfile(now, t.profile)
	return true
}

// kind returns the kind of the meter that would meter a packet of the key.
func (t *slowTable[K]) kind(key K, now int64) Kind {
	m := t.would(key, now)
	return m.profile.kind
}

// add adds a key, in place of another if the table is full.
func (t *slowTable[K]) add(key K, p *Profile) *Meter {
	if len(t.meters) == t.config.Keys {
		t.stats.Evicted++
		i := t.oldest()
		t.meters = append(t.meters[:i:i], t.meters[i+1:]...)
	}
	t.meters = append(t.meters, &keyed[K]{key: key, meter: t.fresh(p)})
	t.stats.Keys = len(t.meters)
	return t.find(key)
}

func (t *slowTable[K]) find(key K) *Meter {
	for i := range t.meters {
		if t.meters[i].key == key {
			return &t.meters[i].meter
		}
	}
	return nil
}

func (t *slowTable[K]) use(key K, now int64) *Meter {
	for i, k := range t.meters {
		if k.key == key {
			t.meters = append(append(t.meters[:i:i], t.meters[i+1:]...), k)
			return t.find(key)
		}
	}
	if t.full(now) {
		t.stats.Refused++
		return &t.rest
	}
	return t.add(key, t.profile)
}

// would returns a clone of the meter that would meter a packet of the key.
func (t *slowTable[K]) would(key K, now int64) Meter {
	if m := t.find(key); m != nil {
		return m.Clone()
	}
	if t.full(now) {
		return t.rest.Clone()
	}
	return t.fresh(t.profile)
}

func (t *slowTable[K]) delete(key K) bool {
	for i := range t.meters {
		if t.meters[i].key == key {
			t.meters = slices.Delete(t.meters, i, i+1)
			t.stats.Keys--
			return true
		}
	}
	return false
}
