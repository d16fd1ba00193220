package walk

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/bpf"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/image"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/kerneltest"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/record"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/cilium/ebpf"
)

// readPrefixes reads the numbers of all keys, and how they are searched.
func readPrefixes(t *testing.T, maps *image.Maps) (map[image.PrefixKey]uint32, *bpf.ShaperPrefixSearch) {
	t.Helper()
	table, err := maps.OpenPrefixes()
	if err != nil {
		t.Fatal(err)
	}
	defer table.Close()
	out := map[image.PrefixKey]uint32{}
	for slot := range table.Slots() {
		if slot.Customer() == image.NeverUsed || slot.Customer() == image.Removed {
			continue
		}
		if out[slot.Key()] != 0 {
			t.Fatalf("%v is in the table twice", slot.Key())
		}
		out[slot.Key()] = slot.Customer()
	}
	return out, &table.Search
}

// owners are the customers of a policy, found one prefix after another.
type owners struct {
	list    []dataplane.Customer
	numbers map[uint64]uint32 // in the kernel
}

// of returns the number of the customer of an address, or 0.
func (o *owners) of(a netip.Addr) (number uint32) {
	longest := -1
	for i := range o.list {
		for _, p := range o.list[i].Prefixes {
			if p.Contains(a) && p.Bits() > longest {
				longest, number = p.Bits(), o.numbers[image.CustomerID(o.list[i].Name)]
			}
		}
	}
	return number
}

// lookedUp is a Walker whose maps of customers change.
type lookedUp struct {
	*Walker
	owners
	index *image.CustomerIndex // of changeInPlace; nil after a change
}

