package record

import (
	"encoding/json"
	"testing"
)

// FuzzParseRecord reads records of shapers. Accepted records can be printed and used.
func FuzzParseRecord(f *testing.F) {
	f.Add([]byte(
		`{"Version":7,"Interface":"v0","Direction":1,"Outline":{"Classes":[{"Name":"a"}]},"Slots":[1]}`))
	for version := range Version + 1 {
		text, _ := json.Marshal(About{Version: version, Interface: "v0"})
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		a, err := Parse(text)
		if a == nil || err != nil && !IsUnusable(err) {
			t.Fatalf("got %v, %v", a, err)
		}
		if err == nil && (!a.Outline.Valid() || len(a.Slots) != len(a.Outline.Classes)) {
			t.Errorf("accepted %+v", a)
		}
	})
}
