package image

import (
	"errors"
	"os"
	"strings"
	"time"

	"github.com/a-seed-32e5a53f/shaper/bpf"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/engine"
)

// savedCustomers are the customers who sent or received packets, and their plans.
type savedCustomers struct {
	boot            [36]byte // ID of the boot
	monotonic, wall int64    // time of saving, ns
	plans           []bpf.ShaperPlan
	list            []savedCustomer
}

// savedCustomer is the state of a customer. The words are those of bpf.ShaperCustomer.
type savedCustomer struct {
	ID    uint64
	Plan  uint32
	Word  [2]uint64
	Stamp uint64
	Queue [3]uint64
}

// bootID returns the ID made by the kernel at its start.
func bootID() (id [36]byte, err error) {
	text, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err == nil && copy(id[:], strings.TrimSpace(string(text))) != len(id) {
		err = errors.New("boot_id is too short")
	}
	return id, err
}

// SaveCustomers encodes the state of all customers.
func (s *Maps) SaveCustomers() ([]byte, error) {
	t, err := s.ReadCustomers()
	if err != nil {
		return nil, err
	}
	boot, err := bootID()
	if err != nil {
		return nil, err
	}
	return t.save(boot, engine.Now(), time.Now().UnixNano()), nil
}

// RestoreNow decodes saved customers, as of now. Their counters are 0.
func RestoreNow(b []byte) (*CustomerTable, error) {
	boot, err := bootID()
	if err != nil {
		return nil, err
	}
	return restoreCustomers(b, boot, engine.Now(), time.Now().UnixNano())
}

// save encodes the table, as of a time.
func (t *CustomerTable) save(boot [36]byte, monotonic, wall int64) []byte {
	out := &savedCustomers{boot: boot, monotonic: monotonic, wall: wall}
	index := map[uint32]uint32{}
	for i := range t.customers {
		c := &t.customers[i]
		if c.Id == 0 || c.Stamp == engine.NotBegun {
			continue
		}
		at, known := index[c.Plan]
		if !known {
			at = uint32(len(out.plans))
			index[c.Plan] = at
			out.plans = append(out.plans, t.plans[c.Plan])
		}
		out.list = append(out.list, savedCustomer{c.Id, at, c.Word, c.Stamp, c.Queue})
	}
	return out.encode()
}

// restoreCustomers decodes saved customers, as of a time. Their counters are 0. Plans hold only
// their stateParameters.
func restoreCustomers(b []byte, boot [36]byte, monotonic, wall int64) (*CustomerTable, error) {
	saved, err := decodeCustomers(b)
	if err != nil {
		return nil, err
	}
	customers := make([]bpf.ShaperCustomer, len(saved.list))
	for i := range saved.list {
		c := &saved.list[i]
		if saved.boot != boot {
			c.age(&saved.plans[c.Plan], saved.monotonic, max(wall-saved.wall, 0), monotonic)
		}
		customers[i] = bpf.ShaperCustomer{
			Id: c.ID, Plan: c.Plan, Word: c.Word, Stamp: c.Stamp, Queue: c.Queue,
		}
	}
	t := newCustomerTable(customers)
	t.plans = saved.plans
	return t, nil
}

// age moves the state to the clock of the present boot. saved is the time of saving on the previous
// clock. since is the time from saving until now, in ns.
func (c *savedCustomer) age(p *bpf.ShaperPlan, saved, since, now int64) {
	if p.Paced != 0 {
		delay := int64(c.Word[0]) - saved - since
		c.Word, c.Stamp, c.Queue = [2]uint64{uint64(now + max(delay, 0))}, 0, [3]uint64{}
		return
	}
	state := engine.LevelsAt(&bpf.ShaperState{Word: c.Word, Stamp: c.Stamp}, &p.Profile,
		uint64(saved+since)).State(uint64(now), &p.Profile)
	c.Word, c.Stamp = state.Word, state.Stamp
}
