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

// The committed captures are what this source generates, no more and no fewer.
func TestCommitted(t *testing.T) {
	dir := t.TempDir()
	if err := generate(dir); err != nil {
		t.Fatal(err)
	}
	want, got := captureFiles(t, dir), captureFiles(t, committed)
	if !slices.Equal(want, got) {
		t.Errorf("%s has %q, generated are %q", committed, got, want)
	}
	for _, name := range want {
		generated, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		// A file that is missing is reported above.
		if file, err := os.ReadFile(filepath.Join(committed, name)); err == nil && !bytes.Equal(file, generated) {
			t.Errorf("%s differs: go run ./dataplane/replay/internal/gencaps -o testdata/pcaps", name)
		}
	}
}

// captureFiles is sorted, as ReadDir is.
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

// The README numbers the frames of edges.pcap, so that a golden row can be
// looked up, and names every capture.
func TestREADME(t *testing.T) {
	b, err := os.ReadFile(filepath.Join(committed, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	readme := string(b)
	for _, c := range captures {
		if !strings.Contains(readme, "| `"+c.name+"` |") {
			t.Errorf("README.md does not name %s", c.name)
		}
	}
	for i, e := range edgeRows() {
		if row := fmt.Sprintf("\n| %d | %s |\n", i+1, e.name); !strings.Contains(readme, row) {
			t.Errorf("README.md lacks %q", row)
		}
	}
}
