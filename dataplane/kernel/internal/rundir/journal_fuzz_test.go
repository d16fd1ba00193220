package rundir

import (
	"encoding/json"
	"testing"
)

// FuzzParseJournal reads journals. An accepted journal is the same after it is written and read
// again.
func FuzzParseJournal(f *testing.F) {
	f.Add([]byte(`{"Version":1,"Qdiscs":{"Before":[{"Kind":"htb","Handle":1}]},"GSO":{"Max":65536,"Limits":[1,2]},"Clsact":true}`))
	f.Add([]byte("null"))
	f.Fuzz(func(t *testing.T, text []byte) {
		j, err := parseJournal(text)
		if err != nil {
			return
		}
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
			j.GSO.SmallestLimit()
		}
	})
}
