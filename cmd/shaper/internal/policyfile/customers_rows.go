package policyfile

import (
	"fmt"
	"net/netip"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

// rows are the places and errors of a file of customers. They do not keep its text.
type rows struct {
	name    string // of the file
	table   *dataplane.Customers
	lines   []int32  // line of each customer of the table
	header  int      // line of the header
	ignored []string // ignored columns
	faults  faults

	quotas map[string]int64 // own limits of customers, bytes

	ownNames []string                          // names of the own parameters with a column in the file
	own      map[*dataplane.ServicePlan]string // keys in rowReader.variants of plans with own parameters
	// own parameters of plans of customers that were added, by name
	cells map[*dataplane.ServicePlan]map[string]string
}

// rowReader reads a file of customers.
type rowReader struct {
	*rows
	csv     *csvReader
	plans   map[string]*plan
	columns int // number of cells of the header

	form tableForm

	packets   bool // meters of plans count packets
	namesOnly bool

	// Indices of columns; -1 if the file does not have the column.
	customer, svlan, cvlan, plan, quota int
	address, vlan, mac, vni, teid       []int
	mark, cgroup                        []int

	ownAt    []int    // columns of ownNames
	ownCells []string // their cells in the current row

	own      *loader // of own parameters
	variants map[string]*dataplane.ServicePlan
	key      []byte // key of variants, reused

	byLimits map[limits]*dataplane.ServicePlan // variants by value

	ranges []rowRange // only with nested

	names    textSlab
	prefixes slab[netip.Prefix]
	ids      slab[uint64]

	cgroups map[string]uint64 // indexes in Customers.Cgroups
}

// readRows reads the text of a file of customers into the table. With namesOnly it leaves out
// their addresses and other keys.
func (l *loader) readRows(name, text string, table *dataplane.Customers, form tableForm) *rows {
	r := newRowReader(name, text, table, l.plans)
	r.own.links, r.namesOnly, r.form = l.links, l.namesOnly, form
	r.read()
	r.checkRanges()
	return r.rows
}

func newRowReader(name, text string, table *dataplane.Customers, plans []*plan) *rowReader {
	r := &rowReader{
		rows: &rows{
			name: name, table: table, own: map[*dataplane.ServicePlan]string{}, quotas: map[string]int64{},
		},
		csv: newCSVReader(text), plans: map[string]*plan{}, variants: map[string]*dataplane.ServicePlan{},
		byLimits: map[limits]*dataplane.ServicePlan{},
		cgroups:  map[string]uint64{},
	}
	r.own = newLoader(func(position) string { return r.place(r.csv.line) })
	for _, p := range plans {
		r.plans[p.Name] = p
		r.packets = r.packets || p.draft.packets
		table.Plans = append(table.Plans, p.ServicePlan)
	}
	most := min(strings.Count(text, "\n")+1, dataplane.MaxCustomers)
	table.List = make([]dataplane.Customer, 0, most)
	r.lines = make([]int32, 0, most)
	return r
}

// place returns the place of a line, or that of the file for 0.
func (r *rows) place(line int) string {
	if line == 0 {
		return r.name
	}
	return fmt.Sprintf("%s:%d", r.name, line)
}

// fail adds an error in the current row.
func (r *rowReader) fail(format string, args ...any) {
	r.faults.add(r.csv.line, fmt.Sprintf(format, args...))
}

// read reads the whole file.
func (r *rowReader) read() {
	if !r.readable() {
		return
	}
	if r.form.named != nil {
		if problem := r.csv.separate(r.form.names()); problem != "" {
			r.fail("%s", problem)
			return
		}
	}
	for first := true; ; first = false {
		problem, ok := r.csv.read()
		switch {
		case first && (!ok || problem != "" || !r.readHeader()):
			if !ok {
				r.faults.add(1,
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
		r.faults.add(1, "the file is UTF-16: save it as UTF-8")
		return false
	}
	if utf8.ValidString(text) {
		return true
	}
	for at, c := range text {
		if _, size := utf8.DecodeRuneInString(text[at:]); c == utf8.RuneError && size == 1 {
			r.faults.add(1+strings.Count(text[:at], "\n"),
				fmt.Sprintf("byte 0x%02x is not UTF-8: save the file as UTF-8", text[at]))
			break
		}
	}
	return false
}

// cell returns a cell of the row. It is empty if the row ends before it, and for column -1.
func (r *rowReader) cell(column int) string {
	if uint(column) < uint(len(r.csv.cells)) {
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
	c := dataplane.Customer{Name: r.customerName(), Plan: r.customerPlan()} // see conflicts for invalid cells
	if r.quota >= 0 {
		r.ownQuota(c.Name)
	}
	if r.table.Key.ByAddress() {
		c.Prefixes = r.prefixList()
	} else {
		c.IDs = r.idList()
	}
	r.table.List = append(r.table.List, c)
	r.lines = append(r.lines, int32(r.csv.line)) // a file contains fewer lines than 2^31
}

func (r *rowReader) customerName() string {
	s := r.cell(r.customer)
	switch {
	case r.customer < 0: // an error of the header
	case s == "":
		r.fail("customer is missing: each customer needs a name")
	case len(s) > dataplane.MaxCustomerName && utf8.RuneCountInString(s) > dataplane.MaxCustomerName:
		r.fail("customer: the name has %d characters, the maximum is %d", utf8.RuneCountInString(s),
			dataplane.MaxCustomerName)
	default:
		if strings.ContainsFunc(s, unprintable) {
			r.fail("customer: name %q has unprintable characters", s)
			return ""
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

func (r *rowReader) prefixList() []netip.Prefix {
	for _, at := range r.address {
		words(joinRanges(r.cell(at)), func(word string) {
			p, err := parseCustomerPrefix(word)
			switch {
			case err == nil:
				r.prefixes.add(p)
			case strings.IndexByte(word, '-') >= 0:
				r.addressRange(word)
			default:
				r.fail("address: %v", err)
			}
		})
	}
	return r.prefixes.end()
}

// addressRange adds the prefixes of a range.
func (r *rowReader) addressRange(word string) {
	whole, err := parseRange(word)
	if err != nil {
		r.fail("address: %v", err)
		return
	}
	begin := r.prefixes.size()
	whole.prefixes(r.prefixes.add)
	if r.table.Nested {
		if r.form.onePrefix && r.prefixes.size() > begin+1 {
			r.fail("address: %v is not one prefix: with nested: true give its addresses as prefixes", whole)
		}
		r.ranges = append(r.ranges, rowRange{whole, int32(len(r.table.List)), begin, r.prefixes.size()})
	}
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
