package libreqos

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/routers"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

// circuit is a customer: the devices of ShapedDevices.csv with one circuit ID.
type circuit struct {
	id        string
	line      int // of its first device
	parent    *site
	parentRow string // name of the parent, as written
	max, min  siteRates
	sqm       string
	addresses []netip.Prefix
}

// deviceColumns are the columns of ShapedDevices.csv. Others are left out.
var deviceColumns = []string{
	"circuit id", "parent node", "ipv4", "ipv6", "download min mbps", "upload min mbps", "download max mbps",
	"upload max mbps",
}

// deviceTable reads ShapedDevices.csv.
type deviceTable struct {
	*network
	*csv.Reader
	name      string
	columns   map[string]int
	width     int // number of cells of the header
	cells     []string
	line      int
	bad       bool // the row has an error
	circuits  map[string]*circuit
	order     []*circuit
	addresses map[netip.Prefix]int // lines
}

// fail adds a problem of the current row.
func (t *deviceTable) fail(format string, args ...any) {
	t.bad = true
	t.draft.Problems = append(t.draft.Problems,
		routers.Problem{File: t.name, Line: t.line, Reason: fmt.Sprintf(format, args...)})
}

// cell returns the value of a column, "" if the file does not have the column.
func (t *deviceTable) cell(column string) string {
	if i, ok := t.columns[column]; ok && i < len(t.cells) {
		return strings.TrimSpace(t.cells[i])
	}
	return ""
}

// readCircuits reads ShapedDevices.csv. An error means that it is not such a file.
func readCircuits(n *network, s routers.Source) ([]*circuit, error) {
	text := strings.TrimPrefix(s.Text, "\ufeff")
	if !utf8.ValidString(text) || strings.ContainsRune(text, 0) {
		return nil, fmt.Errorf("%s is not text", s.Name)
	}
	t := &deviceTable{
		network: n, Reader: csv.NewReader(strings.NewReader(text)), name: s.Name, columns: map[string]int{},
		circuits: map[string]*circuit{}, addresses: map[netip.Prefix]int{},
	}
	t.Comment, t.FieldsPerRecord, t.TrimLeadingSpace = '#', -1, true
	if err := t.header(); err != nil {
		return nil, err
	}
	for {
		cells, err := t.Read()
		if errors.Is(err, io.EOF) {
			return t.order, nil
		}
		if err != nil {
			return nil, t.syntax(err)
		}
		t.cells, t.bad = cells, false
		t.line, _ = t.FieldPos(0)
		if strings.TrimSpace(strings.Join(cells, "")) != "" {
			t.row()
		}
	}
}

// syntax returns an error of the CSV reader with its place.
func (t *deviceTable) syntax(err error) error {
	var parse *csv.ParseError
	if errors.As(err, &parse) {
		return fmt.Errorf("%s:%d: %w: put a cell with quotes or line breaks in quotes, and double the quotes in it",
			t.name, parse.StartLine, parse.Err)
	}
	return fmt.Errorf("%s: %w", t.name, err)
}

// header reads the names of the columns.
func (t *deviceTable) header() error {
	cells, err := t.Read()
	switch {
	case errors.Is(err, io.EOF):
		return fmt.Errorf("%s is empty: its first line must name the columns", t.name)
	case err != nil:
		return t.syntax(err)
	}
	t.line, _ = t.FieldPos(0)
	t.width = len(cells)
	var other []string
	for i, cell := range cells {
		name := strings.ToLower(strings.TrimSpace(cell))
		if _, twice := t.columns[name]; twice && name != "" {
			return fmt.Errorf("%s:%d: column %q comes twice", t.name, t.line, cell)
		}
		t.columns[name] = i
		if !slices.Contains(deviceColumns, name) && name != "sqm" && name != "" {
			other = append(other, strings.TrimSpace(cell))
		}
	}
	var missing []string
	for _, name := range deviceColumns {
		if _, ok := t.columns[name]; !ok {
			missing = append(missing, name)
		}
	}
	if missing != nil {
		return fmt.Errorf("%s:%d: the first line must name the columns: %s missing", t.name, t.line,
			strings.Join(missing, ", "))
	}
	if other != nil {
		t.note(t.name, t.line, "columns left out: %s", strings.Join(other, ", "))
	}
	return nil
}

