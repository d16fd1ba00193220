package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestWrite(t *testing.T) {
	root := t.TempDir()
	for path, text := range map[string]string{
		"LICENSE":         "\r\n  MIT \r\nterms\n\n\n",
		"NOTICE.md":       "by somebody",
		"license.go":      "package root",
		"inner/COPYING":   "LGPL",
		"inner/README":    "no license",
		"other/LICENCE":   "not above inner",
		"inner/UNLICENSE": "free",
	} {
		path = filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	a, b := &part{name: "a v1"}, &part{name: "b v2", files: []licenseFile{{"LICENSE", "  MIT\nterms\n"}}}
	for range 2 { // two packages of one folder
		if err := a.add(root, filepath.Join(root, "inner")); err != nil {
			t.Fatal(err)
		}
	}
	var out strings.Builder
	if err := write(&out, []*part{a, b}); err != nil {
		t.Fatal(err)
	}
	line := strings.Repeat("=", 80) + "\n"
	want := "    a v1\n    b v2\n\n" +
		line + "a v1: LICENSE\nb v2: LICENSE\n" + line + "\n  MIT\nterms\n\n" +
		line + "a v1: NOTICE.md\n" + line + "\nby somebody\n\n" +
		line + "a v1: inner/COPYING\n" + line + "\nLGPL\n\n" +
		line + "a v1: inner/UNLICENSE\n" + line + "\nfree\n"
	if _, got, _ := strings.Cut(out.String(), "\n\n"); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if err := write(&out, []*part{a, {name: "c"}}); err == nil || err.Error() != "c has no license file" {
		t.Errorf("a part without a license: %v", err)
	}
}
