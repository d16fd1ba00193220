package policyfile

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

// maxRowErrors is the maximum number of errors reported in a file of customers.
const maxRowErrors = 20

// ownNames are the columns of a customer's own parameters.
var ownNames = []string{
	"rate", "burst", "cir", "cbs", "pir", "pbs", "eir", "ebs", "limit", "window", "link", "guarantee", "weight",
	"down", "up", "down-guarantee", "up-guarantee",
}

// rows are the places and errors of a file of customers. They do not keep its text.
type rows struct {
	name    string // of the file
	table   *dataplane.Customers
	lines   []int32  // line of each customer of the table
	header  int      // line of the header
	ignored []string // ignored columns
	errs    []*Error // first maxRowErrors errors
	more    int      // number of further errors

	quotas map[string]int64 // own limits of customers, bytes

	ownNames []string                          // names of the own parameters with a column in the file
	own      map[*dataplane.ServicePlan]string // keys in rowReader.variants of plans with own parameters
}

// rowReader reads a file of customers.
type rowReader struct {
	*rows
	csv     *csvReader
	plans   map[string]*plan
	columns int // number of cells of the header

	namesOnly bool

	// Indices of columns; -1 if the file does not have the column.
	customer, address, vlan, svlan, cvlan, mac, mark, cgroup, plan, quota int

	ownAt    []int    // columns of ownNames
	ownCells []string // their cells in the current row

	own      *loader // of own parameters
	variants map[string]*dataplane.ServicePlan
	key      []byte // key of variants, reused

	byLimits map[limits]*dataplane.ServicePlan // variants by value

	names    textSlab
	prefixes slab[netip.Prefix]
	ids      slab[uint64]

	cgroups map[string]uint64 // indexes in Customers.Cgroups
}

// readRows reads the text of a file of customers into the table. With namesOnly it leaves out
// their addresses and other keys.
func readRows(
	name, text string, table *dataplane.Customers, plans []*plan, links map[string]*dataplane.Link,
	namesOnly bool,
) *rows {
	r := newRowReader(name, text, table, plans)
	r.own.links = links
	r.namesOnly = namesOnly
	r.read()
	return r.rows
}

func newRowReader(name, text string, table *dataplane.Customers, plans []*plan) *rowReader {
	r := &rowReader{
		rows: &rows{
			name: name, table: table, own: map[*dataplane.ServicePlan]string{}, quotas: map[string]int64{},
		},
		csv: newCSVReader(text), plans: map[string]*plan{}, variants: map[string]*dataplane.ServicePlan{},
		byLimits: map[limits]*dataplane.ServicePlan{},
		customer: -1, address: -1, vlan: -1, svlan: -1, cvlan: -1, mac: -1, mark: -1,
		cgroup: -1, plan: -1, quota: -1, cgroups: map[string]uint64{},
	}
	r.own = newLoader(func(position) string { return r.place(r.csv.line) })
	for _, p := range plans {
		r.plans[p.Name] = p
		table.Plans = append(table.Plans, p.ServicePlan)
	}
	most := min(strings.Count(text, "\n")+1, dataplane.MaxCustomers)
	table.List = make([]dataplane.Customer, 0, most)
	r.lines = make([]int32, 0, most)
	return r
}

// place returns the place of a line.
func (r *rows) place(line int) string { return fmt.Sprintf("%s:%d", r.name, line) }

// fail adds an error in the current row.
func (r *rowReader) fail(format string, args ...any) {
	r.failAt(r.csv.line, fmt.Sprintf(format, args...))
}

func (r *rows) failAt(line int, reason string) {
	if len(r.errs) == maxRowErrors {
		r.more++
		return
	}
	r.errs = append(r.errs, &Error{r.place(line), reason, position{line: line}})
}

// joined returns the errors. The last one counts the unreported ones.
func (r *rows) joined() (out []error) {
	for _, e := range r.errs {
		out = append(out, e)
	}
	if r.more > 0 {
		out = append(out, r.rest(r.more))
	}
	return out
}

