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
}

func newSlowTable[K comparable](p *Profile, config TableConfig) *slowTable[K] {
	t := &slowTable[K]{profile: p, config: config}
	t.rest = t.fresh()
	return t
}

func (t *slowTable[K]) fresh() Meter {
	if t.config.Empty {
		return NewWithTokens(t.profile, 0, 0)
	}
	c, e := t.profile.Bursts()
	return NewWithTokens(t.profile, c, e) // the clock begins with the first packet
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
	if len(t.meters) == t.config.Keys {
		oldest := &t.meters[0].meter
		if t.config.Idle && !oldest.profile.rested(oldest.state, oldest.profile.log, now) {
			t.stats.Refused++
			return &t.rest
		}
		t.stats.Evicted++
		t.meters = t.meters[1:]
	}
	t.meters = append(t.meters, &keyed[K]{key, t.fresh()})
	t.stats.Keys = len(t.meters)
	return t.find(key)
}

// would returns a clone of the meter that would meter a packet of the key.
func (t *slowTable[K]) would(key K, now int64) Meter {
	if m := t.find(key); m != nil {
		return m.Clone()
	}
	if len(t.meters) == t.config.Keys && t.config.Idle {
		if oldest := &t.meters[0].meter; !oldest.profile.rested(oldest.state, oldest.profile.log, now) {
			return t.rest.Clone()
		}
	}
	return t.fresh()
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
