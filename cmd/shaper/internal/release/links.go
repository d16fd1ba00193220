package main

import (
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
)

// localLink matches the target of a link without a scheme, and its anchor.
var localLink = regexp.MustCompile(`\]\(([^):#\s]+)(#[^)\s]*)?\)`)

// linkToSource makes links absolute that lead from installed pages to files that are not installed. Below
// dir, the pages have the names that they have in the repository.
func (s *source) linkToSource(dir string) error {
	return filepath.WalkDir(dir, func(file string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || filepath.Ext(file) != ".md" {
			return err
		}
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		page, err := filepath.Rel(dir, file)
		if err != nil {
			return err
		}
		changed := localLink.ReplaceAllStringFunc(string(text), func(link string) string {
			part := localLink.FindStringSubmatch(link)
			target := path.Join(path.Dir(filepath.ToSlash(page)), part[1])
			if _, err := os.Stat(filepath.Join(dir, target)); err == nil {
				return link
			}
			return fmt.Sprintf("](%s/blob/%s/%s%s)", repository, s.revision(), target, part[2])
		})
		if changed == string(text) {
			return nil
		}
		return os.WriteFile(file, []byte(changed), 0o644)
	})
}

// revision returns the name of the source in git.
func (s *source) revision() string {
	if s.unreleased && s.commit != "" {
		return s.commit
	}
	return "v" + s.version
}
