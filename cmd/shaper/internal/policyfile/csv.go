package policyfile

import (
	"slices"
	"strings"
)

// csvReader reads a CSV text (RFC 4180). Blanks around cells are removed. Rows without any value,
// and lines beginning with #, are skipped.
type csvReader struct {
	text  string
	comma byte

	at    int      // offset of the next line
	next  int      // number of the next line, from 1
	line  int      // number of the first line of the row
	cells []string // the row; valid until the next one
}

// maxCells is the maximum number of cells of a row.
const maxCells = 1000

const (
	severalSeparators = `the first line names the columns with several separators: put cells that contain a separator in quotes`

	tooManyCells = `the line has more than 1000 cells`
	quoteInside  = `a quote inside a cell: put the whole cell in quotes, and double the quotes in it`
	quoteOpen    = `this line begins a quote that is never closed`
	quoteAfter   = `text after a closing quote: double the quotes inside a cell`
)

// newCSVReader returns a reader of a text, without its byte order mark. The first row sets the
// separator, outside of quotes: a comma, or else a semicolon or a tab.
func newCSVReader(text string) *csvReader {
	r := &csvReader{text: strings.TrimPrefix(text, "\ufeff"), next: 1}
	header := *r
	row, _ := header.skip()
	row = withoutQuoted(row)
	r.comma = ','
	if !strings.Contains(row, ",") {
		switch {
		case strings.Contains(row, ";"):
			r.comma = ';'
		case strings.Contains(row, "\t"):
			r.comma = '\t'
		}
	}
	return r
}

// separate finds the separator with which the first row has cells with the most of some names, if there is
// one. A problem is a row that has them with several.
func (r *csvReader) separate(names []string) (problem string) {
	most, best := 0, ""
	var first []string
	for _, comma := range []byte(",;\t") {
		header := *r
		header.comma, header.cells = comma, nil
		if problem, ok := header.read(); problem != "" || !ok {
			continue
		}
		r.line = header.line
		n := 0
		for _, name := range names {
			if slices.ContainsFunc(header.cells,
				func(cell string) bool { return strings.EqualFold(cell, name) }) {
				n++
			}
		}
		switch {
		case n > most:
			most, best, first = n, string(comma), header.cells
		case n == most && n > 0 && !slices.Equal(header.cells, first):
			best += string(comma)
		}
	}
	if len(best) > 1 {
		return severalSeparators
	}
	if best != "" {
		r.comma = best[0]
	}
	return ""
}

// withoutQuoted removes the text in quotes from a line.
func withoutQuoted(line string) string {
	var b strings.Builder
	for quoted := false; line != ""; quoted = !quoted {
		part, rest, _ := strings.Cut(line, `"`)
		if !quoted {
			b.WriteString(part)
		}
		line = rest
	}
	return b.String()
}

// skip moves to the next line that is neither blank nor a comment, and returns it. ok is false at
// the end of the text.
func (r *csvReader) skip() (line string, ok bool) {
	for r.at < len(r.text) {
		line = r.text[r.at:]
		if end := strings.IndexByte(line, '\n'); end >= 0 {
			line = line[:end]
		}
		if line != "" && line[0] != '#' && (line[0] > ' ' || trimBlanks(line) != "") {
			r.line = r.next
			return line, true
		}
		r.at += len(line) + 1
		r.next++
	}
	return "", false
}

// read reads the next row into cells. It returns false at the end of the text. A problem is a
// syntax error; the reader then continues after the first line of the row.
func (r *csvReader) read() (problem string, ok bool) {
	for {
		line, ok := r.skip()
		if !ok {
			return "", false
		}
		r.cells = r.cells[:0]
		after := r.at + len(line) + 1
		if strings.IndexByte(line, '"') >= 0 {
			problem = r.quoted()
		} else {
			problem = r.plain(line)
		}
		if problem != "" {
			r.at, r.next = after, r.line+1
			return problem, true
		}
		for _, cell := range r.cells {
			if cell != "" {
				return "", true
			}
		}
	}
}

// plain splits a line without quotes.
func (r *csvReader) plain(line string) (problem string) {
	r.at += len(line) + 1
	r.next++
	line = strings.TrimSuffix(line, "\r")
	for len(r.cells) < maxCells {
		end := strings.IndexByte(line, r.comma)
		if end < 0 {
			r.cells = append(r.cells, trimBlanks(line))
			return ""
		}
		r.cells = append(r.cells, trimBlanks(line[:end]))
		line = line[end+1:]
	}
	return tooManyCells
}

// quoted splits a row with quotes, which may contain line breaks.
func (r *csvReader) quoted() (problem string) {
	rest, lines := r.text[r.at:], 1
	for len(r.cells) < maxCells {
		cell, length := "", 0
		blank := len(rest) - len(strings.TrimLeft(rest, r.blanks()))
		if strings.HasPrefix(rest[blank:], `"`) {
			inner, n := unquote(rest[blank+1:])
			if n < 0 {
				return quoteOpen
			}
			length = blank + 1 + n
			lines += strings.Count(rest[:length], "\n")
			after := strings.TrimLeft(rest[length:], r.blanks()+"\r")
			if after != "" && after[0] != r.comma && after[0] != '\n' {
				return quoteAfter
			}
			cell, length = trimBlanks(inner), len(rest)-len(after)
		} else {
			length = strings.IndexAny(rest, string(rune(r.comma))+"\n")
			if length < 0 {
				length = len(rest)
			}
			if cell = trimBlanks(rest[:length]); strings.Contains(cell, `"`) {
				return quoteInside
			}
		}
		r.cells = append(r.cells, cell)
		if length == len(rest) || rest[length] == '\n' {
			r.at = len(r.text) - len(rest) + length + 1
			r.next += lines
			return ""
		}
		rest = rest[length+1:]
	}
	return tooManyCells
}

// blanks returns the blanks allowed around a cell.
func (r *csvReader) blanks() string {
	if r.comma == '\t' {
		return " "
	}
	return " \t"
}

// unquote returns the text up to the closing quote, and the number of bytes including the quote; -1
// if there is none.
func unquote(s string) (string, int) {
	doubled := false
	for i := 0; ; i++ {
		end := strings.IndexByte(s[i:], '"')
		if end < 0 {
			return "", -1
		}
		i += end
		if !strings.HasPrefix(s[i+1:], `"`) {
			if inner := s[:i]; !doubled {
				return inner, i + 1
			}
			return strings.ReplaceAll(s[:i], `""`, `"`), i + 1
		}
		doubled = true
		i++
	}
}

// trimBlanks removes the blanks around a cell, and the rest of a line end.
func trimBlanks(s string) string {
	if s != "" && (s[0] <= ' ' || s[len(s)-1] <= ' ') {
		return strings.Trim(s, " \t\r\n")
	}
	return s
}