// row reads a device.
func (t *deviceTable) row() {
	more := len(t.cells) > t.width
	if more && strings.TrimSpace(strings.Join(t.cells[t.width:], "")) != "" {
		t.fail("the line has %d cells, the first line %d: put a cell that contains a comma in quotes",
			len(t.cells), t.width)
		return
	}
	c := &circuit{id: t.cell("circuit id"), line: t.line, parentRow: t.cell("parent node"), sqm: t.sqm()}
	c.max = siteRates{t.rate("download max mbps"), t.rate("upload max mbps")}
	c.min = siteRates{t.rate("download min mbps"), t.rate("upload min mbps")}
	c.parent = t.parent(c.parentRow)
	c.addresses = t.prefixes()
	switch {
	case c.id == "":
		t.fail("Circuit ID is missing")
	case utf8.RuneCountInString(c.id) > dataplane.MaxCustomerName:
		t.fail("Circuit ID %q is longer than %d characters", c.id, dataplane.MaxCustomerName)
	case strings.ContainsFunc(c.id, func(r rune) bool { return !unicode.IsPrint(r) }):
		t.fail("Circuit ID %q has unprintable characters", c.id)
	case len(c.addresses) == 0 && !t.bad:
		t.fail("circuit %q: a device has neither IPv4 nor IPv6 addresses", c.id)
	case !t.bad && slices.Contains([]int64{c.max.down, c.max.up, c.min.down, c.min.up}, 0):
		t.fail("circuit %q: the rates must be above zero", c.id)
	case !t.bad && (c.min.down > c.max.down || c.min.up > c.max.up):
		t.fail("circuit %q: a minimum is above the maximum", c.id)
	}
	if !t.bad {
		t.add(c)
	}
}

// add adds a device to its circuit, whose first device has the rates.
func (t *deviceTable) add(c *circuit) {
	first := t.circuits[c.id]
	switch {
	case first == nil:
		t.circuits[c.id] = c
		t.order = append(t.order, c)
		return
	case first.parentRow != c.parentRow:
		t.fail("circuit %q has parent node %q here, and %q in line %d", c.id, c.parentRow, first.parentRow, first.line)
		return
	case first.max != c.max || first.min != c.min || first.sqm != c.sqm:
		t.note(t.name, t.line, "circuit %q has the rates and sqm of line %d, its first device", c.id, first.line)
	}
	first.addresses = append(first.addresses, c.addresses...)
}

// rate reads a rate in Mbit/s.
func (t *deviceTable) rate(column string) int64 {
	n, err := mbps(t.cell(column))
	if err != nil {
		t.fail("%s: %v", column, err)
	}
	return n
}

// parent returns the node of a name, or nil for none.
func (t *deviceTable) parent(name string) *site {
	if name == "" || strings.EqualFold(name, "none") {
		return nil
	}
	s := t.sites[name]
	if s == nil {
		t.fail("parent node %q is not in %s", name, t.file)
	}
	return s.physical()
}

// prefixes reads the addresses of a device.
func (t *deviceTable) prefixes() (list []netip.Prefix) {
	for _, column := range []string{"ipv4", "ipv6"} {
		for _, word := range strings.FieldsFunc(t.cell(column), func(r rune) bool {
			return r == ',' || r == ';' || unicode.IsSpace(r)
		}) {
			p, err := parseDevice(word)
			switch {
			case err != nil || p.Addr().Is4() != (column == "ipv4"):
				t.fail("%s: %q is not an address or a prefix", column, word)
				continue
			case t.addresses[p] > 0:
				t.fail("%s: %s is in line %d too", column, word, t.addresses[p])
				continue
			}
			t.addresses[p] = t.line
			list = append(list, p)
		}
	}
	return list
}

// parseDevice reads an address or a prefix. Bits behind the length of a prefix have no meaning.
func parseDevice(s string) (netip.Prefix, error) {
	if strings.Contains(s, "/") {
		p, err := netip.ParsePrefix(s)
		return p.Masked(), err
	}
	a, err := netip.ParseAddr(s)
	if err != nil || a.Zone() != "" || a.Is4In6() {
		return netip.Prefix{}, fmt.Errorf("%q is not an address", s)
	}
	return netip.PrefixFrom(a, a.BitLen()), nil
}

// sqm returns the plan for the value of the column sqm: default, or fifo for none.
func (t *deviceTable) sqm() string {
	value := strings.ToLower(strings.ReplaceAll(t.cell("sqm"), " ", ""))
	down, up, directions := strings.Cut(value, "/")
	if !directions {
		up = down
	}
	for _, v := range []string{down, up} {
		if !slices.Contains([]string{"", "cake", "fq_codel", "none"}, v) {
			t.fail("sqm %q is not known: want cake, fq_codel or none, or two of them such as cake/none", t.cell("sqm"))
			return defaultPlan
		}
	}
	switch {
	case down == "none" && up == "none":
		return fifoPlan
	case down == "none" || up == "none":
		t.note(t.name, t.line, "sqm %s: a plan has one kind of queue for both directions: fair in both", value)
	}
	return defaultPlan
}

// Names of plans. Circuits without a parent node have plans without a guarantee.
const (
	defaultPlan = "default"
	fifoPlan    = "fifo"
	flat        = "-flat"
)

var planNames = []string{defaultPlan, fifoPlan, defaultPlan + flat, fifoPlan + flat}

// plan returns the name of the plan of a circuit.
func (c *circuit) plan() string {
	if c.parent == nil {
		return c.sqm + flat
	}
	return c.sqm
}
