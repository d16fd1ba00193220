package manual

import (
	"fmt"
	"strings"
)

// manWidth is the number of columns of a table in a manual page, less its indentation.
const manWidth = 70

// Man renders a page in the macros of man(7), without its title.
func (p Page) Man() string {
	var out strings.Builder
	if len(p) > 0 && (p[0].kind != heading || p[0].level == 1) {
		out.WriteString(".SH DESCRIPTION\n")
	}
	for _, b := range p {
		switch {
		case b.kind == heading && b.level == 1:
		case b.kind == heading && b.level == 2:
			fmt.Fprintf(&out, ".SH %s\n", Escape(strings.ToUpper(plain(b.text))))
		case b.kind == heading:
			fmt.Fprintf(&out, ".SS %s\n", Escape(plain(b.text)))
		case b.kind == paragraph:
			fmt.Fprintf(&out, ".PP\n%s\n", roff(b.text))
		case b.kind == item && b.marker == "-":
			fmt.Fprintf(&out, ".IP \\(bu 2\n%s\n", roff(b.text))
		case b.kind == item:
			fmt.Fprintf(&out, ".IP %s 3\n%s\n", b.marker, roff(b.text))
		case b.kind == code:
			fmt.Fprintf(&out, ".PP\n.RS 2\n.nf\n%s\n.fi\n.RE\n", Escape(b.text))
		case b.kind == table:
			b.manTable(&out)
		}
	}
	return out.String()
}

// manTable writes a table in columns if its lines fit, and otherwise as terms with descriptions.
func (b block) manTable(out *strings.Builder) {
	if lines := b.columns(); len(b.rows[0]) > 2 && longest(lines) <= manWidth {
		fmt.Fprintf(out, ".PP\n.nf\n%s\n.fi\n", Escape(strings.Join(lines, "\n")))
		return
	}
	for _, row := range b.rows[1:] {
		fmt.Fprintf(out, ".TP\n%s\n", roff(row[0]))
		written := false
		for i, cell := range row[1:] {
			if cell == "" {
				continue
			}
			if written {
				out.WriteString(".br\n")
			}
			if len(row) > 2 && b.rows[0][i+1] != "" {
				cell = b.rows[0][i+1] + ": " + cell
			}
			out.WriteString(roff(cell) + "\n")
			written = true
		}
		if !written {
			out.WriteString("\\&\n")
		}
	}
}

// roff returns a text with its code and its bold parts in bold.
func roff(text string) string {
	var out strings.Builder
	for _, s := range spans(text) {
		escaped := Escape(strings.ReplaceAll(s.text, `\|`, "|"))
		if s.style == literal || s.style == strong {
			escaped = `\fB` + escaped + `\fR`
		}
		out.WriteString(escaped)
	}
	return out.String()
}

// Escape escapes a text for roff: backslashes, hyphens and other characters that it replaces by
// typographic ones, and dots and quotes at the beginning of a line.
func Escape(text string) string {
	text = strings.NewReplacer(`\`, `\e`, "-", `\-`, "\n.", "\n\\&.", "\n'", "\n\\&'", "^", `\(ha`, "~",
		`\(ti`).Replace(text)
	if strings.HasPrefix(text, ".") || strings.HasPrefix(text, "'") {
		text = `\&` + text
	}
	return text
}
