package oracle

import (
	"bytes"
	"encoding/csv"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// form is what a policy says about the form of its file of customers.
type form struct {
	named naming // nil: columns have the names of their contents
	unit  string
	plan  string // of lines without one
}

// naming holds the names of columns, in lower case, by their content.
type naming map[string][]string

// parseForm reads the keys columns, unit and plan of customers.
func parseForm(entries map[string]*yaml.Node, key string) (f form, err error) {
	unit, err := optional(entries, "unit", "")
	if err != nil {
		return f, err
	}
	if f.unit = unit; unit != "" && !regexp.MustCompile(`^([kKmMgGtT]?bit(/s)?|([kMGT]i?)?B/s)$`).MatchString(unit) {
		return f, fmt.Errorf("unit %q is unknown", unit)
	}
	if f.plan, err = optional(entries, "plan", ""); err != nil || entries["columns"] == nil {
		return f, err
	}
	given, err := mapping(entries["columns"])
	if err != nil {
		return f, err
	}
	f.named = naming{}
	must := append([]string{"customer", "plan"}, strings.Fields(key)...)
	if key != "vlan" && key != "svlan cvlan" {
		must = []string{"customer", "plan", "address"}
	}
	for content, n := range given {
		if content == "addresses" {
			content = "address"
		}
		list := []*yaml.Node{n}
		if n.Kind == yaml.SequenceNode && (content == "address" || content == "vlan") {
			list = n.Content
		}
		known := slices.Concat(must, ownParameters, []string{"quota"})
		if f.named[content] != nil || !slices.Contains(known, content) || len(list) == 0 {
			return f, fmt.Errorf("columns: %q is twice, unknown, or without a column", content)
		}
		for _, n := range list {
			name, err := scalar(n)
			if name = strings.ToLower(strings.TrimSpace(name)); err != nil || name == "" ||
				slices.Contains(f.named[content], name) {
				return f, errors.Join(err, fmt.Errorf("columns: %q is empty or twice", name))
			}
			f.named[content] = append(f.named[content], name)
		}
	}
	for _, content := range must {
		if f.named[content] == nil && (content != "plan" || f.plan == "") {
			return f, fmt.Errorf("columns without %q", content)
		}
	}
	return f, nil
}

// columns returns the header in lower case. Each named column must be there once.
func (n naming) columns(header []string) (out []string, err error) {
	for _, cell := range header {
		out = append(out, strings.ToLower(cell))
	}
	for content, names := range n {
		for _, name := range names {
			times := 0
			for _, cell := range out {
				if cell == name {
					times++
				}
			}
			if times != 1 {
				return nil, fmt.Errorf("column %q for %s is there %d times", name, content, times)
			}
		}
	}
	return out, nil
}

// separator returns the separator of the first line not skipped: with names of columns, the one that
// separates all of them.
func (f form) separator(text []byte) rune {
	for _, comma := range ",;\t" {
		r := csv.NewReader(bytes.NewReader(text))
		r.Comma, r.Comment, r.FieldsPerRecord = comma, '#', -1
		for f.named != nil {
			cells, err := r.Read()
			if err != nil {
				break
			}
			if strings.TrimSpace(strings.Join(cells, "")) == "" {
				continue
			}
			for i := range cells {
				cells[i] = strings.TrimSpace(cells[i])
			}
			if _, err = f.named.columns(cells); err == nil {
				return comma
			}
			break
		}
	}
	return separator(text)
}

// bareRate matches a rate without a unit, or with a part of one.
var bareRate = regexp.MustCompile(`^([0-9]+(?:\.[0-9]+)?) ?([kKmMgGtT]?)(b|bps|b/s|B|Bps)?$`)

// complete writes the unit to rates without one, and the plan to a line without one.
func (f form) complete(cells map[string]string) {
	if cells["plan"] == "" && f.plan != "" {
		cells["plan"] = f.plan
	}
	inBytes := strings.HasSuffix(f.unit, "B/s")
	for _, name := range []string{"rate", "cir", "pir", "eir", "guarantee"} {
		m := bareRate.FindStringSubmatch(cells[name])
		switch {
		case m == nil || f.unit == "":
		case m[2]+m[3] == "":
			cells[name] = m[1] + strings.TrimSuffix(strings.ToLower(f.unit), "/s")
			if inBytes {
				cells[name] = m[1] + f.unit
			}
		case inBytes && !strings.HasPrefix(m[3], "b"):
			cells[name] = m[1] + strings.Replace(strings.ToUpper(m[2]), "K", "k", 1) + "B/s"
		case !inBytes && !strings.HasPrefix(m[3], "B"):
			cells[name] = m[1] + strings.ToLower(m[2]) + "bit"
		}
	}
}
