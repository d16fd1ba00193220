package replay

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// clock is the source of timestamps of the capture from one step to the next.
type clock struct {
	shift int64 // time of the replay minus timestamp, ns
	last  int64 // largest timestamp so far, ns
}

// maxClocks is the maximum number of clocks known at a time.
const maxClocks = 8

// timeline turns the timestamps of a capture into the time of its replay. A timestamp far behind or
// far ahead of all known clocks begins a new one. How much time really passed at a step is unknown,
// so the new clock continues at the latest time so far: no meter refills for a time which may not
// have been.
//
// A timestamp belongs to an earlier clock if by that clock it is near the latest time, within both
// maxStep and maxGap, and nearer than by the latest used clock. So a late packet, after which its
// clock continues, and interfaces with different clocks add no time. Farther ahead it is a pause of
// the latest used clock.
type timeline struct {
	now     int64   // latest time so far, ns; math.MinInt64 before the first timestamp
	likely  uint64  // with one clock, a timestamp less than this ahead of now is the time, ns; otherwise 0
	known   []clock // the latest used one first, at most maxClocks
	maxStep int64   // maximum step back taken for reordering, ns
	maxGap  int64   // maximum step ahead taken for a pause, ns
	count   int64   // steps
	back    int64   // the largest step back, ns
	ahead   int64   // the largest step ahead, ns
}

func newTimeline(maxStep, maxGap time.Duration) timeline {
	back, ahead := int64(cmp.Or(maxStep, DefaultMaxStep)), int64(cmp.Or(maxGap, DefaultMaxGap))
	return timeline{
		now: math.MinInt64, likely: uint64(ahead) + 1, known: []clock{{}}, maxStep: back, maxGap: ahead,
	}
}

// at returns the time of the replay at a timestamp, at most the end of the supported range.
func (c *clock) at(stamp int64) int64 {
	if c.shift > 0 && stamp > lastTime-c.shift {
		return lastTime
	}
	return stamp + c.shift
}

// explains returns the clock to which a timestamp belongs, or -1.
func (t *timeline) explains(stamp int64) int {
	near, best, nearest := min(t.maxStep, t.maxGap), -1, uint64(math.MaxUint64)
	if by := stamp - t.known[0].last; by >= -t.maxStep && by <= t.maxGap {
		if by >= 0 && by <= near {
			return 0
		}
		best, nearest = 0, t.distance(0, stamp)
	}
	nearest = min(nearest, uint64(near)+1)
	for i := 1; i < len(t.known); i++ {
		if d := t.distance(i, stamp); d < nearest {
			best, nearest = i, d
		}
	}
	return best
}

// distance returns how far the time at a timestamp, by a known clock, is from the latest time, ns.
func (t *timeline) distance(clock int, stamp int64) uint64 {
	at := t.known[clock].at(stamp)
	return uint64(max(at, t.now)) - uint64(min(at, t.now))
}

// setTime turns the timestamp of a packet to replay into the time of the replay.
func (r *run) setTime(rec *record) {
	t := &r.timeline
	if t.now == math.MinInt64 {
		if !rec.untimed {
			t.now = max(rec.Time, r.summary.First)
		}
		if rec.untimed || rec.Time == t.now {
			r.summary.First = rec.Time
			return
		}
	}
	if len(t.known) == 1 {
		t.known[0].last = t.now
	}
	r.findClock(rec.Time)
	at := t.known[0].at(rec.Time)
	rec.Time, rec.Shift = at, at-rec.Time
	if at < t.now {
		r.note(backwards)
	}
	t.now = max(t.now, at)
}

// findClock makes the clock of a timestamp the latest used one.
func (r *run) findClock(stamp int64) {
	t := &r.timeline
	if i := t.explains(stamp); i >= 0 {
		c := t.known[i]
		c.last = max(c.last, stamp)
		copy(t.known[1:i+1], t.known)
		t.known[0] = c
		if i > 0 {
			r.note(returned)
		}
		return
	}
	if by := t.known[0].last - stamp; by > 0 {
		t.back = max(t.back, by)
		r.note(steppedBack)
	} else {
		t.ahead = max(t.ahead, -by)
		r.note(steppedAhead)
	}
	t.count++
	t.known = slices.Insert(t.known, 0, clock{t.now - stamp, stamp})
	t.known, t.likely = t.known[:min(len(t.known), maxClocks)], 0
}

// count counts a packet of the input. A packet without a time gets the time of the previous one.
func (r *run) count(rec *record) {
	s := &r.summary
	s.Read++
	if rec.untimed {
		if s.Read > 1 {
			rec.Time = r.last
		}
		rec.untimed = !r.timed
	} else {
		r.timed = true
	}
	r.last = rec.Time
	rec.Mark, rec.Segments, rec.ID, rec.Shift, rec.Parsed = 0, 0, s.Read, 0, false
	if rec.flags != 0 {
		r.both.flagged = true
	}
}

// noteHeaders notes the packets of a batch whose headers are truncated.
func (r *run) noteHeaders(n int) {
	r.truncated = false
	for i := range n {
		if rec := &r.records[i]; len(rec.Data) < rec.WireLen && rec.HeadersCut() {
			r.noteOf(rec.ID, headersCut)
		}
	}
}

// begin sets the time of a packet to replay, and notes an odd timestamp, length or link type.
func (r *run) begin(rec *record) {
	r.summary.Packets++
	if t := &r.timeline; uint64(rec.Time)-uint64(t.now) < t.likely { // not if it is before now
		t.now = rec.Time
	} else {
		r.setTime(rec)
	}
	if rec.overflow || rec.outOfRange || len(rec.Data) != rec.WireLen || r.linkUnknown {
		r.oddRecord(rec)
	}
}

func (r *run) oddRecord(rec *record) {
	if rec.overflow {
		r.note(overflowing)
	}
	if rec.outOfRange {
		r.note(outside)
	}
	if len(rec.Data) < rec.WireLen {
		r.note(truncated)
		r.truncated = true
	}
	if len(rec.Data) > rec.WireLen {
		r.note(longer)
	}
	if r.linkUnknown {
		r.note(unknownLink)
	}
}
