package policyfile

import (
	"fmt"
	"slices"
	"strings"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/spelling"
)

// readHeader reads the names of the columns. It returns false if no cell of the rows can be checked.
func (r *rowReader) readHeader() bool {
	r.header, r.columns = r.csv.line, len(r.csv.cells)
	if slices.ContainsFunc(r.csv.cells, func(cell string) bool { return strings.Contains(cell, "\r") }) {
		r.fail("a carriage return inside a line: end lines with a line feed, or with both")
		return false
	}
	all, need := contents(r.table.Key, r.form.plan)
	var found map[string][]int // columns by content
	if r.form.named != nil {
		found = r.namedColumns()
	} else {
		found = r.columnsOf(all)
		if !r.checkMissing(found, all[:need]) {
			return false
		}
	}
	for _, name := range ownNames {
		if list := found[name]; list != nil {
			r.ownNames, r.ownAt = append(r.ownNames, name), append(r.ownAt, list[0])
		}
	}
	r.ownCells = make([]string, len(r.ownNames))
	r.checkDirections()
	only := func(name string) int {
		if list := found[name]; list != nil {
			return list[0]
		}
		return -1
	}
	r.customer, r.plan, r.quota = only("customer"), only("plan"), only("quota")
	r.address, r.vlan, r.svlan, r.cvlan = found["address"], found["vlan"], only("svlan"), only("cvlan")
	r.mac, r.vni, r.teid = found["mac"], found["vni"], found["teid"]
	r.mark, r.cgroup = found["mark"], found["cgroup"]
	if r.namesOnly {
		r.address, r.vlan, r.svlan, r.cvlan = nil, nil, -1, -1
		r.mac, r.vni, r.teid, r.mark, r.cgroup = nil, nil, nil, nil, nil
	}
	return slices.ContainsFunc(all[:need], func(name string) bool { return found[name] != nil })
}

// columnsOf finds the columns with the names of their contents, and keeps the others as ignored.
func (r *rowReader) columnsOf(all []string) map[string][]int {
	found := map[string][]int{}
	for i, cell := range r.csv.cells {
		name := contentOf(strings.ToLower(cell))
		switch {
		case !slices.Contains(all, name):
			if cell != "" { // spreadsheets export empty columns
				r.ignored = append(r.ignored, strings.Clone(cell))
			}
		case found[name] != nil:
			r.fail("duplicate column %q", cell)
		default:
			found[name] = []int{i}
		}
	}
	return found
}

// checkMissing refuses a file without a column that it must have. It returns false if the separator may be
// another one.
func (r *rowReader) checkMissing(found map[string][]int, need []string) bool {
	other := func(cell string) bool { return strings.ContainsAny(cell, ";\t") }
	for _, name := range need {
		switch {
		case found[name] != nil:
		case r.csv.comma == ',' && slices.ContainsFunc(r.csv.cells, other):
			r.fail(
				"the first line has a comma, so commas are the separators: put cells with a comma in quotes")
			return false
		default:
			near := spelling.Nearest(name, r.ignored)
			if near != "" {
				near = fmt.Sprintf(" (is it %q?)", near)
			}
			r.fail("column %s is missing%s: the first line must name the columns %s; columns: in the policy maps other names",
				name, near, strings.Join(need, ", "))
		}
	}
	return true
}

// namedColumns finds the columns that the policy names. It ignores all others.
func (r *rowReader) namedColumns() map[string][]int {
	found := map[string][]int{}
	for _, c := range r.form.named {
		for _, name := range c.names {
			before := len(found[c.content])
			for i, cell := range r.csv.cells {
				if strings.EqualFold(cell, name) {
					found[c.content] = append(found[c.content], i)
				}
			}
			switch len(found[c.content]) - before {
			case 0:
				r.fail("no column %q for %s%s: the first line names %s", name, c.content,
					r.own.didYouMean("column", name, func() []string { return r.csv.cells }), r.headerText())
			case 1:
			default:
				r.fail("duplicate column %q", name)
			}
		}
	}
	return found
}

// headerText returns the names of the first line.
func (r *rowReader) headerText() string {
	var b strings.Builder
	for _, cell := range r.csv.cells {
		switch {
		case cell == "":
			continue
		case b.Len()+len(cell) > mostNames:
			return b.String() + " and others"
		case b.Len() > 0:
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, "%q", cell)
	}
	return b.String()
}

// checkDirections refuses columns of rates for one direction without those for the other, and with those
// for both. A policy may name the column of one direction: the other one has the rate of the plan. If it
// names columns, its unit needs one of rates.
func (r *rowReader) checkDirections() {
	has := func(column string) bool { return slices.Contains(r.ownNames, column) }
	for _, name := range []string{"rate", "guarantee"} {
		down, up := downOf[name], upOf[name]
		switch {
		case has(down) != has(up) && r.form.named == nil:
			r.fail("columns %s and %s go together: add the other one", down, up)
		case (has(down) || has(up)) && has(name):
			r.fail("column %s is for both directions, and columns %s and %s for one each: remove one or the other",
				name, down, up)
		}
	}
	if r.form.named != nil && r.form.unit.bare != "" && !slices.ContainsFunc(rateNames, has) {
		r.fail("unit is for columns of rates, such as rate, and columns: names none: name one, or remove unit")
	}
}
