package compiled_test

import (
	"math"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/dataplane/internal/frametest"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// TestEnvelopesWithoutEffect checks that errors in an envelope without flows are found, and a unit without
// limits is refused.
func TestEnvelopesWithoutEffect(t *testing.T) {
	t.Parallel()
	flow := func(e *dataplane.Envelope) dataplane.Class {
		return dataplane.Class{Name: "a", Meter: &dataplane.Meter{
			Name: "a", Envelope: e, Rank: 1, Packets: e.Packets,
			Params: meter.TRTCM4115{CIR: frametest.Mega, CBS: 1000, EIR: frametest.Mega, EBS: 1000},
		}}
	}
	limit := func(r meter.Rate) *dataplane.Envelope { return &dataplane.Envelope{Name: "e", CIRMax: r} }
	packets := limit(frametest.Mega)
	packets.Packets = true
	unit := &dataplane.Envelope{Name: "e", Packets: true}
	for name, tt := range map[string]struct {
		envelope *dataplane.Envelope
		class    dataplane.Class
		field    string // of the only error; "" for none
	}{
		"no flows":                      {limit(frametest.Mega), dataplane.Class{Name: "a"}, ""},
		"no flows, no limits":           {limit(meter.Rate{}), dataplane.Class{Name: "a"}, ""},
		"no flows, a negative rate":     {limit(meter.Rate{Bytes: -1, Period: time.Second}), dataplane.Class{Name: "a"}, "cirmax"},
		"no flows, a rate without time": {limit(meter.Rate{Bytes: 1}), dataplane.Class{Name: "a"}, "cirmax"},
		"no flows, a rate too fast": {
			limit(meter.Rate{Bytes: math.MaxInt64, Period: 1}), dataplane.Class{Name: "a"}, "cirmax",
		},
		"limits in packets":     {packets, flow(packets), ""},
		"packets, no limits":    {unit, flow(unit), "packets"},
		"packets without flows": {unit, dataplane.Class{Name: "a"}, "packets"},
	} {
		_, err := compiled.Compile(&dataplane.Policy{
			Classes: []dataplane.Class{tt.class}, Envelopes: []*dataplane.Envelope{tt.envelope},
		})
		if tt.field == "" {
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		if err == nil {
			t.Errorf("%s: no error, want one of %q", name, tt.field)
			continue
		}
		errs := frametest.FieldErrors(t, err)
		if len(errs) != 1 || errs[0].Object != tt.envelope || errs[0].Field != tt.field {
			t.Errorf("%s: got %v, want an error of %q", name, err, tt.field)
		}
	}
}
