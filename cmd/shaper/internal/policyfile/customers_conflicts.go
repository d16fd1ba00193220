package policyfile

import (
	"cmp"
	"errors"
	"fmt"
	"sort"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
)

// rowError is an error of dataplane in the file of customers.
type rowError struct {
	*dataplane.FieldError
	advice string
	line   int
}

// conflicts adds the errors between rows, such as an address of two customers, to those of single rows, so
// that one reading finds all of them. A row keeps its valid cells: without a name or a plan that is an
// error already.
func (l *loader) conflicts() {
	_, err := compiled.Compile(l.file.Policy)
	if err == nil {
		return
	}
	var found []rowError
	for _, err := range unjoin(err) {
		var e *dataplane.FieldError
		if !errors.As(err, &e) {
			continue
		}
		if e.Object == any(l.file.Policy.Customers) {
			l.failAt(l.place(e.Object, e.Field), "%s %s", e.Field, e.Reason)
		}
		c, ok := e.Object.(*dataplane.Customer)
		if ok && (c.Plan != nil || e.Field != "plan") && (c.Name != "" || e.Field != "customer") {
			found = append(found, rowError{FieldError: e})
		}
	}
	l.addConflicts(&l.rows.faults, found)
}

// addConflicts adds errors of dataplane to those of rows, with the lines of both customers of a conflict.
func (l *loader) addConflicts(to *faults, list []rowError) {
	lines := map[any]int{}
	for _, e := range list {
		lines[l.original(e.Object)] = 0
		if e.Other != nil {
			lines[l.original(e.Other)] = 0
		}
	}
	l.rows.findLines(lines)
	for i := range list {
		list[i].line = lines[l.original(list[i].Object)]
	}
	sort.SliceStable(list, func(i, j int) bool { return list[i].line < list[j].line })
	for _, e := range list {
		other := ""
		if e.Other != nil {
			other = fmt.Sprintf(" (line %d)", lines[l.original(e.Other)])
		}
		to.add(e.line, e.Field+" "+e.Phrase(other)+e.advice)
	}
}

// findLines sets the lines of customers, and the first line of plans with parameters of a customer's own.
func (r *rows) findLines(lines map[any]int) {
	for i, line := range r.lines {
		c := &r.table.List[i]
		if _, wanted := lines[c]; wanted {
			lines[c] = int(line)
		}
		if at, wanted := lines[c.Plan]; wanted && at == 0 {
			lines[c.Plan] = int(line)
		}
	}
}

// rowPlace returns the place of a customer, or of the first customer with a plan of its own.
func (l *loader) rowPlace(object any) position {
	lines := map[any]int{object: 0}
	l.rows.findLines(lines)
	return position{line: cmp.Or(lines[object], l.rows.header)}
}
