package image

import (
	"errors"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/bpf"
)

// FuzzRestoreCustomers restores saved customers, on the same boot and on another one. Each accepted
// customer has an ID and an existing plan.
func FuzzRestoreCustomers(f *testing.F) {
	table := CustomerTable{plans: savePlans(f)}
	for plan := range table.plans {
		table.customers = append(table.customers,
			bpf.ShaperCustomer{Id: uint64(plan + 1), Plan: uint32(plan), Word: [2]uint64{3e9, 5}, Stamp: 7})
	}
	saved := table.save([36]byte{}, 4e9, 6e18)
	f.Add(saved, int64(5e9), int64(7e18))
	f.Fuzz(func(t *testing.T, b []byte, monotonic, wall int64) {
		for _, boot := range [][36]byte{{}, {1}} {
			c, err := restoreCustomers(b, boot, monotonic, wall)
			if err != nil {
				if !errors.Is(err, errSaved) {
					t.Errorf("got %v", err)
				}
				continue
			}
			for i := range c.customers {
				if int(c.customers[i].Plan) >= len(c.plans) || c.customers[i].Id == 0 {
					t.Errorf("customer %d: %+v of %d plans", i, c.customers[i], len(c.plans))
				}
			}
		}
	})
}
