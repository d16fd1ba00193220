package main

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestDocNames checks that the tests, files and headings that the docs name exist.
func TestDocNames(t *testing.T) {
	t.Parallel()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	tests := testFunctions(t, root)
	pages, err := filepath.Glob(filepath.Join(root, "docs/*.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"README.md", "CONTRIBUTING.md", "testdata/pcaps/README.md"} {
		pages = append(pages, filepath.Join(root, name))
	}
	named := regexp.MustCompile(`\b(?:Test|Fuzz|Benchmark)[A-Z]\w*`)
	linked := regexp.MustCompile(`\]\(([^)#:]+)(?:#[^)]*)?\)`)
	headed := regexp.MustCompile("\"([^\"]+)\" in `go doc (\\S+)`")
	found := 0
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range named.FindAllString(string(text), -1) {
			found++
			if !strings.Contains(tests, "\nfunc "+m) { // -run and -bench accept the beginning of a name
				t.Errorf("%s: there is no test %s", page, m)
			}
		}
		for _, m := range linked.FindAllStringSubmatch(string(text), -1) {
			found++
			if _, err := os.Stat(filepath.Join(filepath.Dir(page), m[1])); err != nil {
				t.Errorf("%s: %v", page, err)
			}
		}
		for _, m := range headed.FindAllStringSubmatch(string(text), -1) {
			found++
			command := exec.Command("go", "doc", m[2])
			command.Dir = root
			out, err := command.CombinedOutput()
			if err != nil || !strings.Contains(string(out), "\n# "+m[1]+"\n") {
				t.Errorf("%s: go doc %s has no heading %q (%v)", page, m[2], m[1], err)
			}
		}
	}
	if found < 100 {
		t.Errorf("only %d names found in the docs", found)
	}
}

// TestReadmeFigures checks that each figure that the README takes from docs/BENCHMARKS.md is
// there.
func TestReadmeFigures(t *testing.T) {
	t.Parallel()
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	benchmarks, err := os.ReadFile("../../docs/BENCHMARKS.md")
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, m := range regexp.MustCompile(
		`\[([^]]*)\]\(docs/BENCHMARKS\.md\)`).FindAllStringSubmatch(string(readme), -1) {
		for _, figure := range regexp.MustCompile(`\d[\d.]* ?(?:ns|x|%)`).FindAllString(m[1], -1) {
			found++
			if !strings.Contains(string(benchmarks), " "+figure+" ") {
				t.Errorf("README has %q, which docs/BENCHMARKS.md does not have", figure)
			}
		}
	}
	if found == 0 {
		t.Error("no figure was found in README")
	}
}

// TestRateNames checks that fields, metrics and columns with a rate in bit/s end in _bit_s, everywhere in the
// tree. The shaper itself rejects "bps", which means bytes per second to tc.
func TestRateNames(t *testing.T) {
	t.Parallel()
	other := regexp.MustCompile(`\b\w+_(?i:[kmgt]?bps|bits?_per_s\w*|bits?_ps|bits_s)\b|\b\w*[B]PS\b`)
	foreign := map[string]string{
		"cmd/shaper/internal/bench/kernel.go": "bits_per_second", // of iperf3 --json
	}
	kinds := []string{".go", ".js", ".json", ".md", ".txt", ".csv", ".h", ".c"}
	found := 0
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && slices.Contains([]string{".git", ".bin", "fuzz", "node_modules"}, d.Name()):
			return fs.SkipDir
		case !d.Type().IsRegular() || !slices.Contains(kinds, filepath.Ext(path)):
			return nil
		case d.Name() == "CHANGELOG.md": // names the former names
			return nil
		}
		text, err := os.ReadFile(path)
		found += strings.Count(string(text), "_bit_s")
		for i, line := range strings.Split(string(text), "\n") {
			for _, name := range other.FindAllString(line, -1) {
				if foreign[strings.TrimPrefix(path, "../../")] != name {
					t.Errorf("%s:%d: %s: a rate in bit/s ends in _bit_s", path, i+1, name)
				}
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if found < 10 {
		t.Errorf("only %d rates found", found)
	}
}

// testFunctions returns the lines of the tree that declare a function in a test file.
func testFunctions(t *testing.T, root string) string {
	var all strings.Builder
	all.WriteByte('\n')
	declared := regexp.MustCompile(`(?m)^func \w+`)
	err := filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		for _, line := range declared.FindAll(text, -1) {
			all.Write(append(line, '\n'))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all.String()
}
