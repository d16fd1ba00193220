package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/jedib0t/go-pretty/v6/text"
)

// columns is the width of what people look at.
const columns = 80

// number is a cell that may be shortened to fit the width.
type number int64

// grid is a table that fits the width: first with numbers in full, then with
// large numbers shortened, and on a terminal with names cut.
type grid struct {
	header []any
	first  int   // column of numbers, from 1
	names  []int // columns, from 0, that may be cut
	rows   [][]any
	foot   string // lines below it
}

func (g *grid) add(cells ...any) { g.rows = append(g.rows, cells) }

// narrowest is what is left of a name that is cut, in characters.
const narrowest = 6

func (g *grid) render(terminal bool) string {
	out := g.draw(grouped, nil)
	if widthOf(out) <= columns {
		return out
	}
	out = g.draw(shortened, nil)
	if !terminal {
		return out
	}
	most := map[int]int{}
	for _, column := range g.names {
		for _, row := range g.rows {
			most[column] = max(most[column], text.StringWidthWithoutEscSequences(fmt.Sprint(row[column])))
		}
	}
	for over := widthOf(out) - columns; over > 0; over-- {
		widest := slices.MaxFunc(g.names, func(a, b int) int { return most[a] - most[b] })
		if most[widest] <= narrowest {
			break
		}
		most[widest]--
	}
	return g.draw(shortened, most)
}

// draw renders the table with numbers as write has them, and names of at most
// so many characters by column.
func (g *grid) draw(write func(int64) string, most map[int]int) string {
	t := newTable(g.first, g.header...)
	t.SuppressTrailingSpaces()
	for _, row := range g.rows {
		cells := slices.Clone(row)
		for i, cell := range cells {
			switch cell := cell.(type) {
			case number:
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

func widthOf(lines string) int {
	width := 0
	for line := range strings.Lines(lines) {
		width = max(width, text.StringWidthWithoutEscSequences(strings.TrimRight(line, "\n")))
	}
	return width
}

// shortened writes a count of a million and more with four digits.
func shortened(n int64) string {
	if n < 1e6 {
		return grouped(n)
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
	return grouped(n)
}

// labels is the width of the labels of status, with the spaces around them.
const labels = 11

// folded prints lines, and continues on the next line what is too wide. On a
// terminal a word that is wider than a line, such as a path, loses its front.
func (p *printer) folded(lines string) {
	for line := range strings.Lines(lines) {
		line = strings.TrimRight(line, "\n")
		if widthOf(line) <= columns {
			p.printf("%s\n", line)
			continue
		}
		hang, now := 4, ""
		if strings.HasPrefix(line, "  ") {
			hang, now, line = labels, line[:labels], line[labels:]
		}
		room, empty := columns-hang, true
		for _, word := range strings.Fields(line) {
			if letters := []rune(word); len(letters) > room && isTerminal(p.w) {
				word = "…" + string(letters[len(letters)-room+1:])
			}
			switch {
			case empty:
				now += word
			case widthOf(now)+1+widthOf(word) <= columns:
				now += " " + word
			default:
				p.printf("%s\n", now)
				now = strings.Repeat(" ", hang) + word
			}
			empty = false
		}
		p.printf("%s\n", now)
	}
}
