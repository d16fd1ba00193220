package image

import (
	"math"
	"time"
	"unsafe"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/cause"
	"github.com/cilium/ebpf"
)

// The last readings of a shaper are kept in a map beside its program, where every process finds
// them. A new program gets a new map, so all readings in a map have the classes of one policy.
const (
	ReadingsMap  = "readings"
	keptReadings = 2 // one can be replaced while the other is used

	// MinReadingAge is the minimum age of a reading for computing rates. A rate over less time
	// depends on single packets.
	MinReadingAge = 250 * time.Millisecond
	maxReadingAge = 10 * time.Second // a rate over more time is not a current one
)

// KeptReading is a reading in the map: a checksum, the time, and the counters of classes and
// queues. The checksum detects another process writing the reading meanwhile.
type KeptReading []int64

// Words of a KeptReading. Those of classes are the memory of their ClassStats.
const (
	readingSum  = 0 // of all other words
	readingTime = 1 // Reading.At; 0: none
	readingHead = 2
	classWords  = int(unsafe.Sizeof(dataplane.ClassStats{}) / 8)
	queueWords  = 3 // sent packets, sent bytes, dropped packets
)

func EmptyReading(o *compiled.Outline) KeptReading {
	return make(KeptReading, readingHead+(len(o.Classes)+1)*classWords+len(o.Queues)*queueWords)
}

// NewReadings makes the map of a policy's readings.
func NewReadings(o *compiled.Outline) (*ebpf.Map, error) {
	m, err := ebpf.NewMap(&ebpf.MapSpec{
		Name: ReadingsMap, Type: ebpf.Array, KeySize: 4, ValueSize: uint32(8 * len(EmptyReading(o))),
		MaxEntries: keptReadings,
	})
	return m, cause.Of(err)
}

// sum returns the checksum, FNV-1a of whole words.
func (k KeptReading) sum() int64 {
	h := uint64(14695981039346656037)
	for _, w := range k[readingTime:] {
		h = (h ^ uint64(w)) * 1099511628211
	}
	return int64(h)
}

// Classes returns the part of k with the counters of classes.
func (k KeptReading) Classes(n int) []dataplane.ClassStats {
	return unsafe.Slice((*dataplane.ClassStats)(unsafe.Pointer(&k[readingHead])), n)
}

// set sets everything except the checksum.
func (k KeptReading) set(r *Reading) {
	k[readingTime] = r.At
	copy(k.Classes(len(r.Stats)), r.Stats)
	words := k[readingHead+len(r.Stats)*classWords:]
	for i, q := range r.Queues {
		copy(words[i*queueWords:], []int64{q.Sent.Packets, q.Sent.Bytes, q.Dropped})
	}
}

// reading returns the reading kept as k. Its queues have no backlogs.
func (k KeptReading) reading(now *Reading) Reading {
	r := Reading{At: k[readingTime]}
	r.Stats = k.Classes(len(now.Stats))
	words := k[readingHead+len(r.Stats)*classWords:]
	for i, q := range now.Queues {
		w := words[i*queueWords:]
		r.Queues = append(r.Queues, dataplane.QueueState{
			Name: q.Name, Class: q.Class, Sent: dataplane.Count{Packets: w[0], Bytes: w[1]}, Dropped: w[2],
		})
	}
	return r
}

// precedes reports whether no counter in now is below the one in k. HTB's counters start
// again at 0 if its qdiscs are replaced.
func (k KeptReading) precedes(now KeptReading) bool {
	for i := readingHead; i < len(k); i++ {
		if (now[i]-k[i])&math.MaxInt64 > math.MaxInt64/2 { // counters wrap at 2^63
			return false
		}
	}
	return true
}

// Reading holds the counters of a shaper at one time. The difference of two readings gives rates.
type Reading struct {
	At     int64                  // time of Now
	Stats  []dataplane.ClassStats // as of kernel.Shaper.Stats
	Queues []dataplane.QueueState // as of kernel.Shaper.Queues
}

// readKept returns the readings in the map. A damaged one has time 0.
func readKept(m *ebpf.Map, o *compiled.Outline) (out [keptReadings]KeptReading, err error) {
	for slot := range out {
		k := EmptyReading(o)
		if err := m.Lookup(uint32(slot), k); err != nil {
			return out, err
		}
		if k.sum() != k[readingSum] {
			k[readingTime] = 0
		}
		out[slot] = k
	}
	return out, nil
}

// EarlierReading returns the latest kept reading in a map from which now is far enough for a rate:
// between MinReadingAge and 10 s. ok is false if there is none.
func EarlierReading(m *ebpf.Map, o *compiled.Outline, now Reading) (r Reading, ok bool) {
	list, err := readKept(m, o)
	if err != nil {
		return r, false
	}
	current := EmptyReading(o)
	current.set(&now)
	for _, k := range list {
		age := time.Duration(now.At - k[readingTime])
		if k[readingTime] > r.At && MinReadingAge <= age && age <= maxReadingAge && k.precedes(current) {
			r, ok = k.reading(&now), true
		}
	}
	return r, ok
}

// KeepReading keeps a reading in a map. It does nothing if the last one is too young for anybody to
// use the one before it, or on an error.
func KeepReading(m *ebpf.Map, o *compiled.Outline, r Reading) {
	list, err := readKept(m, o)
	if err != nil {
		return
	}
	oldest, youngest := 0, 0
	for slot, k := range list {
		if k[readingTime] < list[oldest][readingTime] {
			oldest = slot
		}
		if k[readingTime] > list[youngest][readingTime] {
			youngest = slot
		}
	}
	if time.Duration(r.At-list[youngest][readingTime]) < MinReadingAge {
		return
	}
	k := EmptyReading(o)
	k.set(&r)
	k[readingSum] = k.sum()
	_ = m.Put(uint32(oldest), k)
}
