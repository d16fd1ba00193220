package stats

import (
	"testing"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/live"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
)

// TestMetersOf checks that a per-key meter has no tokens, because each key has its own.
func TestMetersOf(t *testing.T) {
	f, err := policyfile.Load("p.yaml", []byte(`classes:
  - {name: a, meter: {type: gcra, rate: 1mbit, burst: 2kB, per: src/24, then: sum}}
meters: {sum: {type: tswtcm, cir: 1mbit, pir: 2mbit, window: 1s, color: aware, then: last}, last: {type: fixed-window, limit: 7, window: 1s, color: aware}}
`))
	if err != nil {
		t.Fatal(err)
	}
	plan, err := f.Compile()
	if err != nil {
		t.Fatal(err)
	}
	got := metersOf(plan.Outline(), 0, &live.Sample{Tokens: [][2]int64{{1, 0}, {2, 3}, {4, 0}}})
	if m := got[0]; m.Per != "src/24" || m.Buckets == nil || len(m.Buckets) != 0 {
		t.Errorf("%+v", m)
	}
	if b := got[1].Buckets; got[1].Per != "" || len(b) != 2 ||
		b[0] != (BucketStats{"below CIR", 2, 125000}) || b[1] != (BucketStats{"below PIR", 3, 250000}) {
		t.Errorf("%+v", got[1])
	}
	if b := got[2].Buckets; len(b) != 1 || b[0] != (BucketStats{"left", 4, 7}) {
		t.Errorf("%+v", got[2])
	}
}
