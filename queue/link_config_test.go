package queue

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/meter"
)

func TestLinkErrors(t *testing.T) {
	ok := meter.BitRate(8e6)
	limited := Config{Packets: 1}
	for _, test := range []struct {
		rate   meter.Rate
		share  LinkQueue
		fields []string
	}{
		{ok, LinkQueue{limited, 0, 1, FairNone}, nil},
		{ok, LinkQueue{limited, MaxPriority, MaxWeight, FairNone}, nil},
		{ok, LinkQueue{limited, -1, 1, FairNone}, []string{"priority"}},
		{ok, LinkQueue{limited, MaxPriority + 1, 1, FairNone}, []string{"priority"}},
		{ok, LinkQueue{limited, 0, 0, FairNone}, []string{"weight"}},
		{ok, LinkQueue{limited, 0, MaxWeight + 1, FairNone}, []string{"weight"}},
		{ok, LinkQueue{Config{Packets: 1, Rate: ok}, 0, 1, FairNone}, []string{"rate"}},
		{ok, LinkQueue{Config{}, 0, 1, FairNone}, []string{"limit"}},
		{ok, LinkQueue{Config{Time: 999}, 0, 1, FairNone}, []string{"limit"}}, // less than a byte
		{ok, LinkQueue{Config{Time: 1000}, 0, 1, FairNone}, nil},
		{ok, LinkQueue{Config{Time: math.MaxInt64}, 0, 1, FairNone}, nil},
		{ok, LinkQueue{Config{Time: 1000, WRED: [3]Early{{0, 999, 1}}}, 0, 1, FairNone}, []string{"wred"}}, // likewise
		{ok, LinkQueue{Config{Time: 1000, WRED: [3]Early{{0, 1000, 1}}}, 0, 1, FairNone}, nil},
		{meter.Rate{}, LinkQueue{limited, 0, 1, FairNone}, []string{"rate"}},
		{meter.Rate{Bytes: math.MaxInt64, Period: 1}, LinkQueue{limited, 0, 1, FairNone}, []string{"rate"}},
		{ok, LinkQueue{Config{Packets: -1, Rate: ok, CoDel: CoDel{Target: 1}, WRED: [3]Early{{2, 1, 0}}}, 9, 0, FairNone}, []string{"limit", "wred", "codel", "rate", "priority", "weight"}},
	} {
		_, err := NewLink[int](test.rate, []LinkQueue{test.share})
		if got := fields(t, err); !slices.Equal(got, test.fields) {
			t.Errorf("%+v on %v: %v: fields %q, want %q", test.share, test.rate, err, got, test.fields)
		}
	}
	_, err := NewLink[int](ok,
		[]LinkQueue{{}, {Config: limited, Weight: 1}, {Config: limited, Priority: 8, Weight: 1}})
	if got := fields(t, err); !slices.Equal(got, []string{"limit", "weight", "priority"}) {
		t.Errorf("got %v, want errors of limit, weight and priority", err)
	}
}

// TestResolve checks the conversion of times to bytes.
func TestResolve(t *testing.T) {
	wred := [3]Early{meter.Yellow: {1500, 2999, 7}}
	for _, test := range []struct {
		in, want Config
	}{
		{Config{Packets: 5, WRED: wred}, Config{Packets: 5, WRED: wred}},
		{Config{Bytes: 3000, WRED: wred}, Config{Bytes: 3000, WRED: wred}},
		{Config{Time: 3999, WRED: wred}, Config{Bytes: 3, WRED: [3]Early{meter.Yellow: {1, 2, 7}}}},
		{Config{Time: 3000, Bytes: 2, Packets: 1}, Config{Bytes: 2, Packets: 1}},
		{Config{Time: 3000, Bytes: 4}, Config{Bytes: 3}},
		{Config{Time: math.MaxInt64}, Config{Bytes: 1<<39 - 1}},
		{Config{Time: (1<<39 - 2) * time.Microsecond}, Config{Bytes: 1<<39 - 2}},
		{Config{Time: (1<<39 - 1) * time.Microsecond}, Config{Bytes: 1<<39 - 1}},
		{Config{Time: 1 << 39 * time.Microsecond}, Config{Bytes: 1<<39 - 1}},
	} {
		if test.in.Packets > 0 && test.in.WRED != [3]Early{} {
			test.in.WRED[meter.Yellow] = Early{1, 5, 7}
			test.want.WRED = test.in.WRED
		}
		in := LinkQueue{test.in, 3, 4, FairNone}
		got, err := in.Resolve(meter.BitRate(8e6))
		if want := (LinkQueue{test.want, 3, 4, FairNone}); err != nil || got != want {
			t.Errorf("%+v: got %+v, want %+v: %v", in, got, want, err)
		}
	}
}
