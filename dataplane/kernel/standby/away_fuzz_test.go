package standby

import (
	"testing"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

// FuzzParseAway reads marks of processes that wait. Accepted ones can be printed and used.
func FuzzParseAway(f *testing.F) {
	f.Add([]byte(`{"Interface":"v0","Direction":1,"Process":5}`))
	f.Add([]byte("null"))
	f.Fuzz(func(t *testing.T, text []byte) {
		if e := parseAway(text); e != nil && (e.Error() == "" || e.Direction > dataplane.Ingress) {
			t.Errorf("mark %+v", e)
		}
	})
}
