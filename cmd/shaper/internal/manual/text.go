package manual

import (
	"strings"
	"unicode/utf8"
)

// The page is indented below its headings, as a manual page is.
const indent = "  "

// Text renders a page for a terminal of a width in columns. Code keeps its lines.
func (p Page) Text(width int) string {
	var out strings.Builder
	for i, b := range p {
		if i > 0 && !(b.kind == item && p[i-1].kind == item) {
			out.WriteByte('\n')
		}
		switch b.kind {
		case heading:
			out.WriteString(strings.ToUpper(plain(b.text)) + "\n")
		case paragraph:
			wrap(&out, indent, indent, plain(b.text), width)
		case item:
			wrap(&out, indent+b.marker+" ", indent+strings.Repeat(" ", len(b.marker)+1), plain(b.text), width)
		case code:
			for line := range strings.Lines(b.text) {
				out.WriteString(strings.TrimRight(indent+indent+line, " \n") + "\n")
			}
		case table:
			b.textTable(&out, width)
		}
	}
	return out.String()
}

// textTable writes a table in columns if its lines fit, and otherwise as terms with descriptions.
func (b block) textTable(out *strings.Builder, width int) {
	if lines := b.columns(); len(b.rows[0]) > 2 && longest(lines)+len(indent) <= width {
		for _, line := range lines {
			out.WriteString(indent + line + "\n")
		}
		return
	}
	column := len(indent)
	for _, row := range b.rows[1:] {
		if n := len(indent) + utf8.RuneCountInString(plain(row[0])) + 2; n <= width/3 {
			column = max(column, n)
		}
	}
	column = max(column, 2*len(indent))
	hanging := strings.Repeat(" ", column)
	for _, row := range b.rows[1:] {
		lead := indent + plain(row[0])
		pad := column - utf8.RuneCountInString(lead)
		if pad >= 2 {
			lead += strings.Repeat(" ", pad)
		} else {
			wrap(out, indent, indent, plain(row[0]), width)
			lead = hanging
		}
		for i, cell := range row[1:] {
			if cell == "" {
				continue
			}
			text := plain(cell)
			if len(row) > 2 && b.rows[0][i+1] != "" {
				text = plain(b.rows[0][i+1]) + ": " + text
			}
			wrap(out, lead, hanging, text, width)
			lead = hanging
		}
		if lead != hanging {
			out.WriteString(strings.TrimRight(lead, " ") + "\n")
		}
	}
}

// columns returns the lines of a table with aligned columns.
func (b block) columns() []string {
	widths := make([]int, len(b.rows[0]))
	for _, row := range b.rows {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(plain(cell)))
		}
	}
	var lines []string
	for _, row := range b.rows {
		line := ""
		for i, cell := range row {
			text := plain(cell)
			line += text
			line += strings.Repeat(" ", widths[i]-utf8.RuneCountInString(text)+2)
		}
		lines = append(lines, strings.TrimRight(line, " "))
	}
	return lines
}

func longest(lines []string) int {
	most := 0
	for _, line := range lines {
		most = max(most, utf8.RuneCountInString(line))
	}
	return most
}

// wrap writes a text in lines that end before width if their words allow it. The first line begins with
// lead, the others with hanging.
func wrap(out *strings.Builder, lead, hanging, text string, width int) {
	line, empty := lead, true
	for _, word := range strings.Fields(text) {
		if !empty && utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > width {
			out.WriteString(line + "\n")
			line, empty = hanging, true
		}
		if !empty {
			line += " "
		}
		line, empty = line+word, false
	}
	out.WriteString(strings.TrimRight(line, " ") + "\n")
}
