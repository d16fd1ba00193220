package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"runtime"
	"sync"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/walk"
	"github.com/a-seed-32e5a53f/shaper/dataplane/pipeline"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

const (
	numKeys   = numMeters // the stream picks one for each packet
	numShards = 1024
)

// keyProfile is the profile of each key's meter.
var keyProfile = family[1].profile

// newKeys returns a table in which all keys are in use.
func newKeys() (*meter.Table[uint64], error) {
	t, err := meter.NewTable[uint64](keyProfile, meter.TableConfig{Keys: numKeys})
	if err != nil {
		return nil, err
	}
	for key := range uint64(numKeys) {
		t.Color(key, 0, 0, meter.Green)
	}
	if s := t.Stats(); s.Keys != numKeys || s.Evicted > 0 || s.Refused > 0 {
		return nil, fmt.Errorf("%+v", s)
	}
	return t, nil
}

// newKeyShards returns Shards in which all keys are in use.
func newKeyShards() (*meter.Shards[uint64], error) {
	// Keys do not spread evenly, so each shard is a little larger.
	t, err := meter.NewShards[uint64](keyProfile, meter.TableConfig{Keys: numKeys + numKeys/4}, numShards)
	if err != nil {
		return nil, err
	}
	for key := range uint64(numKeys) {
		t.Color(key, 0, 0, meter.Green)
	}
	return t, nil
}

func tableFigures() []figure {
	table := sync.OnceValues(newKeys)
	shards := sync.OnceValues(newKeyShards)
	full := sync.OnceValues(newKeys)
	next := uint64(numKeys) // a key unknown to the table
	hits := onSource(table, func(t *meter.Table[uint64]) (float64, error) {
		s := stream()
		ns := thread(len(s.ns), func() {
			for i, now := range s.ns {
				s.colors[i] = t.Color(uint64(s.pick[i]), now, s.lengths[i], meter.Green)
			}
		})
		if evicted := t.Stats().Evicted; evicted > 0 {
			return 0, fmt.Errorf("%d keys were evicted", evicted)
		}
		return ns, nil
	})
	bursts := onSource(table, func(t *meter.Table[uint64]) (float64, error) {
		s := stream()
		var keys [burst]uint64
		return thread(len(s.ns), func() {
			for i := 0; i < len(s.ns); i += burst {
				for j, p := range s.pick[i : i+burst] {
					keys[j] = uint64(p)
				}
				t.ColorEach(keys[:], s.ns[i], s.lengths[i:i+burst], nil, s.colors[i:i+burst])
			}
		}), nil
	})
	sharded := func(goroutines int) side {
		return onSource(shards, func(t *meter.Shards[uint64]) (float64, error) {
			ns := shareKeys(t, goroutines)
			if s := t.Stats(); s.Keys != numKeys || s.Evicted > 0 {
				return 0, fmt.Errorf("%+v", s)
			}
			return ns, nil
		})
	}
	// evict meters packets of new keys. It returns the mean time and the time of the slowest
	// packets.
	evict := func() (each, longest float64, err error) {
		t, err := full()
		if err != nil {
			return 0, 0, err
		}
		s, evicted := stream().first(limited), t.Stats().Evicted
		each = thread(len(s.ns), func() {
			begin := threadTime()
			for i, now := range s.ns {
				t.Color(next, now, s.lengths[i], meter.Green)
				next++
				if i%4096 == 4095 { // read the clock rarely
					end := threadTime()
					longest, begin = max(longest, float64(end-begin)), end
				}
			}
		})
		if n := t.Stats().Evicted - evicted; n != uint64(len(s.ns)) {
			return 0, 0, fmt.Errorf("%d keys were evicted for %d new ones", n, len(s.ns))
		}
		return each, longest, nil
	}
	return []figure{
		amount("table: a million keys, random hits, bursts of 32", 200, 80, " ns", bursts, nil),
		amount("table: a million keys, random hits, a packet at a time", 200, 80, " ns", hits, nil),
		speedRatio("table: a million keys in Shards, random hits: 2 goroutines against 1, packets/s", 1.6,
			1.9, sharded(2), sharded(1)),
		amount("table: a million keys, memory of each; other: result of Memory", 80, 48, " B",
			keyMemory(newKeys),
			onSource(table,
				func(t *meter.Table[uint64]) (float64, error) { return float64(t.Memory()) / numKeys, nil })),
		overOneMeter("pipeline: a meter for each of a million sources over one for all, random hits", 200,
			120, false),
		amount("pipeline: a meter for each of a million sources, memory of each", 80, 48, " B",
			keyMemory(func() (*sources, error) {
				return newSources(dataplane.Key{By: dataplane.BySrc}, numKeys, false)
			}), nil),
		amount("table: full, each packet a new key", math.Inf(1), noAim, " ns",
			func() (float64, error) { each, _, err := evict(); return each, err }, nil),
		amount("table: full, each packet a new key, the slowest 4,096 in a row", math.Inf(1), noAim, " ms",
			func() (float64, error) { _, longest, err := evict(); return longest / 1e6, err }, nil),
	}
}

