package main

import (
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode"
)

// mostWords is the length of a page that a reader can still search by eye.
const mostWords = 4500

// TestDocPages checks that each page of docs is short, that two clicks from README.md reach it, and that its
// first ten lines link back.
func TestDocPages(t *testing.T) {
	t.Parallel()
	pages := readPages(t)
	reached := map[string]bool{"README.md": true}
	for range 2 {
		var next []string
		for name := range reached {
			for _, l := range pages[name].links() {
				next = append(next, l.page)
			}
		}
		for _, name := range next {
			reached[name] = true
		}
	}
	found := 0
	for name, p := range pages {
		if path.Dir(name) != "docs" {
			continue
		}
		found++
		// BENCHMARKS is written by a program, and looked up rather than read.
		if words := len(strings.Fields(p.text)); words > mostWords && name != "docs/BENCHMARKS.md" {
			t.Errorf("%s has %d words, want at most %d: move a part to a page of its own", name, words, mostWords)
		}
		if !reached[name] {
			t.Errorf("two clicks from README.md do not reach %s", name)
		}
		lines := strings.SplitN(p.text, "\n", 11)
		top := page{name: name, text: strings.Join(lines[:min(10, len(lines))], "\n")}
		if !slices.ContainsFunc(top.links(), func(l docLink) bool { return l.page == "README.md" }) {
			t.Errorf("%s: no link to README.md in its first ten lines", name)
		}
	}
	if found < 10 {
		t.Errorf("only %d pages found in docs", found)
	}
}

// TestDocAnchors checks that pages and headings exist wherever a page, a comment, a help text, an error or a
// policy names them.
func TestDocAnchors(t *testing.T) {
	t.Parallel()
	pages := readPages(t)
	found := 0
	check := func(from string, l docLink) {
		found++
		p, there := pages[l.page]
		switch {
		case !there:
			t.Errorf("%s names %s, which does not exist", from, l.page)
		case l.anchor != "" && !p.headings()[l.anchor]:
			t.Errorf("%s names %s#%s, but the page has no such heading", from, l.page, l.anchor)
		}
	}
	for name, p := range pages {
		for _, l := range p.links() {
			check(name, l)
		}
	}
	named := regexp.MustCompile(`\bdocs/([A-Z]+\.md)(?:#([\w-]+))?|\b([A-Z]+\.md)#([\w-]+)`)
	kinds := []string{".go", ".c", ".h", ".yaml", ".yml", ".json", ".sh", ".service", ".1", ".5", ".conf", ""}
	walkTree(t, func(name string) {
		if !slices.Contains(kinds, path.Ext(name)) || path.Base(name) == "docs_pages_test.go" {
			return
		}
		text, err := os.ReadFile(filepath.Join("../..", name))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range named.FindAllStringSubmatch(string(text), -1) {
			check(name, docLink{page: "docs/" + m[1] + m[3], anchor: m[2] + m[4]})
		}
	})
	if found < 200 {
		t.Errorf("only %d links found", found)
	}
}

// TestDocHeadings checks the anchors of headings against GitHub's.
func TestDocHeadings(t *testing.T) {
	t.Parallel()
	got := page{text: "# A `shaper run`: b, c\n```sh\n# no heading\n```\n## 3 a.m.: [links](X.md) drop\n## Again\n" +
		"### Again\n## `trtcm_x` – _not_ every-thing\n#no heading\n"}.headings()
	for _, want := range []string{"a-shaper-run-b-c", "3-am-links-drop", "again", "again-1", "trtcm_x--not-every-thing"} {
		if !got[want] {
			t.Errorf("no anchor %s in %v", want, got)
		}
	}
	if len(got) != 5 {
		t.Errorf("%d anchors %v, want 5", len(got), got)
	}
}

// page is a Markdown file of the tree.
type page struct{ name, text string }

// docLink is a link to a page of the tree.
type docLink struct{ page, anchor string }

var (
	fence    = regexp.MustCompile("(?ms)^ *```.*?^ *```$")
	heading  = regexp.MustCompile(`(?m)^#{1,6} +(.*)$`)
	linkText = regexp.MustCompile(`\[([^]]*)\]\([^)]*\)`)
	emphasis = regexp.MustCompile(`(?:^|\s)_([^_\s]+)_(?:$|\s)`)
	mdLink   = regexp.MustCompile(`\]\(([^)#:\s]*)(?:#([^)\s]*))?\)`)
)

// links returns the links of p to Markdown pages, those in blocks of code left out.
func (p page) links() []docLink {
	var out []docLink
	dir := path.Dir(p.name)
	if p.name == "cmd/shaper/internal/bench/page.md" { // template of docs/BENCHMARKS.md
		dir = "docs"
	}
	for _, m := range mdLink.FindAllStringSubmatch(fence.ReplaceAllString(p.text, ""), -1) {
		switch {
		case m[1] == "":
			out = append(out, docLink{page: p.name, anchor: m[2]})
		case path.Ext(m[1]) == ".md":
			out = append(out, docLink{page: path.Join(dir, m[1]), anchor: m[2]})
		}
	}
	return out
}

// headings returns the anchors that GitHub gives the headings of p.
func (p page) headings() map[string]bool {
	out := map[string]bool{}
	for _, m := range heading.FindAllStringSubmatch(fence.ReplaceAllString(p.text, ""), -1) {
		text := linkText.ReplaceAllString(strings.TrimSpace(m[1]), "$1")
		text = emphasis.ReplaceAllString(text, " $1 ")
		slug := strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case r == '-', r == '_', unicode.IsLetter(r), unicode.IsDigit(r):
				return unicode.ToLower(r)
			}
			return -1
		}, text)
		anchor := slug
		for n := 1; out[anchor]; n++ {
			anchor = slug + "-" + strconv.Itoa(n)
		}
		out[anchor] = true
	}
	return out
}

// readPages returns the Markdown files of the tree by their path from its root.
func readPages(t *testing.T) map[string]page {
	out := map[string]page{}
	walkTree(t, func(name string) {
		if path.Ext(name) != ".md" {
			return
		}
		text, err := os.ReadFile(filepath.Join("../..", name))
		if err != nil {
			t.Fatal(err)
		}
		out[name] = page{name: name, text: string(text)}
	})
	return out
}

// walkTree calls f with the path of each file of the tree, from its root.
func walkTree(t *testing.T, f func(name string)) {
	root := os.DirFS("../..")
	skipped := []string{".git", "bin", ".bin", "fuzz", "node_modules", "THIRD_PARTY"}
	err := fs.WalkDir(root, ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && slices.Contains(skipped, d.Name()):
			return fs.SkipDir
		case d.Type().IsRegular():
			f(name)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
