package kernel

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/a-seed-32e5a53f/shaper/bpf"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// TestKeysBound holds the programs to the pipeline where a table is full to its
// last key, for a chain of eight such meters, too.
func TestKeysBound(t *testing.T) {
	needRoot(t)
	if inVM {
		t.Skip("not in a VM: it would take long and show nothing new")
	}
	t.Parallel()
	r := seeded(t)
	policy := &dataplane.Policy{}
	var packets []dataplane.Packet
	for i, keys := range []int{1, 2, 10, 127, 128, 129, 1000} {
		var m *dataplane.Meter
		for k := range pick(r, 1, 1, 2, MaxChain) {
			m = &dataplane.Meter{
				Name: fmt.Sprint(keys, " ", k), Params: pick[dataplane.Params](r, meter.TokenBucket{Rate: bps(8), Burst: 300}, meter.SlidingCounter{Limit: 300, Window: time.Minute}, meter.FixedWindow{Limit: 300, Window: year}),
				Aware: true, PreColor: dscpColors, Per: dataplane.Key{By: dataplane.BySrc}, Keys: keys, Then: m,
			}
		}
		port := uint32(1000 + i)
		policy.Classes = append(policy.Classes, dataplane.Class{Name: fmt.Sprint(keys), Meter: m, Match: dataplane.Match{DPort: []dataplane.Range{{First: port, Last: port}}}})
		for range 5 { // none is known the fifth time only if it was forgotten
			for _, k := range r.Perm(keys) {
				packets = append(packets, bySource(uint32(k), uint16(port), 100, 0))
			}
		}
	}
	r.Shuffle(len(packets), func(i, j int) { packets[i], packets[j] = packets[j], packets[i] })
	for i := range packets {
		packets[i].Time = int64(i) * 1000
	}
	for _, plane := range planes {
		if plane.name == "ingress" || plane.name == "xdp" || plane.name == "walk-512" {
			t.Run(plane.name, func(t *testing.T) { follow(t, policy, plane.open(t, policy), packets) })
		}
	}
}