// shareKeys lets goroutines meter the bursts of the stream in turn.
func shareKeys(t *meter.Shards[uint64], goroutines int) float64 {
	s := stream().first(limited)
	start := time.Now()
	var done sync.WaitGroup
	for g := range goroutines {
		done.Go(func() {
			worse := 0
			for from := g * burst; from < len(s.ns); from += goroutines * burst {
				for i := from; i < from+burst; i++ {
					worse += int(t.Color(uint64(s.pick[i]), s.ns[i], s.lengths[i], meter.Green))
				}
			}
		})
	}
	done.Wait()
	return since(start, len(s.ns))
}

// keyMemory measures the heap memory per key of a full table, or of a value that contains one.
func keyMemory[T any](table func() (T, error)) side {
	return func() (float64, error) {
		stream()
		before := heap()
		t, err := table()
		if err != nil {
			return 0, err
		}
		after := heap()
		runtime.KeepAlive(t)
		return (after - before) / numKeys, nil
	}
}

// heap returns the bytes in use in the heap's spans.
func heap() float64 {
	runtime.GC()
	runtime.GC() // sweeps after the first one
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapInuse)
}

// sources is a policy at work, with packets of n sources or customers.
type sources struct {
	engine   processor
	n        uint32
	packets  []dataplane.Packet
	verdicts []dataplane.Verdict
	now      int64
	address  func(i int, source uint32) // makes packet i one of a source
}

// processor processes batches of packets.
type processor interface {
	Process(packets []dataplane.Packet, verdicts []dataplane.Verdict) error
}

// batches is a processor in user space.
type batches struct{ *pipeline.Pipeline }

func (b batches) Process(packets []dataplane.Packet, verdicts []dataplane.Verdict) error {
	b.ProcessBatch(packets, verdicts)
	return nil
}

// newSources sets up a policy with one meter, or with one meter for each of n sources.
func newSources(per dataplane.Key, n uint32, inKernel bool) (*sources, error) {
	m := &dataplane.Meter{
		Name: "m", Params: meter.TokenBucket{Rate: meter.BitRate(1e9), Burst: bucket}, Per: per,
	}
	if per.By != dataplane.NoKey {
		m.Keys = numKeys
	}
	plan, err := compiled.Compile(&dataplane.Policy{Classes: []dataplane.Class{{Name: "all", Meter: m}}})
	if err != nil {
		return nil, err
	}
	s, err := runPlan(plan, n, inKernel, smallFrame)
	if err != nil {
		return nil, err
	}
	s.address = func(i int, source uint32) {
		binary.BigEndian.PutUint32(s.packets[i].Data[26:], 10<<24|source)
	}
	for first := uint32(0); first < n; first += uint32(len(s.packets)) {
		if err := s.process(func(i int) uint32 { return first + uint32(i) }); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// runPlan returns a plan at work, in Go or in the kernel. Its packets are the frames by turns. The
// caller sets address.
func runPlan(plan *compiled.Plan, n uint32, inKernel bool, frames ...[]byte) (*sources, error) {
	s, size := &sources{n: n, now: int64(time.Second)}, burst
	if inKernel {
		w, err := walk.New(plan, 0)
		if err != nil {
			return nil, err
		}
		s.engine, size = w, w.Batch()
	} else {
		s.engine = batches{pipeline.FromPlan(plan)}
	}
	s.verdicts = make([]dataplane.Verdict, size)
	for i := range size {
		s.packets = append(s.packets,
			dataplane.Packet{Data: bytes.Clone(frames[i%len(frames)]), Link: dataplane.LinkEthernet})
	}
	return s, nil
}

// process meters a batch, with the given sources.
func (s *sources) process(source func(i int) uint32) error {
	for i := range s.packets {
		s.address(i, source(i))
		s.packets[i].Time = s.now
		s.now += 1000
	}
	if err := s.engine.Process(s.packets, s.verdicts); err != nil {
		return err
	}
	for i := range s.verdicts {
		if v := &s.verdicts[i]; v.Color != meter.Green || v.Class != 0 {
			return fmt.Errorf("packet %d was %v, of class %d: %v", i, v.Color, v.Class, v.Reason)
		}
	}
	return nil
}

// random returns the time of a packet from a random source.
func (s *sources) random() (float64, error) {
	pick := stream().pick[:limited]
	var wrong error
	ns := thread(limited, func() {
		for ; len(pick) >= len(s.packets) && wrong == nil; pick = pick[len(s.packets):] {
			wrong = s.process(func(i int) uint32 { return pick[i] % s.n })
		}
	})
	return ns, wrong
}

// overOneMeter is the time of a packet with a meter for each of a million sources, less the time
// with one meter for all.
func overOneMeter(what string, bar, aim float64, inKernel bool) figure {
	with := func(per dataplane.Key) side {
		return onSource(
			sync.OnceValues(func() (*sources, error) { return newSources(per, numKeys, inKernel) }),
			(*sources).random)
	}
	return more(what, bar, aim, with(dataplane.Key{By: dataplane.BySrc}), with(dataplane.Key{}))
}

// more is the time of ours, less the time of the other.
func more(what string, bar, aim float64, ours, other side) figure {
	f := amount(what, bar, aim, " ns", ours, other)
	f.measured = func(ours, other float64) float64 { return ours - other }
	return f
}

func sourceFigures() []figure {
	return []figure{overOneMeter(
		"kernel: a meter for each of a million sources over one for all, random hits", 500, 350, true)}
}
