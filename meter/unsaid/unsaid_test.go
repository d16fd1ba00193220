package unsaid

import (
	"slices"
	"testing"
)

type inner struct{ Rate, Limit int }

type part struct {
	Name string
	inner
	Inner
	List  []int
	Table map[int]int
	Next  *part
	Rule  any
	Pair  [2]bool
	own   int
}

// Inner is embedded in part.
type Inner struct{ Seed int }

func TestFields(t *testing.T) {
	for _, c := range []struct {
		part      any
		expressed []string
		want      []string
	}{
		{part{}, nil, nil},
		{&part{Name: "a", own: 1}, nil, []string{"Name"}},
		{part{Name: "a"}, []string{"Name"}, nil},
		{part{inner: inner{Limit: 1}, Inner: Inner{2}}, []string{"Name", "Rate"}, []string{"Limit", "Seed"}},
		{part{List: []int{}, Table: map[int]int{}}, nil, nil},
		{part{List: []int{0}, Table: map[int]int{0: 0}}, nil, []string{"List", "Table"}},
		{part{Next: &part{}, Rule: 0, Pair: [2]bool{false, true}}, []string{"List"}, []string{"Next", "Rule", "Pair"}},
	} {
		if got := Fields(c.part, c.expressed...); !slices.Equal(got, c.want) {
			t.Errorf("Fields(%+v, %q) = %q, want %q", c.part, c.expressed, got, c.want)
		}
	}
}

// TestUnknownName checks that a list cannot keep the name of a field that is gone.
func TestUnknownName(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("no panic for a name that is no field")
		}
	}()
	Fields(part{}, "Gone")
}
