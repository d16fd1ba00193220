package kernel

import (
	"encoding/json"
	"errors"
	"reflect"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/bpf"
)

// FuzzRestoreCustomers restores customers of the same and of another boot. What is accepted refers to plans
// that exist.
func FuzzRestoreCustomers(f *testing.F) {
	table := customerTable{plans: savePlans(f)}
	for plan := range table.plans {
		table.customers = append(table.customers, bpf.ShaperCustomer{Id: uint64(plan + 1), Plan: uint32(plan), Word: [2]uint64{3e9, 5}, Stamp: 7})
	}
	saved, err := table.save([36]byte{}, 4e9, 6e18)
	if err != nil {
		f.Fatal(err)
	}
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

// FuzzParseRecord reads records of shapers. Accepted records can be printed and used.
func FuzzParseRecord(f *testing.F) {
	f.Add([]byte(`{"Version":7,"Interface":"v0","Direction":1,"Outline":{"Classes":[{"Name":"a"}]},"Slots":[1]}`))
	for version := range recordVersion + 1 {
		text, _ := json.Marshal(About{Version: version, Interface: "v0"})
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		a, err := parseRecord(text)
		if a == nil || err != nil && !isUnusable(err) {
			t.Fatalf("got %v, %v", a, err)
		}
		if err == nil && (!a.Outline.Valid() || len(a.Slots) != len(a.Outline.Classes)) {
			t.Errorf("accepted %+v", a)
		}
	})
}

// FuzzStateFiles reads journals, marks and registries of budgets. What is accepted is the same after it was
// written again.
func FuzzStateFiles(f *testing.F) {
	f.Add([]byte(`{"Version":1,"Qdiscs":{"Before":[{"Kind":"htb","Handle":1}]},"GSO":{"Max":65536,"Limits":[1,2]},"Clsact":true}`))
	f.Add([]byte(`{"Interface":"v0","Direction":1,"Process":5}`))
	f.Add([]byte(`{"Version":1,"Maps":[1,2],"Budgets":[{"Name":"a","Slot":1,"Users":[{"File":"x"}]},null,{"Name":"b"}]}`))
	f.Add([]byte("null"))
	f.Fuzz(func(t *testing.T, text []byte) {
		if j, err := parseJournal(text); err == nil {
			j.written = nil
			again, _ := json.Marshal(j)
			same, err := parseJournal(again)
			if err != nil {
				t.Fatal(err)
			}
			if once, _ := json.Marshal(same); string(once) != string(again) {
				t.Errorf("journal %s, again %s", again, once)
			}
			if j.GSO != nil {
				j.GSO.smallestLimit()
			}
		}
		if e := parseAway(text); e != nil && (e.Error() == "" || e.Direction > Ingress) {
			t.Errorf("mark %+v", e)
		}
		r, err := parseRegistry(text)
		for _, b := range r.Budgets {
			for i := range b.Users {
				_, _ = b.Users[i].String(), b.leftover(&b.Users[i])
			}
		}
		if err == nil && len(r.Budgets) > 0 {
			_ = r.Budgets[0].Users[0].String() // in errors
		}
		again, _ := json.Marshal(r)
		if same, err := parseRegistry(again); err != nil || len(same.Budgets) != len(r.Budgets) || !reflect.DeepEqual(same.Maps, r.Maps) {
			t.Errorf("registry %s: %v", again, err)
		}
	})
}
