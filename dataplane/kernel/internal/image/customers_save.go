package image

import (
	"encoding/binary"
	"errors"
	"os"
	"strings"
	"time"

	"github.com/a-seed-32e5a53f/shaper/bpf"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/engine"
)

// savedHeader begins saved customers. Behind it are the plans and the customers.
type savedHeader struct {
	Boot             [36]byte // ID of the boot
	Monotonic, Wall  int64    // time of saving, ns
	Plans, Customers uint32   // numbers
	PlanSize         uint32   // bytes, by which other layouts are recognized
}

// savedCustomer is the state of a customer who sent or received packets.
type savedCustomer struct {
	ID    uint64
	Plan  uint32
	Word  [2]uint64
	Stamp uint64
	Queue [3]uint64
}

// bootID returns the ID that the kernel made at its start.
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
	return t.save(boot, engine.Now(), time.Now().UnixNano())
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
func (t *CustomerTable) save(boot [36]byte, monotonic, wall int64) ([]byte, error) {
	list := make([]savedCustomer, 0, len(t.Numbers))
	var plans []bpf.ShaperPlan
	index := map[uint32]uint32{}
	for i := range t.customers {
		c := &t.customers[i]
		if c.Id == 0 || c.Stamp == engine.NotBegun {
			continue
		}
		at, known := index[c.Plan]
		if !known {
			at = uint32(len(plans))
			index[c.Plan] = at
			plans = append(plans, t.plans[c.Plan])
		}
		list = append(list, savedCustomer{c.Id, at, c.Word, c.Stamp, c.Queue})
	}
	head := savedHeader{
		boot, monotonic, wall, uint32(len(plans)), uint32(len(list)), uint32(binary.Size(bpf.ShaperPlan{})),
	}
	var b []byte
	for _, part := range []any{head, plans, list} {
		var err error
		if b, err = binary.Append(b, binary.LittleEndian, part); err != nil {
			return nil, err
		}
	}
	return b, nil
}

// errSaved means that saved customers cannot be used.
var errSaved = errors.New("saved customers: written by another version, or damaged")

// restoreCustomers decodes saved customers, as of a time. Their counters are 0.
func restoreCustomers(b []byte, boot [36]byte, monotonic, wall int64) (*CustomerTable, error) {
	var head savedHeader
	n, err := binary.Decode(b, binary.LittleEndian, &head)
	if err != nil || head.PlanSize != uint32(binary.Size(bpf.ShaperPlan{})) {
		return nil, errSaved
	}
	body := b[n:]
	if uint64(len(body)) != uint64(head.Plans)*uint64(head.PlanSize)+
		uint64(head.Customers)*uint64(binary.Size(savedCustomer{})) {
		return nil, errSaved
	}
	plans, list := make([]bpf.ShaperPlan, head.Plans), make([]savedCustomer, head.Customers)
	if n, err = binary.Decode(body, binary.LittleEndian, plans); err == nil {
		_, err = binary.Decode(body[n:], binary.LittleEndian, list)
	}
	if err != nil {
		return nil, errSaved
	}
	customers := make([]bpf.ShaperCustomer, len(list))
	for i := range list {
		c := &list[i]
		if c.Plan >= head.Plans || c.ID == 0 {
			return nil, errSaved
		}
		if head.Boot != boot {
			c.age(&plans[c.Plan], head.Monotonic, max(wall-head.Wall, 0), monotonic)
		}
		customers[i] = bpf.ShaperCustomer{
			Id: c.ID, Plan: c.Plan, Word: c.Word, Stamp: c.Stamp, Queue: c.Queue,
		}
	}
	t := newCustomerTable(customers)
	t.plans = plans
	return t, nil
}

// age moves the state to the clock of another boot: it was saved at a time of the previous
// clock, some ns before now.
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
