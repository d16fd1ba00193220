package meter

import (
	"math"
	"time"
)

// Shift moves a restored meter to a new clock, such as a monotonic clock after a reboot, or Now in
// a new process. by is the reading of the new clock less the reading of the old clock at the same
// moment. To refill the meter for the time in between, save the wall clock less the old clock
// beside the meter: by is then the saved difference less the same difference for the new clock.
//
// now is the time of the new clock. No time of the meter becomes later than now, so even if a wall
// clock was wrong, the meter refills from now on. A current window keeps its length, and later ones
// are aligned to the new clock. A SlidingWindow moves by whole slots, rounded down.
func (m *Meter) Shift(now int64, by time.Duration) {
	m.profile.made().shift(&m.state, m.profile.log, now, int64(by))
}

// Shift is Meter.Shift for the meters of all keys. Its time grows with their number.
func (t *Table[K]) Shift(now int64, by time.Duration) {
	for i := range t.slots { // an empty slot is overwritten when a key gets it
		t.profileOf(i).shift(&t.slots[i].state, t.log(i), now, int64(by))
	}
	t.rest.Shift(now, by)
}

// Shift is Table.Shift for one shard after another. Call it before the first packet.
func (t *Shards[K]) Shift(now int64, by time.Duration) {
	if len(t.shards) == 0 {
		panic(zeroShards)
	}
	for i := range t.shards {
		s := &t.shards[i]
		s.mu.Lock()
		s.table.Shift(now, by)
		s.mu.Unlock()
	}
}

func (p *Profile) shift(s *state, log []entry, now, by int64) {
	if s.epoch <= notBegun {
		return // there is no time to move
	}
	from := p.latest(*s)
	to := from + by
	switch {
	case by > 0 && to < from:
		to = math.MaxInt64
	case by < 0 && to > from:
		to = math.MinInt64
	}
	to = max(min(to, now), min(from, firstWindow)) // a state may have times up to a window earlier
	switch r := p.rule.(type) {
	case slidingLog:
		slots := r.slotOf(to) - s.epoch
		for i := range inUse(s) {
			log[r.at(s, i)].slot += slots
		}
		s.epoch += slots
	case warmUp:
		warm := min(uint64(s.epoch)-uint64(s.second), uint64(r.length))
		s.epoch, s.second = to, to-int64(warm)
	default:
		s.epoch = to
	}
}
