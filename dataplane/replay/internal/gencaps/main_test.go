package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const committed = "../../../../testdata/pcaps"

// TestCommitted compares the committed captures with those that this source
// generates.
func TestCommitted(t *testing.T) {
	dir := t.TempDir()
	if err := generate(dir); err != nil {
		t.Fatal(err)
	}
	want, got := captureFiles(t, dir), captureFiles(t, committed)
	if !slices.Equal(want, got) {
		t.Errorf("%s contains %q, want the generated files %q", committed, got, want)
	}
	for _, name := range want {
		generated, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		// A missing file is reported above.
		if file, err := os.ReadFile(filepath.Join(committed, name)); err == nil &&
			!bytes.Equal(file, generated) {
			t.Errorf("%s is out of date: go run ./dataplane/replay/internal/gencaps -o testdata/pcaps", name)
		}
	}
}

// captureFiles returns the names of captures, sorted as by ReadDir.
func captureFiles(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		switch filepath.Ext(e.Name()) {
		case ".pcap", ".pcapng", ".gz":
			names = append(names, e.Name())
		}
	}
	return names
}

// TestREADME checks that the README names every capture, and numbers the frames
// of edges.pcap, so that a golden row can be looked up.
func TestREADME(t *testing.T) {
	b, err := os.ReadFile(filepath.Join(committed, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	readme := string(b)
	for _, c := range captures {
		if !strings.Contains(readme, "| `"+c.name+"` |") {
			t.Errorf("README.md does not mention %s", c.name)
		}
	}
	for i, e := range edgeRows() {
		if row := fmt.Sprintf("\n| %d | %s |\n", i+1, e.name); !strings.Contains(readme, row) {
			t.Errorf("README.md lacks %q", row)
		}
	}
}