// newLookedUp loads the program of a policy with customers.
func newLookedUp(t *testing.T, list []dataplane.Customer) *lookedUp {
	t.Helper()
	plan, err := compiled.Compile(kerneltest.CustomerPolicy(list))
	if err != nil {
		t.Fatal(err)
	}
	w, err := New(plan, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	l := &lookedUp{Walker: w}
	l.note(t, list)
	return l
}

// note records the numbers of customers.
func (l *lookedUp) note(t *testing.T, list []dataplane.Customer) {
	t.Helper()
	table, err := l.maps.ReadCustomers()
	if err != nil {
		t.Fatal(err)
	}
	l.owners = owners{list, table.Numbers}
}

// change makes the maps have other customers, if they have room.
func (l *lookedUp) change(t *testing.T, list []dataplane.Customer) bool {
	t.Helper()
	g, err := encodePolicy(kerneltest.CustomerPolicy(list), image.IngressEntry, "")
	if err != nil {
		t.Fatal(err)
	}
	fits, err := l.maps.FitCustomers(g, &record.About{Customers: g.Constants.Customers})
	if err == nil && fits {
		err = l.maps.ChangeCustomers(g)
	}
	if err != nil {
		t.Fatal(err)
	}
	if l.index = nil; fits {
		l.note(t, list)
	}
	return fits
}

// changeInPlace is change without an image, as customers of a running shaper come and go.
func (l *lookedUp) changeInPlace(t *testing.T, list []dataplane.Customer) bool {
	t.Helper()
	plan, err := compiled.Compile(kerneltest.CustomerPolicy(list))
	if err != nil {
		t.Fatal(err)
	}
	if l.index == nil {
		if l.index, err = image.NewCustomerIndex(l.maps, time.Time{}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(l.index.Close)
	}
	var changes []compiled.CustomerChange
	var services []compiled.CustomerService
	before := map[string]*dataplane.Customer{}
	for i := range l.list {
		before[l.list[i].Name] = &l.list[i]
	}
	for i := range list {
		c := &list[i]
		service := plan.Customers.Service(uint32(i + 1))
		changes = append(changes,
			compiled.CustomerChange{Name: c.Name, Before: before[c.Name], After: c, Plan: service})
		services = append(services, compiled.CustomerService{Name: c.Name, Plan: service})
		delete(before, c.Name)
	}
	for name, c := range before {
		changes = append(changes, compiled.CustomerChange{Name: name, Before: c})
	}
	encoded, err := image.EncodeServices(&record.About{Direction: dataplane.Ingress}, services)
	if err == nil {
		err = l.index.Change(changes, encoded)
	}
	if errors.Is(err, image.ErrNoRoom) {
		return false
	}
	if err != nil {
		t.Fatal(err)
	}
	l.note(t, list)
	return true
}

// framesTo returns a packet to each address.
func framesTo(addresses []netip.Addr) (out []dataplane.Packet) {
	for _, a := range addresses {
		p := dataplane.Packet{Link: dataplane.LinkEthernet}
		if a.Is4() {
			p.Data = ipv4(kerneltest.Be16(ethernet(), 0x800), 0, 0, 17, 8, 0, from4, a.As4())
		} else {
			p.Data = ipv6(kerneltest.Be16(ethernet(), 0x86dd), 0, 17, 8, [16]byte{0x20, 1}, a.As16())
		}
		p.Data = append(p.Data, 0, 1, 0, 2, 0, 8, 0, 0)
		out = append(out, p)
	}
	return out
}

// find calls f with the number of the customer that the program finds for each packet.
func (l *lookedUp) find(packets []dataplane.Packet, f func(i int, number uint32)) error {
	for at := 0; at < len(packets); {
		n := l.writePackets(packets[at:])
		context := struct{ Len, Type, Mark uint32 }{Mark: uint32(n)}
		if _, err := l.program.Run(&ebpf.RunOptions{Data: make([]byte, 14), Context: context}); err != nil {
			return err
		}
		for i := range n {
			f(at+i, l.records.Values[i].Customer)
		}
		at += n
	}
	return nil
}

var homePlan = &dataplane.ServicePlan{
	Name: "home", Params: meter.TokenBucket{Rate: meter.BitRate(1e9), Burst: 1e9},
}

// randomAddress returns one of few addresses of both families.
func randomAddress(r *rand.Rand) netip.Addr {
	if r.IntN(2) == 0 {
		return netip.AddrFrom4([4]byte{byte(r.IntN(3)), byte(r.IntN(2)), byte(r.IntN(2)), byte(r.IntN(8))})
	}
	return netip.AddrFrom16(
		[16]byte{0x20, byte(r.IntN(2)), 7: byte(r.IntN(8)), 8: byte(r.IntN(2)) << 7, 15: byte(r.IntN(8))})
}

// randomOwners returns n customers, most of them with some prefixes, of all lengths. Names and
// prefixes are from a small set, so that a prefix often has another customer the next time.
func randomOwners(r *rand.Rand, n, prefixes int) (list []dataplane.Customer) {
	owner := map[netip.Prefix]bool{}
	for _, name := range r.Perm(n + n/4)[:n] {
		c := dataplane.Customer{Name: fmt.Sprint(name), Plan: homePlan}
		for range prefixes {
			a := randomAddress(r)
			bits := r.IntN(a.BitLen() + 1)
			if r.IntN(8) != 0 { // most have one of few lengths
				bits = a.BitLen() - r.IntN(3)
			}
			if p, _ := a.Prefix(bits); !owner[p] {
				owner[p] = true
				c.Prefixes = append(c.Prefixes, p)
			}
		}
		if len(c.Prefixes) > 0 {
			c.Prefixes = append(c.Prefixes, c.Prefixes[0]) // allowed, and without effect
		}
		list = append(list, c)
	}
	return list
}

// TestPrefixLookups changes the prefixes of customers at random, and compares the look-ups of the
// program with those of a model.
func TestPrefixLookups(t *testing.T) {
	kerneltest.NeedRoot(t)
	t.Parallel()
	r := kerneltest.Seeded(t)
	l := newLookedUp(t, randomOwners(r, 200, 3))
	remade := 0
	for round := range kerneltest.Rounds(12) {
		if round > 0 {
			list := slices.Clone(l.list)
			if fresh := randomOwners(r, 1+r.IntN(100), 3); r.IntN(8) == 0 {
				list = fresh
			} else {
				list = mixOwners(r, list, fresh)
			}
			change := l.change
			if r.IntN(3) > 0 {
				change = l.changeInPlace
			}
			if !change(t, list) {
				l = newLookedUp(t, list)
				remade++
			}
		}
		addresses := make([]netip.Addr, 1000)
		for i := range addresses {
			addresses[i] = randomAddress(r)
		}
		readPrefixes(t, l.maps)
		wrong := 0
		err := l.find(framesTo(addresses), func(i int, number uint32) {
			if want := l.of(addresses[i]); number != want && wrong < 10 {
				wrong++
				t.Errorf("round %d: %v belongs to number %d, want %d", round, addresses[i], number, want)
			}
		})
		if err != nil || wrong > 0 {
			t.Fatal(err)
		}
	}
	t.Logf("%d times with new maps", remade)
}

// mixOwners returns a part of the customers, which lose some prefixes, and some new ones with the
// prefixes that are free.
func mixOwners(r *rand.Rand, list, fresh []dataplane.Customer) (out []dataplane.Customer) {
	names, owner := map[string]bool{}, map[netip.Prefix]bool{}
	for _, c := range slices.Concat(list, fresh) {
		if names[c.Name] || r.IntN(10) == 0 {
			continue
		}
		names[c.Name] = true
		c.Prefixes = slices.DeleteFunc(slices.Clone(c.Prefixes),
			func(p netip.Prefix) bool { return owner[p] || r.IntN(10) == 0 })
		for _, p := range c.Prefixes {
			owner[p] = true
		}
		out = append(out, c)
	}
	r.Shuffle(len(out), func(i, j int) { out[i], out[j] = out[j], out[i] })
	return out
}

// TestPrefixesChangeUnderTraffic looks prefixes up while they change. Each look-up finds the
// customer of an address before or after the change.
func TestPrefixesChangeUnderTraffic(t *testing.T) {
	kerneltest.NeedRoot(t)
	for name, change := range map[string]func(*lookedUp, *testing.T, []dataplane.Customer) bool{
		"by a reload": (*lookedUp).change, "in place": (*lookedUp).changeInPlace,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			changeUnderTraffic(t, change)
		})
	}
}

