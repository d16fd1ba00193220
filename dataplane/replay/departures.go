package replay

import (
	"fmt"
	"sort"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

// schedule keeps a packet until its departure.
func (r *run) schedule(rec *record, v *dataplane.Verdict) error {
	if err := r.finish(rec, v); err != nil {
		return err
	}
	r.scheduled.push(moment{v.Departure, v.ID}, rec.raw)
	return nil
}

// finish completes the record of a queued packet.
func (r *run) finish(rec *record, v *dataplane.Verdict) error {
	rec.updateFCS()
	if err := r.format.restamp(rec, v.Departure-rec.Shift); err != nil {
		return fmt.Errorf("packet %d: %w", v.ID, err)
	}
	return nil
}

// release writes the packets departed by now.
func (r *run) release(now int64) error {
	for r.scheduled.due(now) {
		raw, last := r.scheduled.pop()
		if err := r.out.lent(raw); err != nil {
			return err
		}
		if last {
			if err := r.out.endRun(); err != nil {
				return err
			}
		}
	}
	return nil
}

// departures are the records of scheduled packets, in the order (departure, number).
//
// Packets of one queue are scheduled in order of departure. So a record is appended to a list whose
// last record departs earlier, and there are at most as many lists as queues.
type departures struct {
	lists  []*list  // by their last record, the latest first
	heads  []*list  // the same lists: a heap by their first record
	unused []*list  // empty lists, for reuse
	spare  *segment // segments for reuse, linked by next
}

// moment is the place of a packet in the order of departures.
type moment struct{ at, number int64 } // departure, ns; packet number

func (m moment) before(o moment) bool {
	return m.at < o.at || m.at == o.at && m.number < o.number
}

// list is a first-in-first-out list of records in the order of their departures.
type list struct {
	first, last moment
	head, tail  *segment // nil if the list is empty
	done        int      // records removed from head
	read        int      // their bytes
}

// segment contains consecutive records.
type segment struct {
	next    *segment
	entries []entry
	data    []byte // the records' bytes
}

type entry struct {
	moment
	end int // of its bytes in data
}

const segmentSize = 64 << 10 // bytes of records; a larger record gets a segment of its own

// due reports whether a packet departs by now.
func (d *departures) due(now int64) bool { return len(d.heads) > 0 && d.heads[0].first.at <= now }

// push adds a copy of a record.
func (d *departures) push(m moment, raw []byte) {
	i := sort.Search(len(d.lists), func(i int) bool { return d.lists[i].last.before(m) })
	if i == len(d.lists) {
		d.lists = append(d.lists, d.newList())
	}
	l := d.lists[i]
	if l.tail == nil || cap(l.tail.data)-len(l.tail.data) < len(raw) {
		d.addSegment(l, len(raw))
	}
	t := l.tail
	t.data = append(t.data, raw...)
	t.entries = append(t.entries, entry{m, len(t.data)})
	l.last = m
	if i == len(d.heads) { // the list is new
		l.first = m
		d.heads = append(d.heads, l)
		d.up(i)
	}
}

// pop removes the first record and returns its bytes. last is true for the last record of a
// segment: all bytes that pop returned from the segment are then valid until the next push.
func (d *departures) pop() (raw []byte, last bool) {
	l := d.heads[0]
	s := l.head
	raw = s.data[l.read:s.entries[l.done].end]
	l.done++
	l.read += len(raw)
	last = l.done == len(s.entries)
	if last {
		l.head, l.done, l.read = s.next, 0, 0
		d.recycle(s)
	}
	if l.head != nil {
		l.first = l.head.entries[l.done].moment
	} else { // all others have later records, so it is the last list
		l.tail = nil
		n := len(d.heads) - 1
		d.heads[0] = d.heads[n]
		d.heads, d.lists = d.heads[:n], d.lists[:n]
		d.unused = append(d.unused, l)
	}
	d.down()
	return raw, last
}

// up restores the order of the heap after its i-th list, the last one, was added.
func (d *departures) up(i int) {
	for h := d.heads; i > 0; {
		parent := (i - 1) / 2
		if h[parent].first.before(h[i].first) {
			return
		}
		h[parent], h[i] = h[i], h[parent]
		i = parent
	}
}

// down restores the order of the heap after its first list was changed.
func (d *departures) down() {
	h, i := d.heads, 0
	for {
		least := i
		for child := 2*i + 1; child < min(2*i+3, len(h)); child++ {
			if h[child].first.before(h[least].first) {
				least = child
			}
		}
		if least == i {
			return
		}
		h[i], h[least] = h[least], h[i]
		i = least
	}
}

func (d *departures) newList() *list {
	n := len(d.unused)
	if n == 0 {
		return &list{}
	}
	l := d.unused[n-1]
	d.unused = d.unused[:n-1]
	return l
}

// addSegment appends a segment with room for a record of size bytes to a list.
func (d *departures) addSegment(l *list, size int) {
	s := d.spare
	if size > segmentSize || s == nil {
		s = &segment{data: make([]byte, 0, max(size, segmentSize))}
	} else {
		d.spare = s.next
		*s = segment{entries: s.entries[:0], data: s.data[:0]}
	}
	if l.tail == nil {
		l.head = s
	} else {
		l.tail.next = s
	}
	l.tail = s
}

// recycle keeps a segment for reuse, unless its size is unusual.
func (d *departures) recycle(s *segment) {
	if cap(s.data) == segmentSize {
		s.next, d.spare = d.spare, s
	}
}
