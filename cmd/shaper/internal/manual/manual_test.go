package manual

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"
)

const page = "# Title\n\n[README](README.md) · [OTHER](OTHER.md)\n\nOne `code` and a [link](#a) in\ntwo lines.\n" +
	"\n![picture](p.png)\n\n" +
	"## First part\n\n| key | value |\n|---|---|\n| `a\\|b` | [one](x.md) `c|d` |\n| a very long term that has no room | two |\n\n" +
	"- item\n  continued\n- **bold** item\n1. number\n\n```console\n$ echo -n '.a'\n.a\n```\n\n" +
	"### Below\n\n| x | y | z |\n|---|---|---|\n| 1 | 2 | 3 |\n\n## Last\n\nEnd.\n"

func TestText(t *testing.T) {
	want := `TITLE

  One code and a link in two lines.

FIRST PART

  a|b  one c|d
  a very long term that has no room
       two

  - item continued
  - bold item
  1. number

    $ echo -n '.a'
    .a

BELOW

  x  y  z
  1  2  3

LAST

  End.
`
	if got := Parse(page).Text(40); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestMan(t *testing.T) {
	want := `.SH DESCRIPTION
.PP
One \fBcode\fR and a link in two lines.
.SH FIRST PART
.TP
\fBa|b\fR
one \fBc|d\fR
.TP
a very long term that has no room
two
.IP \(bu 2
item continued
.IP \(bu 2
\fBbold\fR item
.IP 1. 3
number
.PP
.RS 2
.nf
$ echo \-n '.a'
\&.a
.fi
.RE
.SS Below
.PP
.nf
x  y  z
1  2  3
.fi
.SH LAST
.PP
End.
`
	if got := Parse(page).Man(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestSection(t *testing.T) {
	p := Parse(page)
	if got := strings.Join(p.Sections(), ","); got != "First part,Below,Last" {
		t.Errorf("sections %s", got)
	}
	if got := p.Section("BELOW").Text(40); got != "BELOW\n\n  x  y  z\n  1  2  3\n" {
		t.Errorf("section Below is %q", got)
	}
	if p.Section("none") != nil {
		t.Error("there is a section none")
	}
}

// TestPages renders all pages of docs. Each word of a paragraph or a table is in the text, lines that are not
// code fit, and roff has no complaint.
func TestPages(t *testing.T) {
	files, err := filepath.Glob("../../../../docs/*.md")
	if err != nil || len(files) < 5 {
		t.Fatalf("%d pages: %v", len(files), err)
	}
	groff, _ := exec.LookPath("groff")
	for _, file := range files {
		markdown, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		p := Parse(string(markdown))
		text := p.Text(80)
		for line := range strings.Lines(text) {
			line = strings.TrimSuffix(line, "\n")
			if !strings.HasPrefix(line, indent+indent) && utf8.RuneCountInString(line) > 80 &&
				strings.Contains(strings.TrimSpace(line), " ") {
				t.Errorf("%s: a line is wider than 80 columns: %q", file, line)
			}
		}
		words := strings.Join(strings.Fields(text), " ")
		for _, b := range p {
			rows := [][]string{{b.text}}
			if len(b.rows) > 0 {
				rows = b.rows[1:]
			}
			for _, row := range rows {
				for _, cell := range row {
					if b.kind == code || b.kind == heading {
						continue
					}
					want := strings.Join(strings.Fields(plain(cell)), " ")
					if !strings.Contains(words, want) && len(row) < 3 {
						t.Errorf("%s: lost %q", file, want)
					}
				}
			}
		}
		if groff == "" {
			continue
		}
		cmd := exec.Command(groff, "-man", "-Tutf8", "-Kutf8", "-ww", "-z")
		cmd.Stdin = strings.NewReader(".TH A 5\n" + p.Man())
		if out, err := cmd.CombinedOutput(); err != nil || strings.Contains(string(out), "warning:") &&
			!strings.Contains(string(out), "break") {
			t.Errorf("%s: groff: %v: %.500s", file, err, out)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(page)
	f.Add("|\n||\n| a\n|---\n|`|`\n- \n1. \n[a](\n**\n```\n")
	f.Fuzz(func(_ *testing.T, markdown string) {
		p := Parse(markdown)
		p.Text(20)
		p.Man()
		p.Section("a")
	})
}
