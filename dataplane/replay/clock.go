package replay

import "github.com/a-seed-32e5a53f/shaper/dataplane"

// count counts a packet of the input. A packet without a time gets that of the previous one.
func (r *run) count(rec *record) {
	s := &r.summary
	s.Read++
	if rec.untimed && s.Read > 1 {
		rec.Time, rec.outOfRange = r.last, false
	}
	r.last = rec.Time
	rec.Mark, rec.Segments, rec.ID = 0, 0, s.Read
	rec.Kind = dataplane.Malformed // until it is parsed
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

// advanceClock checks the timestamp and the lengths of a packet to replay.
func (r *run) advanceClock(rec *record) {
	s := &r.summary
	s.Packets++
	if gap := uint64(rec.Time) - uint64(r.now); gap > uint64(r.cfg.MaxGap) { // also if it is negative
		r.oddTime(rec.Time)
	} else {
		r.now, s.Last = rec.Time, rec.Time
	}
	if rec.overflow || rec.outOfRange || len(rec.Data) != rec.WireLen || r.linkUnknown {
		r.oddRecord(rec)
	}
}

// oddTime advances the clock if the timestamp is the first one, is before the latest one, or is far ahead of it.
func (r *run) oddTime(time int64) {
	s := &r.summary
	switch {
	case s.Packets == 1:
		s.First = time
		r.now = time
	case time < r.now:
		r.note(backwards)
		s.First = min(s.First, time)
	default:
		r.note(farFuture)
		r.now = time
	}
	s.Last = r.now
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
