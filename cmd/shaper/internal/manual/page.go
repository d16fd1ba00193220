package manual

import "strings"

// Page is a page of documentation as blocks, in order.
type Page []block

// block is a heading, a paragraph, an item of a list, code, or a table.
type block struct {
	kind   kind
	level  int        // of a heading: the number of its #
	text   string     // on one line; of code: its lines
	marker string     // of an item: - or its number
	rows   [][]string // of a table; the first row is the head
}

type kind uint8

const (
	heading kind = iota
	paragraph
	item
	code
	table
)

// Parse reads a page. It omits images, and paragraphs that contain only links, which lead to other pages.
func Parse(markdown string) Page {
	var p Page
	lines := strings.Split(markdown, "\n")
	for i := 0; i < len(lines); {
		var b block
		first := i
		switch marker := markerOf(lines[i]); {
		case strings.HasPrefix(lines[i], "```"):
			i++
			for i < len(lines) && !strings.HasPrefix(lines[i], "```") {
				i++
			}
			b = block{kind: code, text: strings.Join(lines[first+1:i], "\n")}
			i++
		case strings.HasPrefix(lines[i], "#"):
			text := strings.TrimLeft(lines[i], "#")
			b = block{kind: heading, level: len(lines[i]) - len(text), text: strings.TrimSpace(text)}
			i++
		case strings.HasPrefix(lines[i], "|"):
			b.kind = table
			for ; i < len(lines) && strings.HasPrefix(lines[i], "|"); i++ {
				if i != first+1 { // the line below the head
					b.rows = append(b.rows, cells(lines[i]))
				}
			}
			for j, row := range b.rows { // as many cells as the head has
				row = append(row, make([]string, len(b.rows[0]))...)
				b.rows[j] = row[:len(b.rows[0])]
			}
		case lines[i] == "":
			i++
			continue
		default:
			for i++; i < len(lines) && continues(lines[i]); i++ {
			}
			text := strings.TrimPrefix(strings.Join(lines[first:i], "\n"), marker)
			b = block{kind: paragraph, text: strings.Join(strings.Fields(text), " ")}
			if marker != "" {
				b.kind, b.marker = item, strings.TrimSpace(marker)
			}
			if strings.HasPrefix(b.text, "![") || onlyLinks(b.text) {
				continue
			}
		}
		p = append(p, b)
	}
	return p
}

// markerOf returns the beginning of a list's item with the blank after it, or an empty string.
func markerOf(line string) string {
	word, _, found := strings.Cut(line, " ")
	number := strings.TrimSuffix(word, ".")
	if found && (word == "-" || number != word && number != "" && strings.Trim(number, "0123456789") == "") {
		return word + " "
	}
	return ""
}

// continues reports whether a line belongs to the paragraph or item above it.
func continues(line string) bool {
	return line != "" && !strings.HasPrefix(line, "#") && !strings.HasPrefix(line, "|") &&
		!strings.HasPrefix(line, "```") && markerOf(line) == ""
}

// cells splits a row of a table. A bar after a backslash, or in code, belongs to its cell.
func cells(row string) []string {
	var out []string
	inCode, from := false, 1
	row = strings.TrimRight(row, " ")
	for i := 1; i < len(row); i++ {
		switch {
		case row[i] == '`':
			inCode = !inCode
		case row[i] == '|' && !inCode && row[i-1] != '\\':
			out = append(out, strings.TrimSpace(row[from:i]))
			from = i + 1
		}
	}
	if len(out) == 0 {
		return []string{strings.TrimSpace(row[1:])}
	}
	return out
}

// onlyLinks reports whether a text is links with separators between them.
func onlyLinks(text string) bool {
	rest := ""
	for _, s := range spans(text) {
		if s.style != link {
			rest += s.text
		}
	}
	return strings.Contains(text, "](") && strings.Trim(rest, " ·,") == ""
}

// Section returns the section with that heading, in upper or lower case, with its subsections. It returns
// nil if there is none.
func (p Page) Section(name string) Page {
	for i, b := range p {
		if b.kind != heading || !strings.EqualFold(plain(b.text), name) {
			continue
		}
		end := i + 1
		for end < len(p) && (p[end].kind != heading || p[end].level > b.level) {
			end++
		}
		return p[i:end]
	}
	return nil
}

// Sections lists the headings below the title.
func (p Page) Sections() []string {
	var out []string
	for _, b := range p {
		if b.kind == heading && b.level > 1 {
			out = append(out, plain(b.text))
		}
	}
	return out
}
