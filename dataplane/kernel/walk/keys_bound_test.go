package walk

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/a-seed-32e5a53f/shaper/bpf"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/engine"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/image"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/kerneltest"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// TestKeysBound compares the programs with the pipeline for tables that are exactly full, also
// in chains of up to eight keyed meters.
func TestKeysBound(t *testing.T) {
	kerneltest.NeedRoot(t)
	if kerneltest.InVM {
		t.Skip("too slow in a VM")
	}
	t.Parallel()
	r := kerneltest.Seeded(t)
	policy := &dataplane.Policy{}
	var packets []dataplane.Packet
	for i, keys := range []int{1, 2, 10, 127, 128, 129, 1000} {
		var m *dataplane.Meter
		for k := range kerneltest.Pick(r, 1, 1, 2, image.MaxChain) {
			m = &dataplane.Meter{
				Name: fmt.Sprint(keys, " ", k),
				Params: kerneltest.Pick[meter.Params](r,
					meter.TokenBucket{Rate: meter.BitRate(8), Burst: 300},
					meter.SlidingCounter{Limit: 300, Window: time.Minute},
					meter.FixedWindow{Limit: 300, Window: year}),
				Aware: true, PreColor: dscpColors, Per: dataplane.Key{By: dataplane.BySrc}, Keys: keys,
				Then: m,
			}
		}
		port := uint64(1000 + i)
		policy.Classes = append(policy.Classes, dataplane.Class{
			Name: fmt.Sprint(keys), Meter: m,
			Match: dataplane.Match{DPort: []dataplane.Range{{First: port, Last: port}}},
		})
		for range 5 { // a key is new the fifth time only if it was evicted
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
		if plane.name == "ingress" || plane.name == "xdp" || plane.name == "walk" {
			t.Run(plane.name,
				func(t *testing.T) { followPipeline(t, policy, plane.open(t, policy), packets) })
		}
	}
}

// TestKeysSpare checks that a table holds as many keys as configured, on whichever CPUs they
// are inserted. It logs how many would be lost without the spare keys of each CPU.
func TestKeysSpare(t *testing.T) {
	kerneltest.NeedRoot(t)
	t.Parallel()
	r := kerneltest.Seeded(t)
	cpus := allowedCPUs(t)
	lost := func(keys, perCPU int, first []int) int {
		table, err := image.NewTable(uint32(keys + perCPU*ebpf.MustPossibleCPU()))
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
					if err := table.Put(key(next), &image.KeyState{}); err != nil {
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
			if table.Lookup(key(i), &image.KeyState{}) != nil {
				gone++
			}
		}
		return gone
	}
	worst := map[int]int{}
	for _, keys := range []int{1, 2, 3, 10, 63, 64, 65, 127, 128, 129, 200, 256, 1000, 5000} {
		for _, first := range [][]int{
			nil,
			{1},
			{0, 1},
			{1, 1, 1, 1},
			{keys / 2, 1, 1},
			{1 + r.IntN(keys), 1 + r.IntN(keys), 1 + r.IntN(keys)},
			{128, 1, 127},
			{keys - 1, 0},
		} {
			for _, perCPU := range []int{0, image.SpareKeys / 2, image.SpareKeys} {
				gone := lost(keys, perCPU, first)
				worst[perCPU] = max(worst[perCPU], gone)
				if gone > 0 && perCPU == image.SpareKeys {
					t.Errorf("lost %d of %d keys, want none; inserted in turns of %v on CPUs %v", gone, keys,
						first, cpus)
				}
			}
		}
	}
	t.Logf("most keys lost, by spare keys per CPU: %v", worst)
}

// TestKeysOver checks that the number of keys exceeds the configured bound as soon as one more
// key arrives, and from then on, on whichever CPUs. The number thus shows that there were more.
func TestKeysOver(t *testing.T) {
	kerneltest.NeedRoot(t)
	t.Parallel()
	r := kerneltest.Seeded(t)
	cpus := allowedCPUs(t)
	for _, keys := range []int{1, 2, 16, 127, 128, 129, 1000} {
		m := &dataplane.Meter{
			Name: "m", Params: meter.TokenBucket{Rate: meter.BitRate(8), Burst: 300},
			Per: dataplane.Key{By: dataplane.BySrc}, Keys: keys,
		}
		w, err := newWalker(&dataplane.Policy{Classes: []dataplane.Class{{Name: "a", Meter: m}}}, 64)
		if err != nil {
			t.Fatal(err)
		}
		arrived := 0
		for arrived < 3*keys+2000 {
			n := 1 + r.IntN(kerneltest.Pick(r, 1, 3, 200))
			if arrived < keys {
				n = min(n, keys-arrived) // check once exactly at the bound
			}
			err := <-onCPU(kerneltest.Pick(r, cpus...), func() error {
				for range n {
					arrived++
					p := bySource(uint32(arrived), 1, 100, int64(arrived))
					if err := w.Process([]dataplane.Packet{p}, make([]dataplane.Verdict, 1)); err != nil {
						return err
					}
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			known, err := w.Keys(w.image.Plan.Stage(m))
			if err != nil || arrived <= keys && known != arrived || arrived > keys &&
				(known <= keys || known > int(image.TableSize(onlyStage(t, m)))) {
				t.Fatalf("keys %d, %d arrived: got %d known keys and error %v", keys, arrived, known, err)
			}
		}
		other := &dataplane.Meter{Name: "other"}
		n, err := w.Keys(w.image.Plan.Stage(other))
		tc, te, noTokens := w.Tokens(w.image.Plan.Stage(other))
		if n != 0 || err != nil || tc != 0 || te != 0 || noTokens != nil {
			t.Errorf("a meter of another policy: got %d keys (%v), %d and %d tokens (%v), want none", n, err,
				tc, te, noTokens)
		}
		w.Close()
	}
}

// TestKeysSpray sends from more addresses than a table holds. The table stays bounded, the
// granted bytes stay within the next meter's limit, and a busy key is not evicted.
func TestKeysSpray(t *testing.T) {
	kerneltest.NeedRoot(t)
	if kerneltest.InVM {
		t.Skip("too slow in a VM")
	}
	t.Parallel()
	kerneltest.Seeded(t)
	next := &dataplane.Meter{
		Name: "all", Params: meter.TokenBucket{Rate: meter.BitRate(8e6), Burst: 50_000}, Aware: true,
	}
	policy := &dataplane.Policy{}
	for i, keys := range []int{1, 1000, dataplane.DefaultKeys} {
		m := &dataplane.Meter{
			Name:   fmt.Sprint(keys),
			Params: meter.TokenBucket{Rate: meter.Rate{Bytes: 1, Period: 400 * time.Hour}, Burst: 300},
			Per:    dataplane.Key{By: dataplane.BySrc}, Keys: keys, Then: next,
		}
		policy.Classes = append(policy.Classes, dataplane.Class{
			Name: m.Name, Meter: m,
			Match: dataplane.Match{DPort: []dataplane.Range{{First: uint64(i), Last: uint64(i)}}},
		})
	}
	w, err := newWalker(policy, 512)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	now, begin, allowed := int64(1e12), int64(1e12), int64(0)
	source := uint32(1 << 30)
	for i, class := range policy.Classes {
		keys, sprayed := class.Meter.Keys, kerneltest.Rounds(400_000)
		if i == 0 {
			sprayed = kerneltest.Rounds(20_000)
		}
		every := []int{max(keys/20, 64), max(keys/4, 200), 100_000}
		passed := make([]int, len(every)) // packets that passed the keyed meter
		var packets []dataplane.Packet
		var senders []int // index in every, -1 for a new key
		send := func(honest int, source uint32) {
			packets, senders = append(packets, bySource(source, uint16(i), 100, now)), append(senders, honest)
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
				if senders[k] >= 0 && int(w.records.Values[k].Stage) != int(w.image.Plan.Stage(class.Meter)) {
					passed[senders[k]]++
				}
			}
			packets, senders = packets[:0], senders[:0]
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
		for range 512 { // fills the last batch
			send(-1, source)
		}
		entries := knownKeys(t, w.maps, w.image.Stages[w.image.Plan.Stage(class.Meter)].Table)
		if most := int(image.TableSize(onlyStage(t, class.Meter))); entries > most ||
			entries <= min(keys, sprayed-1) {
			t.Errorf("keys %d: got %d keys in the table after %d, want more than the bound and at most %d",
				keys, entries, sprayed, most)
		}
		if n, err := w.Keys(w.image.Plan.Stage(class.Meter)); n != entries || err != nil {
			t.Errorf("keys %d: got %d known keys and error %v, want %d", keys, n, err, entries)
		}
		t.Logf("keys %d: %d in the table; a key seen once per %v new keys passed %v times, of the 3 that its burst allows",
			keys, entries, every, passed)
		if i > 0 && (passed[0] > 3 || passed[1] > 3) {
			t.Errorf(
				"keys %d: a key seen once per %v new keys passed %v packets, want at most 3: it was evicted",
				keys, every[:2], passed[:2])
		}
	}
	if most := 50_000 + (now-begin)/1000; allowed > most || allowed < most/2 {
		t.Errorf("%d bytes passed, want at most %d and at least half of that", allowed, most)
	}
}

// TestConcurrentSpray meters more keys than a table holds on two CPUs, so that states in use are
// evicted. No lock stays closed, every state is valid, and the next meter keeps to its limit.
func TestConcurrentSpray(t *testing.T) { // not parallel: it needs both CPUs
	kerneltest.NeedRoot(t)
	cpus := allowedCPUs(t)
	next := &dataplane.Meter{
		Name: "next", Params: meter.TokenBucket{Rate: meter.BitRate(80e6), Burst: 50_000}, Aware: true,
	}
	m := &dataplane.Meter{
		Params: meter.SRTCM{CIR: meter.BitRate(1e6), CBS: 3000, EBS: 3000},
		Per:    dataplane.Key{By: dataplane.BySrc}, Keys: 1, Then: next,
	}
	h := newHooked(t, oneClass(dataplane.Class{Meter: m}), image.EgressEntry,
		func(c *bpf.ShaperConstants) { c.Handed = 0 })
	first, seed := engine.Now(), kerneltest.Seeded(t).Uint64()
	var ends []<-chan error
	for i, cpu := range cpus {
		ends = append(ends, onCPU(cpu, func() (err error) {
			r := rand.New(rand.NewPCG(seed, uint64(i)))
			for begin := time.Now(); err == nil && time.Since(begin) < 300*time.Millisecond; {
				source := r.Uint32N(2000)
				if r.IntN(2) == 0 {
					source = r.Uint32N(2) // keys that both CPUs use
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
	last := engine.Now()
	all, err := h.Stats()
	if err != nil {
		t.Fatal(err)
	}
	granted, most := all[0].Colors[meter.Green].Bytes+all[0].Colors[meter.Yellow].Bytes,
		50_000+(last-first)/100
	if granted > most {
		t.Errorf("%d bytes passed, want at most %d", granted, most)
	}
	stage := &h.image.Stages[h.image.Plan.Stage(m)]
	table, err := image.OpenTable(h.maps.Keys, stage.Table)
	if err != nil {
		t.Fatal(err)
	}
	defer table.Close()
	var key bpf.ShaperKey
	var v image.KeyState
	n := 0
	for entries := table.Iterate(); entries.Next(&key, &v); n++ {
		l := engine.LevelsAt(&bpf.ShaperState{Word: v.Word, Stamp: v.Stamp}, &stage.Profile, uint64(last))
		if v.Lock != 0 || int64(v.Stamp) < first || int64(v.Stamp) > last || l[0] < 0 || l[1] < 0 {
			t.Errorf(
				"key %+v: got state %+v and levels %v, want an open lock, a stamp of this test and no debt",
				key, v, l)
		}
	}
	if most := int(image.TableSize(onlyStage(t, m))); n > most || n < 1 {
		t.Errorf("got %d keys, want 1 to %d", n, most)
	}
	t.Logf("%d packets, %d of at most %d bytes passed, %d keys", all[0].Total().Packets, granted, most, n)
}
