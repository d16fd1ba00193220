package registry

import (
	"encoding/json"
	"reflect"
	"testing"
)

// FuzzParseRegistry reads registries of budgets. An accepted registry is the same after it is
// written and read again.
func FuzzParseRegistry(f *testing.F) {
	f.Add([]byte(`{"Version":1,"Maps":[1,2],"Budgets":[{"Name":"a","Slot":1,"Users":[{"File":"x"}]},null,{"Name":"b"}]}`))
	f.Add([]byte("null"))
	f.Add([]byte(`{"Budgets":[{"Name":"a","Label":7,"Users":[{"Once":true}]},{"Name":"b","Label":7,"Users":[{}]}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
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
		if same, err := parseRegistry(again); err != nil || len(same.Budgets) != len(r.Budgets) ||
			!reflect.DeepEqual(same.Maps, r.Maps) {
			t.Errorf("registry %s: %v", again, err)
		}
	})
}
