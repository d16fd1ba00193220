package decisions

import (
	"encoding/csv"
	"encoding/json"
	"errors"
	"io"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
)

// TestNoFormulas checks that no class name in CSV looks like a formula to a spreadsheet, and
// that names in JSON, numbers, and the class - are unchanged.
func TestNoFormulas(t *testing.T) {
	names := []string{
		`=cmd|'/C calc'!A0`, "+1+1", "-2", "@SUM(A1,A2)", `=HYPERLINK("x"), "y"`, "plain", "a=b", "'quoted'",
	}
	cells := []string{
		`'=cmd|'/C calc'!A0`, "'+1+1", "'-2", "'@SUM(A1,A2)", `'=HYPERLINK("x"), "y"`, "plain", "a=b",
		"'quoted'",
	}
	plan := &compiled.Plan{}
	for _, name := range names {
		plan.Classes = append(plan.Classes, compiled.Class{Name: name, Stage: -1})
	}
	rows := func(asJSON bool) string {
		var out strings.Builder
		d := New(&out, plan, asJSON)
		for class := range int32(len(names)) {
			if err := d.Packet(&dataplane.Packet{Time: -5},
				&dataplane.Verdict{ID: int64(class) + 1, Class: class}); err != nil {
				t.Fatal(err)
			}
		}
		if err := d.Packet(&dataplane.Packet{Time: -5}, &dataplane.Verdict{ID: 99, Class: -1}); err != nil {
			t.Fatal(err)
		}
		if err := d.Flush(); err != nil {
			t.Fatal(err)
		}
		return out.String()
	}
	table, err := csv.NewReader(strings.NewReader(rows(false))).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	for i, row := range table[1:] {
		if want := append(cells, "-")[i]; row[3] != want || row[1] != "-5" {
			t.Errorf("row %d: got %q, want class %q and time -5", i+1, row, want)
		}
	}
	for i, line := range strings.Split(strings.TrimSpace(rows(true)), "\n") {
		var row struct{ Class string }
		if err := json.Unmarshal([]byte(line), &row); err != nil {
			t.Fatal(err)
		}
		if want := append(names, "-")[i]; row.Class != want {
			t.Errorf("%s: class %q, want %q", line, row.Class, want)
		}
	}
}

// TestPendingRowsAreBounded checks that the number of rows that wait for the row of a queued
// packet is bounded.
func TestPendingRowsAreBounded(t *testing.T) {
	var out strings.Builder
	d := New(&out, &compiled.Plan{Classes: []compiled.Class{{Name: "all", Stage: -1}}}, false)
	d.maxPending = 100
	packet := func(id int64, done dataplane.Done) error {
		return d.Packet(&dataplane.Packet{Time: 0}, &dataplane.Verdict{ID: id, Done: done})
	}
	for id := range int64(100) {
		if err := packet(id+7, dataplane.Waiting|dataplane.Queued); err != nil {
			t.Fatal(err)
		}
	}
	if err := d.Settled(&dataplane.Verdict{ID: 7, Done: dataplane.Queued}); err != nil {
		t.Fatal(err)
	}
	if err := packet(107, 0); err != nil { // in place of packet 7
		t.Fatal(err)
	}
	err := packet(108, 0)
	if err == nil || !strings.Contains(err.Error(), "100 more packets") ||
		!strings.Contains(err.Error(), "packet 8 ") {
		t.Errorf("got %v, want an error that names the packet that delays the rows", err)
	}
}

// TestRowsAllocateNothing writes rows of packets that are decided at once, and of packets
// that are decided later, out of order.
func TestRowsAllocateNothing(t *testing.T) {
	for _, asJSON := range []bool{false, true} {
		d := New(io.Discard, &compiled.Plan{Classes: []compiled.Class{{Name: "all", Stage: -1}}}, asJSON)
		id := int64(0)
		check := func(err error) {
			if err != nil {
				t.Fatal(err)
			}
		}
		pass := func() {
			id++
			check(d.Packet(&dataplane.Packet{Time: id},
				&dataplane.Verdict{ID: id, Done: dataplane.Pass | dataplane.Marked, HasDSCP: true}))
		}
		const backlog = 100
		wait := func() {
			id++
			check(d.Packet(&dataplane.Packet{Time: id},
				&dataplane.Verdict{ID: id, Done: dataplane.Queued | dataplane.Waiting}))
			if id%2 == 0 && id > backlog {
				check(d.Settled(&dataplane.Verdict{ID: id - backlog, Done: dataplane.Queued}))
				check(d.Settled(&dataplane.Verdict{ID: id - backlog - 1}))
			}
		}
		for name, row := range map[string]func(){"decided": pass, "queued": wait} {
			d.pending, id = nil, 0
			for range 10 * backlog {
				row()
			}
			// AllocsPerRun rounds down, so one run writes many rows.
			if n := testing.AllocsPerRun(3, func() {
				for range 100 * backlog {
					row()
				}
			}); n > 0 {
				t.Errorf("JSON %v, %s: got %v allocations for %d rows, want 0", asJSON, name, n, 100*backlog)
			}
		}
	}
}

// TestEachFieldAlone checks that any single field of a verdict changes its row. Rows do not contain the
// clock of the meters, the segments and the lacked tokens.
func TestEachFieldAlone(t *testing.T) {
	t.Parallel()
	plan := &compiled.Plan{
		Classes: []compiled.Class{{Name: "a", Stage: -1}, {Name: "b", Stage: -1}},
		Customers: &compiled.Customers{
			Source: &dataplane.Customers{List: []dataplane.Customer{{Name: "alice"}, {Name: "bob"}}},
		},
	}
	base := dataplane.Verdict{Done: dataplane.Pass | dataplane.Queued, HasDSCP: true}
	row := func(v dataplane.Verdict, asJSON bool) string {
		var out strings.Builder
		d := New(&out, plan, asJSON)
		if err := errors.Join(d.Packet(&dataplane.Packet{}, &v), d.Flush()); err != nil {
			t.Fatal(err)
		}
		return out.String()
	}
	absent := []string{"Now", "Packets", "Stage", "Lack"}
	for i := range reflect.TypeFor[dataplane.Verdict]().NumField() {
		v := base
		name, field := reflect.TypeFor[dataplane.Verdict]().Field(i).Name, reflect.ValueOf(&v).Elem().Field(i)
		switch {
		case slices.Contains(absent, name):
			continue
		case field.Kind() == reflect.Bool:
			field.SetBool(!field.Bool())
		case field.CanInt():
			field.SetInt(field.Int() + 1)
		default:
			field.SetUint(field.Uint() ^ 2)
		}
		for _, asJSON := range []bool{false, true} {
			if row(v, asJSON) == row(base, asJSON) {
				t.Errorf("%s: no effect, JSON %t", name, asJSON)
			}
		}
	}
}