func changeUnderTraffic(t *testing.T, change func(*lookedUp, *testing.T, []dataplane.Customer) bool) {
	r := kerneltest.Seeded(t)
	var addresses []netip.Addr
	for range 512 {
		addresses = append(addresses, randomAddress(r))
	}
	packets := framesTo(addresses)
	l := newLookedUp(t, randomOwners(r, 150, 6))
	states := []owners{l.owners}
	// states[from..to] were in the maps while the program ran.
	type result struct {
		from, to int
		numbers  []uint32
	}
	var results []result
	var begun, ended atomic.Int32
	done, failed := make(chan struct{}), make(chan error)
	go func() {
		for {
			res := result{from: int(ended.Load()), numbers: make([]uint32, len(packets))}
			err := l.find(packets, func(i int, number uint32) { res.numbers[i] = number })
			res.to = int(begun.Load())
			results = append(results, res)
			select {
			case <-done:
				failed <- err
				return
			default:
			}
		}
	}()
	w := &lookedUp{Walker: l.Walker, owners: l.owners}
	for range 12 {
		begun.Add(1)
		if !change(w, t, randomOwners(r, 100, 3)) {
			begun.Add(-1)
			break // there is no room for two states, because removed keys have filled the table
		}
		ended.Add(1)
		states = append(states, w.owners)
	}
	close(done)
	if err := <-failed; err != nil {
		t.Fatal(err)
	}
	if len(states) < 5 {
		t.Fatalf("only %d states", len(states))
	}
	during := 0
	want := make([][]uint32, len(states))
	for i := range states {
		for _, a := range addresses {
			want[i] = append(want[i], states[i].of(a))
		}
	}
	for _, res := range results {
		res.to = min(res.to, len(states)-1)
		if res.to > res.from {
			during++
		}
		for i, number := range res.numbers {
			if !slices.ContainsFunc(want[res.from:res.to+1],
				func(w []uint32) bool { return w[i] == number }) {
				t.Fatalf("%v belongs to number %d, not as in the states %d to %d", addresses[i], number,
					res.from, res.to)
			}
		}
	}
	t.Logf("%d states, %d runs, %d of them during a change", len(states), len(results), during)
	if during == 0 {
		t.Error("no run during a change")
	}
}

// TestPrefixChain looks up prefixes that all begin their search in the last bucket.
func TestPrefixChain(t *testing.T) {
	kerneltest.NeedRoot(t)
	t.Parallel()
	l := newLookedUp(t, []dataplane.Customer{
		{Name: "a", Plan: homePlan, Prefixes: []netip.Prefix{netip.MustParsePrefix("192.0.2.1/32")}},
	})
	table, err := l.maps.OpenPrefixes()
	if err != nil {
		t.Fatal(err)
	}
	defer table.Close()
	var addresses []netip.Addr
	for i := uint32(10 << 24); len(addresses) < 20; i++ {
		key := image.PrefixKey{Addr: bpf.ShaperAddr{Lo: uint64(i)}, Kind: image.IPv4Prefix + 32}
		if table.Home(key) != len(table.Buckets)-1 {
			continue
		}
		slot, err := table.Take(key)
		if err != nil {
			t.Fatal(err)
		}
		addresses = append(addresses, netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, i))))
		slot.SetNumber(uint32(len(addresses)))
	}
	err = l.find(framesTo(addresses), func(i int, number uint32) {
		if number != uint32(i+1) {
			t.Errorf("prefix %d belongs to number %d", i+1, number)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestInterruptedPrefixChange checks that a change completes what a killed process began.
func TestInterruptedPrefixChange(t *testing.T) {
	kerneltest.NeedRoot(t)
	t.Parallel()
	r := kerneltest.Seeded(t)
	l := newLookedUp(t, randomOwners(r, 50, 3))
	table, err := l.maps.OpenPrefixes()
	if err != nil {
		t.Fatal(err)
	}
	defer table.Close()
	key := image.PrefixKey{
		Addr: bpf.ShaperAddr{Lo: uint64(binary.BigEndian.Uint32([]byte{192, 0, 2, 1}))},
		Kind: image.IPv4Prefix + 32,
	}
	if _, err := table.Take(key); err != nil {
		t.Fatal(err)
	}
	list := append(slices.Clone(l.list), dataplane.Customer{
		Name: "new", Plan: homePlan, Prefixes: []netip.Prefix{netip.MustParsePrefix("192.0.2.1/32")},
	})
	if !l.change(t, list) {
		t.Fatal("the maps have room")
	}
	prefixes, _ := readPrefixes(t, l.maps)
	if prefixes[key] != l.numbers[image.CustomerID("new")] {
		t.Errorf("the key belongs to number %d, want %d", prefixes[key], l.numbers[image.CustomerID("new")])
	}
	for key, number := range prefixes {
		if number == image.Taken {
			t.Errorf("key %v has no customer", key)
		}
	}
}