// rest is the error that counts the errors beyond maxRowErrors.
func (r *rows) rest(n int) error {
	if n == 1 {
		return fmt.Errorf("%s: and 1 more error", r.name)
	}
	return fmt.Errorf("%s: and %d more errors", r.name, n)
}

// read reads the whole file.
func (r *rowReader) read() {
	if !r.readable() {
		return
	}
	for first := true; ; first = false {
		problem, ok := r.csv.read()
		switch {
		case first && (!ok || problem != "" || !r.readHeader()):
			if !ok {
				r.failAt(1,
					"the file is empty: its first line must name the columns customer, plan and others")
			} else if problem != "" {
				r.fail("%s", problem)
			}
			return
		case first:
		case !ok:
			return
		case problem != "":
			r.fail("%s", problem)
		case len(r.table.List) == dataplane.MaxCustomers:
			r.fail("more than %d customers, the maximum", dataplane.MaxCustomers)
			return
		default:
			r.row()
		}
	}
}

// readable reports whether the text is UTF-8.
func (r *rowReader) readable() bool {
	text := r.csv.text
	if strings.HasPrefix(text, "\xff\xfe") || strings.HasPrefix(text, "\xfe\xff") {
		r.failAt(1, "the file is UTF-16: save it as UTF-8")
		return false
	}
	if utf8.ValidString(text) {
		return true
	}
	for at, c := range text {
		if _, size := utf8.DecodeRuneInString(text[at:]); c == utf8.RuneError && size == 1 {
			r.failAt(1+strings.Count(text[:at], "\n"),
				fmt.Sprintf("byte 0x%02x is not UTF-8: save the file as UTF-8", text[at]))
			break
		}
	}
	return false
}

// readHeader reads the names of the columns.
func (r *rowReader) readHeader() bool {
	r.header, r.columns = r.csv.line, len(r.csv.cells)
	known := map[string]*int{"customer": &r.customer, "plan": &r.plan, "quota": &r.quota}
	need := []string{"customer", "plan"}
	switch r.table.Key {
	case dataplane.ByOuterVLAN:
		known["vlan"] = &r.vlan
		need = append(need, "vlan")
	case dataplane.ByTwoVLANs:
		known["svlan"], known["cvlan"] = &r.svlan, &r.cvlan
		need = append(need, "svlan", "cvlan")
	case dataplane.CustomerByMAC:
		known["mac"], known["macs"] = &r.mac, &r.mac
		need = append(need, "mac")
	case dataplane.CustomerByVLANMAC:
		known["vlan"], known["mac"], known["macs"] = &r.vlan, &r.mac, &r.mac
		need = append(need, "vlan", "mac")
	case dataplane.CustomerByMark:
		known["mark"], known["marks"] = &r.mark, &r.mark
		need = append(need, "mark")
	case dataplane.CustomerByCgroup:
		known["cgroup"], known["cgroups"] = &r.cgroup, &r.cgroup
		need = append(need, "cgroup")
	default:
		known["address"], known["addresses"] = &r.address, &r.address
		need = append(need, "address")
	}
	seen := map[string]bool{}
	for i, cell := range r.csv.cells {
		name := strings.ToLower(cell)
		at, own := known[name], slices.Contains(ownNames, name)
		if strings.Contains(name, "\r") {
			r.fail("a carriage return inside a line: end lines with a line feed, or with both")
			return false
		}
		switch {
		case seen[name] && (at != nil || own), at != nil && *at >= 0:
			r.fail("duplicate column %q", cell)
		case at != nil:
			*at = i
		case own:
			r.ownNames, r.ownAt = append(r.ownNames, strings.Clone(name)), append(r.ownAt, i)
		case cell != "": // spreadsheets export empty columns
			r.ignored = append(r.ignored, strings.Clone(cell))
		}
		seen[name] = true
	}
	r.checkDirections()
	other := func(cell string) bool { return strings.ContainsAny(cell, ";\t") }
	for _, name := range need {
		if *known[name] < 0 && r.csv.comma == ',' && slices.ContainsFunc(r.csv.cells, other) {
			r.fail(
				"the first line has a comma, so commas are the separators: put cells with a comma in quotes")
			break
		}
		if *known[name] < 0 {
			r.fail("column %s is missing: the first line must name the columns %s", name,
				strings.Join(need, ", "))
		}
	}
	if r.namesOnly {
		// no row reaches this cell
		r.address, r.vlan, r.svlan, r.cvlan = maxCells, maxCells, maxCells, maxCells
		r.mac, r.mark, r.cgroup = maxCells, maxCells, maxCells
	}
	r.ownCells = make([]string, len(r.ownNames))
	return r.errs == nil
}

