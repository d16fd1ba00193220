package policyfile

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/customers"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

// readRecord is a record as a customer of a policy.
type readRecord struct {
	*customers.Record
	customer *dataplane.Customer // nil after an error
	cells    map[string]string   // the customer's own parameters, by name
	quota    int64               // the customer's own limit, bytes; 0: none
	err      error
}

// readRecords reads records, without those that remove customers, as rows of a file of customers.
func (l *loader) readRecords(list []*customers.Record) []readRecord {
	out := make([]readRecord, len(list))
	byColumns := map[string][]int{} // records with the same columns, by index
	var order []string
	for i, r := range list {
		out[i].Record = r
		if l.file.Policy.Customers.Key == dataplane.CustomerByCgroup {
			out[i].err = ErrCgroups
			continue
		}
		columns := "customer\x00plan\x00" + strings.Join(keyColumns(l.file.Policy.Customers.Key), "\x00")
		for _, name := range slices.Sorted(maps.Keys(r.Cells)) {
			if !strings.Contains("\x00"+columns+"\x00", "\x00"+name+"\x00") {
				columns += "\x00" + name
			}
		}
		if byColumns[columns] == nil {
			order = append(order, columns)
		}
		byColumns[columns] = append(byColumns[columns], i)
	}
	for _, columns := range order {
		l.readAlike(out, byColumns[columns], strings.Split(columns, "\x00"))
	}
	return out
}

// readAlike reads the records of some indexes, which have the same columns. If one of them has an error, it
// reads each of them alone.
func (l *loader) readAlike(out []readRecord, indexes []int, columns []string) {
	var text strings.Builder
	for i, name := range columns {
		writeCell(&text, name, i)
	}
	for _, at := range indexes {
		text.WriteByte('\n')
		writeCell(&text, out[at].Name, 0)
		for i, name := range columns[1:] {
			writeCell(&text, out[at].Cells[name], i+1)
		}
	}
	policy := l.file.Policy.Customers
	table := dataplane.Customers{Key: policy.Key, Nested: policy.Nested}
	r := l.readRows("", text.String(), &table, tableForm{onePrefix: true})
	err := r.reasons()
	if err == nil && len(table.List) != len(indexes) {
		err = errors.New("the name is not a name of a customer")
	}
	switch {
	case err != nil && len(indexes) > 1:
		for _, at := range indexes {
			l.readAlike(out, []int{at}, columns)
		}
	case err != nil:
		out[indexes[0]].err = err
	default:
		for i, at := range indexes {
			c := &table.List[i]
			if c.Name != out[at].Name {
				out[at].err = fmt.Errorf("name %q begins or ends with a blank", out[at].Name)
				continue
			}
			out[at].customer, out[at].cells = c, r.ownParameters(c.Plan)
			out[at].quota = r.quotas[c.Name]
		}
	}
}

// writeCell writes a cell of a row to a CSV text.
func writeCell(b *strings.Builder, text string, column int) {
	if column > 0 {
		b.WriteByte(',')
	}
	b.WriteByte('"')
	b.WriteString(strings.ReplaceAll(text, `"`, `""`))
	b.WriteByte('"')
}

// reasons returns the errors of rows, without their places.
func (r *rows) reasons() error {
	var out []string
	for _, c := range r.faults.causes {
		for _, f := range c.faults {
			out = append(out, f.reason)
		}
	}
	for _, name := range r.ignored {
		out = append(out, fmt.Sprintf("unknown parameter %q", name))
	}
	if len(out) == 0 {
		return nil
	}
	return errors.New(strings.Join(out, "; "))
}

// KeyCells returns the cells of a file of customers with the keys of one of these customers, by column.
func KeyCells(of *dataplane.Customers, c *dataplane.Customer) map[string]string {
	out := map[string]string{}
	columns := keyColumns(of.Key)
	switch {
	case len(columns) == 2:
		for _, id := range c.IDs { // at most one
			out[columns[0]], out[columns[1]], _ = strings.Cut(of.IDText(id), ", ")
		}
	case !of.Key.ByAddress():
		var words []string
		for _, id := range c.IDs {
			words = append(words, of.IDText(id))
		}
		out[columns[0]] = strings.Join(words, " ")
	default:
		var words []string
		for _, p := range c.Prefixes {
			if p.IsSingleIP() {
				words = append(words, p.Addr().String())
			} else {
				words = append(words, p.String())
			}
		}
		out["address"] = strings.Join(words, " ")
	}
	maps.DeleteFunc(out, func(_, cell string) bool { return cell == "" })
	return out
}
