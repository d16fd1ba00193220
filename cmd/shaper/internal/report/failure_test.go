package report

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/chrome"
)

// TestNoNull checks that the data of a script has no null, whatever lists are nil: with one element in
// each list down to a depth, and nil below.
func TestNoNull(t *testing.T) {
	for _, series := range []any{&series{}, &comparisonSeries{}} {
		for depth := range 6 {
			v := reflect.ValueOf(series).Elem()
			lengthen(t, v, depth)
			fill(v)
			text, err := json.Marshal(series)
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(string(text), "null") {
				t.Errorf("lists of one element down to depth %d: %s", depth, text)
			}
		}
	}
}

// lengthen gives the lists in v one element, down to a depth. It fails for types of which fill knows
// nothing.
func lengthen(t *testing.T, v reflect.Value, depth int) {
	switch v.Kind() {
	case reflect.Slice:
		if depth == 0 {
			return
		}
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		lengthen(t, v.Index(0), depth-1)
	case reflect.Struct:
		for i := range v.NumField() {
			lengthen(t, v.Field(i), depth)
		}
	case reflect.Array:
		for i := range v.Len() {
			lengthen(t, v.Index(i), depth)
		}
	case reflect.String, reflect.Int, reflect.Int32, reflect.Int64, reflect.Float64:
	default:
		t.Fatalf("%s can be null in JSON", v.Type())
	}
}

// TestFailure damages the data of a page. A sentence says that a script failed, and those charts
// are drawn that do not need the data.
func TestFailure(t *testing.T) {
	b := chrome.Open(t)
	texts := func(selector, property string) []string {
		t.Helper()
		return chrome.Evaluate[[]string](t, b,
			fmt.Sprintf(`[...document.querySelectorAll(%q)].map((e) => e.%s)`, selector, property))
	}
	b.Width(t, 1000)
	d := burstSample(0)
	d.Queues = []QueueSeries{{Name: "q", Delay: d.Offered[0], Waiting: d.Offered[0]}}
	whole := write(t, d)
	for _, tt := range []struct {
		name, damage string
		blank        []string
	}{
		{"nothing", `"none":`, nil},
		{"a meter", `"lowest":`, []string{"meter"}},
		{"a queue", `"delay":`, []string{"delay"}},
		{"everything", `"offered":`, []string{"offered", "passed", "class", "class", "meter", "delay", "waiting"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b.Load(t, "damaged.html", strings.ReplaceAll(whole, tt.damage, tt.damage+`null,"old":`))
			if got := texts("figure:not(:has(canvas))", "dataset.chart"); !slices.Equal(got, tt.blank) {
				t.Errorf("without a chart: %q, want %q", got, tt.blank)
			}
			want := []string{}
			if len(tt.blank) > 0 {
				want = append(want, "A script of this page failed")
			}
			for range tt.blank {
				want = append(want, "This chart could not be drawn.")
			}
			if said := texts(".failed", "innerText"); !slices.EqualFunc(said, want, strings.HasPrefix) {
				t.Errorf("the page says %q, want %q", said, want)
			}
			checkFits(t, b)
			b.Shot(t, "failure-"+strings.ReplaceAll(tt.name, " ", "-"))
		})
	}
}
