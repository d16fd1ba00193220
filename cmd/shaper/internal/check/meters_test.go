package check

import (
	"bytes"
	"encoding/json"
	"slices"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// leaves returns the JSON text of all numbers and flags in the description of a meter.
func leaves(t *testing.T, p meter.Params) (all []string) {
	var text bytes.Buffer
	if err := say.WriteJSON(&text, meterJSON(&dataplane.Meter{Name: "m", Params: p})); err != nil {
		t.Fatal(err)
	}
	var value any
	d := json.NewDecoder(&text)
	d.UseNumber()
	if err := d.Decode(&value); err != nil {
		t.Fatal(err)
	}
	var walk func(any)
	walk = func(v any) {
		switch v := v.(type) {
		case map[string]any:
			for _, part := range v {
				walk(part)
			}
		case []any:
			for _, part := range v {
				walk(part)
			}
		case json.Number:
			all = append(all, v.String())
		case bool:
			if v {
				all = append(all, "true")
			}
		}
	}
	walk(value)
	return all
}

// TestCheckMeterParameters checks that the JSON contains each parameter of each kind, set alone.
func TestCheckMeterParameters(t *testing.T) {
	const period, number = 123456789 * time.Nanosecond, 7654321
	for _, kind := range meter.Kinds() {
		info := kind.Info()
		for _, name := range slices.Concat(info.Required, info.Optional) {
			var value any
			want := []string{"7654321"}
			switch meter.Field(info.Defaults, name).(type) {
			case meter.Rate:
				value, want = meter.Rate{Bytes: number, Period: period}, append(want, "123456789")
			case time.Duration:
				value, want = period, []string{"123456789"}
			case int64:
				value = int64(number)
			case int:
				value = int(number)
			case uint64:
				value = uint64(number)
			case bool:
				value, want = true, []string{"true"}
			}
			got := leaves(t, meter.WithField(info.Defaults, name, value))
			for _, w := range want {
				if !slices.Contains(got, w) {
					t.Errorf("%v %s=%v: JSON has the values %v, want %s", kind, name, value, got, w)
				}
			}
		}
	}
}

// offsetWindow is a limit with parameters that the table of kinds does not list.
type offsetWindow struct {
	meter.FixedWindow
	Offset time.Duration
	Phase  int
	Start  meter.Rate
	Share  float64
}

// TestCheckNewParameter checks that a new parameter is printed, or panics if its type has no unit.
func TestCheckNewParameter(t *testing.T) {
	p := offsetWindow{Offset: time.Millisecond, Phase: 3, Start: meter.Rate{Bytes: 5, Period: time.Second}}
	want := []parameterJSON{
		{"offset_ns", int64(1e6)},
		{"phase", 3},
		{"start_amount", int64(5)},
		{"start_period_ns", int64(1e9)},
	}
	got := parametersJSON(p, []string{"limit", "offset", "phase", "start", "share"}) // no share: nothing to print
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	defer func() {
		if recover() == nil {
			t.Error("no panic for a parameter without a unit")
		}
	}()
	p.Share = 0.5
	parametersJSON(p, []string{"share"})
}
