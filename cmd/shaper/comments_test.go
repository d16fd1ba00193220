package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// eachSource calls f with the path and the text of each file of Go and C outside testdata.
func eachSource(t *testing.T, f func(path string, text []byte)) {
	t.Helper()
	kinds := []string{".go", ".h", ".c"}
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "testdata" || path != "../.." && strings.HasPrefix(d.Name(), ".")):
			return filepath.SkipDir
		case !slices.Contains(kinds, filepath.Ext(path)):
			return nil
		}
		text, err := os.ReadFile(path)
		if err == nil {
			f(path, text)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestCommentNames finds comments with the name of a package of the module and of something which the
// package does not declare, or with the path of a missing file.
func TestCommentNames(t *testing.T) {
	t.Parallel()
	names := regexp.MustCompile(`(?:^|[^\w./"-])([a-z]\w*)\.([A-Z]\w*)`)
	paths := regexp.MustCompile(`(?:^|[^\w./<-])((?:bpf|cmd|dataplane|marker|meter|queue)/[\w/.-]+\.(?:go|h|c|md))\b`)
	type comment struct{ at, text string }
	var comments []comment
	declared := map[string]map[string]bool{} // by package
	eachSource(t, func(path string, text []byte) {
		if !strings.HasSuffix(path, ".go") {
			comments = append(comments, comment{path, string(text)})
			return
		}
		files := token.NewFileSet()
		f, err := parser.ParseFile(files, path, text, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range f.Comments {
			comments = append(comments, comment{files.Position(c.Pos()).String(), c.Text()})
		}
		if !strings.HasSuffix(path, "_test.go") {
			if declared[f.Name.Name] == nil {
				declared[f.Name.Name] = map[string]bool{}
			}
			declare(declared[f.Name.Name], f)
		}
	})
	for _, c := range comments {
		for _, m := range names.FindAllStringSubmatch(c.text, -1) {
			if p := declared[m[1]]; p != nil && !p[m[2]] && !p[strings.TrimSuffix(m[2], "s")] {
				t.Errorf("%s: package %s has no %s", c.at, m[1], m[2])
			}
		}
		for _, m := range paths.FindAllStringSubmatch(c.text, -1) {
			if _, err := os.Stat(filepath.Join("../..", m[1])); err != nil {
				t.Errorf("%s: there is no file %s", c.at, m[1])
			}
		}
	}
}

// declare adds the names that a file declares at its top level.
func declare(names map[string]bool, f *ast.File) {
	for _, d := range f.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			names[d.Name.Name] = names[d.Name.Name] || d.Recv == nil
		case *ast.GenDecl:
			for _, s := range d.Specs {
				switch s := s.(type) {
				case *ast.TypeSpec:
					names[s.Name.Name] = true
				case *ast.ValueSpec:
					for _, n := range s.Names {
						names[n.Name] = true
					}
				}
			}
		}
	}
}