// TestKeysSpare holds that as many keys as a table is to know have room in it,
// on whichever CPUs they come, and shows that they had none without the spare ones.
func TestKeysSpare(t *testing.T) {
	needRoot(t)
	t.Parallel()
	r := seeded(t)
	cpus := allowedCPUs(t)
	lost := func(keys, perCPU int, first []int) int {
		table, err := newTable(uint32(keys + perCPU*ebpf.MustPossibleCPU()))
		if err != nil {
			t.Fatal(err)
		}
		defer table.Close()
		key := func(i int) *bpf.ShaperKey { return &bpf.ShaperKey{Src: bpf.ShaperAddr{Lo: uint64(i)}} }
		next := 0
		for i := 0; next < keys; i++ {
			n := keys
			if i < len(first) {
				n = min(keys, next+first[i])
			}
			err := <-onCPU(cpus[i%len(cpus)], func() error {
				for ; next < n; next++ {
					if err := table.Put(key(next), &keyState{}); err != nil {
						return err
					}
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		gone := 0
		for i := range keys {
			if table.Lookup(key(i), &keyState{}) != nil {
				gone++
			}
		}
		return gone
	}
	worst := map[int]int{}
	for _, keys := range []int{1, 2, 3, 10, 63, 64, 65, 127, 128, 129, 200, 256, 1000, 5000} {
		for _, first := range [][]int{nil, {1}, {0, 1}, {1, 1, 1, 1}, {keys / 2, 1, 1}, {1 + r.IntN(keys), 1 + r.IntN(keys), 1 + r.IntN(keys)}, {128, 1, 127}, {keys - 1, 0}} {
			for _, perCPU := range []int{0, spareKeys / 2, spareKeys} {
				gone := lost(keys, perCPU, first)
				worst[perCPU] = max(worst[perCPU], gone)
				if gone > 0 && perCPU == spareKeys {
					t.Errorf("%d of %d keys are lost, inserted by turns of %v on CPUs %v", gone, keys, first, cpus)
				}
			}
		}
	}
	t.Logf("most keys lost, by spare room for each CPU: %v", worst)
}

// TestKeysOver holds that a table has more keys than its bound as soon as one more
// came, and ever after, whichever CPUs they come on: so that its number says that there were more.
func TestKeysOver(t *testing.T) {
	needRoot(t)
	t.Parallel()
	r := seeded(t)
	cpus := allowedCPUs(t)
	for _, keys := range []int{1, 2, 16, 127, 128, 129, 1000} {
		m := &dataplane.Meter{Name: "m", Params: meter.TokenBucket{Rate: bps(8), Burst: 300}, Per: dataplane.Key{By: dataplane.BySrc}, Keys: keys}
		w, err := newWalker(&dataplane.Policy{Classes: []dataplane.Class{{Name: "a", Meter: m}}}, 64)
		if err != nil {
			t.Fatal(err)
		}
		came := 0
		for came < 3*keys+2000 {
			n := 1 + r.IntN(pick(r, 1, 3, 200))
			if came < keys {
				n = min(n, keys-came) // stops at the bound once
			}
			err := <-onCPU(pick(r, cpus...), func() error {
				for range n {
					came++
					p := bySource(uint32(came), 1, 100, int64(came))
					if err := w.Process([]dataplane.Packet{p}, make([]dataplane.Verdict, 1)); err != nil {
						return err
					}
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			known, err := w.Keys(w.plan.Stage(m))
			if err != nil || came <= keys && known != came || came > keys && (known <= keys || known > int(tableSize(planned(t, m)))) {
				t.Fatalf("keys %d, %d came: %d are known, %v", keys, came, known, err)
			}
		}
		other := &dataplane.Meter{Name: "other"}
		n, err := w.Keys(w.plan.Stage(other))
		tc, te, noTokens := w.Tokens(w.plan.Stage(other))
		if n != 0 || err != nil || tc != 0 || te != 0 || noTokens != nil {
			t.Errorf("another meter has %d keys, %v, and %d, %d, %v", n, err, tc, te, noTokens)
		}
		w.Close()
	}
}

// TestKeysSpray sends from more addresses than a table knows: it stays bounded,
// what the new ones get is what the meter behind allows, and who is busy is not
// forgotten.
func TestKeysSpray(t *testing.T) {
	needRoot(t)
	if inVM {
		t.Skip("not in a VM: it would take long and show nothing new")
	}
	t.Parallel()
	seeded(t)
	behind := &dataplane.Meter{Name: "all", Params: meter.TokenBucket{Rate: bps(8e6), Burst: 50_000}, Aware: true}
	policy := &dataplane.Policy{}
	for i, keys := range []int{1, 1000, dataplane.DefaultKeys} {
		m := &dataplane.Meter{Name: fmt.Sprint(keys), Params: meter.TokenBucket{Rate: meter.Rate{Bytes: 1, Period: 400 * time.Hour}, Burst: 300}, Per: dataplane.Key{By: dataplane.BySrc}, Keys: keys, Then: behind}
		policy.Classes = append(policy.Classes, dataplane.Class{Name: m.Name, Meter: m, Match: dataplane.Match{DPort: []dataplane.Range{{First: uint32(i), Last: uint32(i)}}}})
	}
	w, err := newWalker(policy, 512)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	now, begin, allowed := int64(1e12), int64(1e12), int64(0)
	source := uint32(1 << 30)
	for i, class := range policy.Classes {
		keys, sprayed := class.Meter.Keys, rounds(400_000)
		if i == 0 {
			sprayed = rounds(20_000)
		}
		every := []int{max(keys/20, 64), max(keys/4, 200), 100_000}
		passed := make([]int, len(every)) // the meter of the key
		var packets []dataplane.Packet
		var who []int
		send := func(honest int, source uint32) {
			packets, who = append(packets, bySource(source, uint16(i), 100, now)), append(who, honest)
			if len(packets) < 512 {
				return
			}
			verdicts := make([]dataplane.Verdict, len(packets))
			if err := w.Process(packets, verdicts); err != nil {
				t.Fatal(err)
			}
			for k := range verdicts {
				if verdicts[k].Color == meter.Green {
					allowed += 100
				}
				if who[k] >= 0 && int(w.records[k].Stage) != int(w.plan.Stage(class.Meter)) {
					passed[who[k]]++
				}
			}
			packets, who = packets[:0], who[:0]
		}
		for n := range sprayed {
			now += 1000
			source++
			send(-1, source)
			for h, each := range every {
				if n%each == each-1 {
					send(h, uint32(h+1))
				}
			}
		}
		for range 512 { // the last batch
			send(-1, source)
		}
		entries := knownKeys(t, w.maps, w.stages[w.plan.Stage(class.Meter)].Table)
		if most := int(tableSize(planned(t, class.Meter))); entries > most || entries <= min(keys, sprayed-1) {
			t.Errorf("keys %d: the table has %d after %d: want more, and at most %d", keys, entries, sprayed, most)
		}
		if n, err := w.Keys(w.plan.Stage(class.Meter)); n != entries || err != nil {
			t.Errorf("keys %d: %d are known, %v: want %d", keys, n, err, entries)
		}
		t.Logf("keys %d: %d in the table; one that comes once in %v new ones passed %v times of %d", keys, entries, every, passed, 3)
		if i > 0 && (passed[0] > 3 || passed[1] > 3) {
			t.Errorf("keys %d: one that comes once in %v new ones had %v of 3 packets: it was forgotten", keys, every[:2], passed[:2])
		}
	}
	if most := 50_000 + (now-begin)/1000; allowed > most || allowed < most/2 {
		t.Errorf("%d bytes passed: want at most %d, and nearly that", allowed, most)
	}
}

// TestConcurrentSpray has two CPUs at more keys than a table knows, so that states
// change hands while they are in use: no lock stays closed, no state holds what
// it cannot, and the meter behind gives no more than it has.
func TestConcurrentSpray(t *testing.T) { // not parallel: the CPUs are for this
	needRoot(t)
	cpus := allowedCPUs(t)
	behind := &dataplane.Meter{Name: "behind", Params: meter.TokenBucket{Rate: bps(80e6), Burst: 50_000}, Aware: true}
	m := &dataplane.Meter{Params: meter.SRTCM{CIR: bps(1e6), CBS: 3000, EBS: 3000}, Per: dataplane.Key{By: dataplane.BySrc}, Keys: 1, Then: behind}
	h := newHooked(t, oneClass(dataplane.Class{Meter: m}), egressEntry, func(c *bpf.ShaperConstants) { c.Handed = 0 })
	first, seed := clock(t), seeded(t).Uint64()
	var ends []<-chan error
	for i, cpu := range cpus {
		ends = append(ends, onCPU(cpu, func() (err error) {
			r := rand.New(rand.NewPCG(seed, uint64(i)))
			for begin := time.Now(); err == nil && time.Since(begin) < 300*time.Millisecond; {
				source := r.Uint32N(2000)
				if r.IntN(2) == 0 {
					source = r.Uint32N(2) // both CPUs want these
				}
				p := bySource(source, 1, 1000, 0)
				_, err = h.program.Run(&ebpf.RunOptions{Data: p.Data, Repeat: 1 + r.Uint32N(20)})
			}
			return err
		}))
	}
	for _, end := range ends {
		if err := <-end; err != nil {
			t.Fatal(err)
		}
	}
	last := clock(t)
	all, err := h.Stats()
	if err != nil {
		t.Fatal(err)
	}
	granted, most := all[0].Colors[meter.Green].Bytes+all[0].Colors[meter.Yellow].Bytes, 50_000+(last-first)/100
	if granted > most {
		t.Errorf("%d bytes passed: want at most %d", granted, most)
	}
	stage := &h.stages[h.plan.Stage(m)]
	table, err := openTable(h.maps.keys, stage.Table)
	if err != nil {
		t.Fatal(err)
	}
	defer table.Close()
	var key bpf.ShaperKey
	var v keyState
	n := 0
	for entries := table.Iterate(); entries.Next(&key, &v); n++ {
		l := levelsAt(&bpf.ShaperState{Word: v.Word, Stamp: v.Stamp}, &stage.Profile, uint64(last))
		if v.Lock != 0 || int64(v.Stamp) < first || int64(v.Stamp) > last || l[0] < 0 || l[1] < 0 {
			t.Errorf("key %+v has %+v, levels %v", key, v, l)
		}
	}
	if most := int(tableSize(planned(t, m))); n > most || n < 1 {
		t.Errorf("%d keys are known: want at most %d", n, most)
	}
	t.Logf("%d packets, %d of at most %d bytes passed, %d keys", all[0].Total().Packets, granted, most, n)
}