// checkDirections refuses columns of rates for one direction without those for the other, and with those
// for both.
func (r *rowReader) checkDirections() {
	for _, name := range []string{"rate", "guarantee"} {
		has := func(column string) bool { return slices.Contains(r.ownNames, column) }
		down, up := downOf[name], upOf[name]
		switch {
		case has(down) != has(up):
			r.fail("columns %s and %s go together: add the other one", down, up)
		case has(down) && has(name):
			r.fail("column %s is for both directions, and columns %s and %s for one each: remove one or the other",
				name, down, up)
		}
	}
}

// cell returns a cell of the row. It is empty if the row ends before it.
func (r *rowReader) cell(column int) string {
	if column < len(r.csv.cells) {
		return r.csv.cells[column]
	}
	return ""
}

// row reads a customer.
func (r *rowReader) row() {
	if cells := r.csv.cells; len(cells) > r.columns && strings.Join(cells[r.columns:], "") != "" {
		r.fail("the line has %d cells, the first line %d: put a cell that contains %q in quotes", len(cells),
			r.columns, r.csv.comma)
		return
	}
	c := dataplane.Customer{Name: r.customerName(), Plan: r.customerPlan()}
	if r.quota >= 0 {
		r.ownQuota(c.Name)
	}
	if r.table.Key.ByAddress() {
		c.Prefixes = r.prefixList(r.cell(r.address))
	} else {
		c.IDs = r.idList()
	}
	if r.errs == nil {
		r.table.List = append(r.table.List, c)
		r.lines = append(r.lines, int32(r.csv.line)) // a file contains fewer lines than 2^31
	}
}

func (r *rowReader) customerName() string {
	s := r.cell(r.customer)
	switch {
	case s == "":
		r.fail("customer is missing: each customer needs a name")
	case len(s) > dataplane.MaxCustomerName && utf8.RuneCountInString(s) > dataplane.MaxCustomerName:
		r.fail("customer: the name has %d characters, the maximum is %d", utf8.RuneCountInString(s),
			dataplane.MaxCustomerName)
	default:
		if strings.ContainsFunc(s, unprintable) {
			r.fail("customer: name %q has unprintable characters", s)
		}
		return r.names.keep(s)
	}
	return ""
}

// unprintable is true for most characters of names without a call.
func unprintable(c rune) bool { return (c < ' ' || c > '~') && !unicode.IsPrint(c) }

// words calls read for each word of a cell with several values.
func words(cell string, read func(string)) {
	begin := 0
	for i := range len(cell) {
		switch cell[i] {
		case ' ', ',', ';', '\t', '\r', '\n':
			if begin < i {
				read(cell[begin:i])
			}
			begin = i + 1
		}
	}
	if begin < len(cell) {
		read(cell[begin:])
	}
}

func (r *rowReader) prefixList(cell string) []netip.Prefix {
	words(cell, func(word string) {
		p, err := parseCustomerPrefix(word)
		if err != nil {
			r.fail("address: %v", err)
			return
		}
		r.prefixes.add(p)
	})
	return r.prefixes.end()
}

// parseCustomerPrefix is parsePrefix without IPv4-mapped addresses, which packets never carry.
func parseCustomerPrefix(s string) (netip.Prefix, error) {
	p, err := parsePrefix(s)
	if a := p.Addr(); err == nil && a.Is4In6() {
		v4 := netip.PrefixFrom(a.Unmap(), p.Bits()-96)
		return p, fmt.Errorf("%q is IPv4 in IPv6: write %v", s, v4)
	}
	return p, err
}
