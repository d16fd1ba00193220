package say

import (
	"fmt"
	"slices"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"

	"github.com/a-seed-32e5a53f/shaper/meter"
)

// Columns is the maximum width of output for people, in characters.
const Columns = 80

// Number is a cell to be shortened if the table is too wide.
type Number int64

// Table is a table of at most 80 columns. If it is too wide, large numbers are shortened, then empty columns
// are left out, and then texts are broken. If it is still too wide on a terminal, names are cut.
type Table struct {
	Header []any
	First  int   // first column of numbers, from 1
	Names  []int // columns to be cut if necessary, from 0
	Texts  []int // columns to be broken at blanks if necessary, from 0
	Rows   [][]any
	Foot   string // lines below the table
}

// Add adds a row.
func (g *Table) Add(cells ...any) { g.Rows = append(g.Rows, cells) }

// narrowest is the minimum width of a cut name, in characters.
const narrowest = 6

// Render draws the table.
func (g *Table) Render(terminal bool) string {
	out := g.draw(Grouped, nil)
	if WidthOf(out) <= Columns {
		return out
	}
	out = g.draw(shortened, nil)
	if WidthOf(out) > Columns && len(g.Texts) > 0 {
		g = g.narrow()
		out = g.draw(shortened, nil)
	}
	if WidthOf(out) > Columns && len(g.Texts) > 0 {
		g.breakTexts()
		out = g.draw(shortened, nil)
	}
	if !terminal || WidthOf(out) <= Columns {
		return out
	}
	most := map[int]int{}
	for _, column := range g.Names {
		for _, row := range g.Rows {
			most[column] = max(most[column], text.StringWidthWithoutEscSequences(fmt.Sprint(row[column])))
		}
	}
	for over := WidthOf(out) - Columns; over > 0; over-- {
		widest := slices.MaxFunc(g.Names, func(a, b int) int { return most[a] - most[b] })
		if most[widest] <= narrowest {
			break
		}
		most[widest]--
	}
	return g.draw(shortened, most)
}

// narrow returns a copy of the table without the columns of numbers that are empty.
func (g *Table) narrow() *Table {
	out := &Table{First: g.First, Names: g.Names, Rows: make([][]any, len(g.Rows))}
	for column, title := range g.Header {
		empty := column >= g.First-1
		for _, row := range g.Rows {
			empty = empty && row[column] == ""
		}
		if empty {
			continue
		}
		if slices.Contains(g.Texts, column) {
			out.Texts = append(out.Texts, len(out.Header))
		}
		out.Header = append(out.Header, title)
		for i, row := range g.Rows {
			out.Rows[i] = append(out.Rows[i], row[column])
		}
	}
	return out
}

// breakTexts breaks texts and their titles at blanks.
func (g *Table) breakTexts() {
	for _, column := range g.Texts {
		g.Header[column] = strings.ReplaceAll(fmt.Sprint(g.Header[column]), " ", "\n")
		for _, row := range g.Rows {
			if cell, ok := row[column].(string); ok {
				row[column] = strings.ReplaceAll(cell, " ", "\n")
			}
		}
	}
}

// Table prints a table between an empty line and the lines of its foot.
func (p *Printer) Table(g *Table) {
	p.Printf("\n%s\n", g.Render(IsTerminal(p.W)))
	p.Folded(g.Foot)
}

// draw renders the table. write formats its numbers; most holds the maximum widths of names, by
// column.
func (g *Table) draw(write func(int64) string, most map[int]int) string {
	t := NewTable(g.First, g.Header...)
	t.SuppressTrailingSpaces()
	for _, row := range g.Rows {
		cells := slices.Clone(row)
		for i, cell := range cells {
			switch cell := cell.(type) {
			case Number:
				cells[i] = write(int64(cell))
			case string:
				if n, ok := most[i]; ok {
					cells[i] = text.Snip(cell, n, "…")
				}
			}
		}
		t.AppendRow(cells)
	}
	return t.Render()
}

// WidthOf returns the width of the longest line, in characters.
func WidthOf(lines string) int {
	width := 0
	for line := range strings.Lines(lines) {
		width = max(width, text.StringWidthWithoutEscSequences(strings.TrimRight(line, "\n")))
	}
	return width
}

// shortened writes a count of a million or more with four digits.
func shortened(n int64) string {
	if n < 1e6 {
		return Grouped(n)
	}
	v := float64(n) / 1e6
	for _, unit := range []string{"M", "G", "T", "P", "E"} {
		switch {
		case v < 9.9995:
			return fmt.Sprintf("%.3f %s", v, unit)
		case v < 99.995:
			return fmt.Sprintf("%.2f %s", v, unit)
		case v < 999.95:
			return fmt.Sprintf("%.1f %s", v, unit)
		}
		v /= 1000
	}
	return Grouped(n)
}

// labels is the width of the labels of shaper status, including spaces.
const labels = 11

// Folded prints lines, and breaks lines if too wide. On a terminal, a word wider than a line, such
// as a path, is cut at its front.
func (p *Printer) Folded(lines string) {
	for line := range strings.Lines(lines) {
		line = strings.TrimRight(line, "\n")
		if WidthOf(line) <= Columns {
			p.Printf("%s\n", line)
			continue
		}
		hang, now := 4, ""
		if strings.HasPrefix(line, "  ") {
			hang, now, line = labels, line[:labels], line[labels:]
		}
		room, empty := Columns-hang, true
		for _, word := range strings.Fields(line) {
			if letters := []rune(word); len(letters) > room && IsTerminal(p.W) {
				word = "…" + string(letters[len(letters)-room+1:])
			}
			switch {
			case empty:
				now += word
			case WidthOf(now)+1+WidthOf(word) <= Columns:
				now += " " + word
			default:
				p.Printf("%s\n", now)
				now = strings.Repeat(" ", hang) + word
			}
			empty = false
		}
		p.Printf("%s\n", now)
	}
}

// NewTable returns an empty table. Columns from first on, counted from 1, are numbers.
func NewTable(first int, header ...any) table.Writer {
	t := table.NewWriter()
	t.SetStyle(table.StyleLight)
	t.Style().Format.Header = text.FormatDefault
	t.Style().Options = table.OptionsNoBordersAndSeparators
	t.Style().Options.SeparateHeader = true
	t.AppendHeader(table.Row(header))
	configs := []table.ColumnConfig{}
	for column := first; column <= len(header); column++ {
		configs = append(configs,
			table.ColumnConfig{Number: column, Align: text.AlignRight, AlignHeader: text.AlignRight})
	}
	t.SetColumnConfigs(configs)
	return t
}

var paint = [...]text.Color{meter.Green: text.FgGreen, meter.Yellow: text.FgYellow, meter.Red: text.FgRed}

// Color writes the name of a color, in its color if colored.
func Color(c meter.Color, colored bool) string {
	if !colored {
		return c.String()
	}
	return paint[c].Sprint(c.String())
}
