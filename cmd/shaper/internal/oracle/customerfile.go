package oracle

import (
	"bytes"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// line is a customer's line of a CSV file.
type line struct {
	number int
	cells  map[string]string // by column
}

// readTable reads a CSV file of customers.
func readTable(path string, f form) ([]line, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	if !utf8.Valid(text) {
		return nil, fmt.Errorf("%s: not UTF-8", path)
	}
	text = bytes.TrimPrefix(text, []byte("\ufeff"))

	r := csv.NewReader(bytes.NewReader(text))
	r.Comma, r.Comment, r.FieldsPerRecord = f.separator(text), '#', -1
	var header []string
	var lines []line
	for {
		cells, err := r.Read()
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		if strings.Join(cells, "") == "" {
			continue
		}
		number, _ := r.FieldPos(0)
		if header == nil {
			if strings.Contains(strings.Join(cells, ""), "\r") {
				return nil, fmt.Errorf("%s:%d: a carriage return inside a line", path, number)
			}
			if header, err = f.columns(cells); err != nil {
				return nil, fmt.Errorf("%s:%d: %w", path, number, err)
			}
			continue
		}
		for len(cells) < len(header) {
			cells = append(cells, "")
		}
		if strings.Join(cells[len(header):], "") != "" {
			return nil, fmt.Errorf("%s:%d: %d cells, %d in the header", path, number, len(cells), len(header))
		}
		l := line{number, map[string]string{}}
		for i, name := range header {
			if f.named == nil {
				l.cells[name] = cells[i]
				continue
			}
			for content, names := range f.named {
				if slices.Contains(names, name) {
					l.cells[content] += " " + cells[i]
				}
			}
		}
		for content := range l.cells {
			l.cells[content] = strings.TrimSpace(l.cells[content])
		}
		f.complete(l.cells)
		lines = append(lines, l)
	}
	if header == nil {
		return nil, fmt.Errorf("%s: no header", path)
	}
	return lines, nil
}

// quotes matches the parts of a line in quotes; the last may end on a later line.
var quotes = regexp.MustCompile(`"[^"]*("|$)`)

// separator returns the separator of the first line not skipped.
func separator(text []byte) rune {
	for l := range strings.Lines(string(text)) {
		if strings.TrimSpace(l) == "" || l[0] == '#' {
			continue
		}
		l = quotes.ReplaceAllString(l, "")
		switch {
		case strings.Contains(l, ","):
			return ','
		case strings.Contains(l, ";"):
			return ';'
		case strings.Contains(l, "\t"):
			return '\t'
		}
		break
	}
	return ','
}

// columns returns the names of the columns, in lower case.
func (f form) columns(header []string) ([]string, error) {
	if f.named != nil {
		return f.named.columns(header)
	}
	var names []string
	for _, name := range header {
		switch name = strings.ToLower(name); name {
		case "addresses":
			name = "address"
		case "macs":
			name = "mac"
		}
		if slices.Contains(names, name) {
			return nil, fmt.Errorf("column %q twice", name)
		}
		names = append(names, name)
	}
	for _, name := range []string{"customer", "plan"} {
		if !slices.Contains(names, name) && (name != "plan" || f.plan == "") {
			return nil, fmt.Errorf("no column %q", name)
		}
	}
	return names, nil
}

// parameters returns the customer's own parameters.
func (l line) parameters() map[string]string {
	own := map[string]string{}
	for _, name := range ownParameters {
		if l.cells[name] != "" {
			own[name] = l.cells[name]
		}
	}
	return own
}

// customer reads the other cells of a line.
func (l line) customer(key string, plans []*plan) (*customer, error) {
	who := &customer{name: l.cells["customer"], line: l.number}
	if n := utf8.RuneCountInString(who.name); n < 1 || n > 64 ||
		strings.ContainsFunc(who.name, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return nil, fmt.Errorf("customer %q: not 1 to 64 printable characters", who.name)
	}
	for _, p := range plans {
		if p.name == l.cells["plan"] {
			who.plan = p
		}
	}
	if who.plan == nil {
		return nil, fmt.Errorf("no plan %q", l.cells["plan"])
	}
	return who, l.keys(who, key)
}

// keys reads the addresses or VLAN IDs of a customer.
func (l line) keys(who *customer, key string) error {
	column := "address"
	switch key {
	case "vlan", "mac", "vni", "teid":
		column = key
	case "vlan mac":
		column = "mac"
	case "svlan cvlan":
		outer, err := vlanID(l.cells["svlan"])
		inner, err2 := vlanID(l.cells["cvlan"])
		who.vlans = []int{outer*4096 + inner}
		return errors.Join(err, err2)
	}
	cell, ok := l.cells[column]
	if !ok {
		return fmt.Errorf("no column %q", column)
	}
	if column == "address" {
		var err error
		who.blocks, err = addressBlocks(cell)
		return err
	}
	for _, s := range strings.FieldsFunc(cell, separates) {
		id, err := vlanID(s)
		switch column {
		case "mac":
			id, err = parseMAC(s)
		case "vni", "teid":
			var n uint64
			n, err = parseNumber(column, s)
			id = int(n)
		}
		if key == "vlan mac" && err == nil {
			var tag int
			tag, err = vlanID(l.cells["vlan"])
			id += tag << 48
		}
		if err != nil {
			return err
		}
		who.vlans = append(who.vlans, id)
	}
	return nil
}

// separates reports whether a character separates the values of a cell.
func separates(r rune) bool { return unicode.IsSpace(r) || r == ',' || r == ';' }

func vlanID(s string) (int, error) {
	id, err := strconv.ParseUint(s, 10, 12)
	return int(id), err
}
