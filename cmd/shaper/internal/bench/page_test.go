package main

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// TestPage checks that docs/BENCHMARKS.md is made from page.md, apart from figures.
func TestPage(t *testing.T) {
	text, err := os.ReadFile("../../../../docs/BENCHMARKS.md")
	if err != nil {
		t.Fatal(err)
	}
	got, want := prose(string(text)), prose(pageText)
	for i := range min(len(got), len(want)) {
		if got[i] != want[i] {
			t.Fatalf("docs/BENCHMARKS.md has %q, page.md %q: edit page.md and run make bench", got[i],
				want[i])
		}
	}
	if len(got) != len(want) {
		t.Errorf("docs/BENCHMARKS.md has %d lines of prose, page.md %d", len(got), len(want))
	}
}

// prose returns the lines without tables and without the paragraph that names the machine.
func prose(page string) (lines []string) {
	for line := range strings.Lines(page) {
		line = strings.TrimSpace(line)
		if line != "" && !strings.HasPrefix(line, "|") && !strings.Contains(line, "{{") &&
			!strings.HasPrefix(line, "Measured on") {
			lines = append(lines, line)
		}
	}
	return lines
}

// TestReasons checks that each reason belongs to a figure, and each table to a group.
func TestReasons(t *testing.T) {
	var names []string
	for _, g := range groups(t.TempDir(), nil, nil) {
		if !strings.Contains(pageText, `{{table "`+g.name+`"}}`) {
			t.Errorf("page.md has no table %q", g.name)
		}
		for _, f := range g.figures {
			if slices.Contains(names, f.what) {
				t.Errorf("two figures have the name %q", f.what)
			}
			names = append(names, f.what)
		}
	}
	for _, r := range reasons {
		if !slices.ContainsFunc(names, r.figures.MatchString) {
			t.Errorf("there is a reason for %q, but no such figure", r.figures)
		}
	}
}
