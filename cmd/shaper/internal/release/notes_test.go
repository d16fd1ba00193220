package main

import (
	"debug/buildinfo"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"
)

const changelog = `# Changelog

## [Unreleased]

### Added

- Something later.

## [1.2.0] - 2026-11-30

### Added

- ` + "`shaper run`" + ` has a flag, see [docs](docs/OPERATING.md#upgrade).
  It goes on here.
- ` + "`meter.New` and `Table.Set`" + `: for programs.

### Fixed

- Go: a fix for programs with ` + "`--json`" + `.
- [A site](https://example.com) is linked.

## [1.1.0] - 2026-10-01

### Added

- Something earlier.
`

func TestNotes(t *testing.T) {
	t.Parallel()
	s := &source{version: "1.2.0", changelog: changelog}
	got, err := s.notes()
	if err != nil {
		t.Fatal(err)
	}
	_, got, _ = strings.Cut(got, "\n\n## ")
	want := `For operators

### Added

- ` + "`shaper run`" + ` has a flag, see [docs](` + repository + `/blob/v1.2.0/docs/OPERATING.md#upgrade).
  It goes on here.

### Fixed

- [A site](https://example.com) is linked.

## For programs that use the Go packages

### Added

- ` + "`meter.New` and `Table.Set`" + `: for programs.

### Fixed

- Go: a fix for programs with ` + "`--json`" + `.
`
	if got != want {
		t.Errorf("notes:\n%s\nwant:\n%s", got, want)
	}
	for version, want := range map[string]string{"1.3.0": "no heading", "1.2": "no heading"} {
		s.version = version
		if _, err := s.notes(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", version, err, want)
		}
	}
	s = &source{version: "1.0.0", changelog: "## [1.0.0] - 2026-01-01\n\n### Added\n\nText without a list.\n"}
	if got, err := s.notes(); err == nil || !strings.Contains(err.Error(), "Text without a list") {
		t.Errorf("%q (%v)", got, err)
	}
}

// TestNotesOfChangelog checks that each version of this repository has notes.
func TestNotesOfChangelog(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../../../CHANGELOG.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range dated.FindAllStringSubmatch(string(text), -1) {
		s := &source{version: m[1], changelog: string(text)}
		if notes, err := s.notes(); err != nil || strings.Count(notes, "\n- ") < 10 {
			t.Errorf("%s: %v: %s", m[1], err, notes)
		}
	}
}

// author returns options of git for a repository.
func author(root string) []string {
	return []string{"-C", root, "-c", "user.name=a", "-c", "user.email=a@example.com"}
}

// TestCheck checks each reason against a release.
func TestCheck(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("needs git")
	}
	root := t.TempDir()
	git := func(args ...string) {
		t.Helper()
		output(t, "git", append(author(root), args...)...)
	}
	write := func(name, text string) {
		t.Helper()
		if err := writeFile(filepath.Join(root, name), []byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	check := func(version, want string) {
		t.Helper()
		s, err := newSource(root, "dist", version)
		if err == nil {
			err = s.check(false)
		}
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", version, err, want)
		}
	}
	git("init", "-q")
	write("CHANGELOG.md", changelog)
	write(".gitignore", "/bin/\n")
	write("cmd/shaper/version.go", "package main\n\nconst release = \"v1.1.0\"\n")
	git("add", ".")
	git("commit", "-q", "-m", "one")
	check("", "no version")
	check("1.2", "want three numbers")
	check("1.3.0", "no heading")
	check("1.1.0", "the latest version of CHANGELOG.md is 1.2.0")
	check("1.2.0", "version.go")
	write("cmd/shaper/version.go", "package main\n\nconst release = \"v1.2.0\"\n")
	check("1.2.0", "files differ from the commit")
	git("commit", "-q", "-a", "-m", "two")
	check("1.2.0", ".ci/run has not passed")
	s, err := newSource(root, "dist", "v1.2.0")
	if err != nil {
		t.Fatal(err)
	}
	write(passedFile, s.commit+"\n")
	check("1.2.0", "")
	git("tag", "v1.2.0")
	check("1.2.0", "the tag v1.2.0 is there already")
}

// TestOwnBuild checks that a release takes no binary of another commit.
func TestOwnBuild(t *testing.T) {
	t.Parallel()
	s := &source{commit: "0123"}
	for _, tt := range []struct {
		revision, modified string
		want               bool
	}{{"0123", "false", true}, {"0123", "true", false}, {"4567", "false", false}, {"", "", false}} {
		info := &buildinfo.BuildInfo{Settings: []debug.BuildSetting{
			{Key: "vcs.revision", Value: tt.revision}, {Key: "vcs.modified", Value: tt.modified},
		}}
		if err := s.ownBuild(info); (err == nil) != tt.want {
			t.Errorf("%+v: %v", tt, err)
		}
	}
}

// TestSource checks the version of a commit after a release, and of a tree without a clone.
func TestSource(t *testing.T) {
	root := t.TempDir()
	t.Setenv("GIT_CEILING_DIRECTORIES", filepath.Dir(root)) // the temporary directory may be in a clone
	if err := writeFile(filepath.Join(root, "CHANGELOG.md"), []byte(changelog)); err != nil {
		t.Fatal(err)
	}
	s, err := newSource(root, "dist", "")
	if err != nil || s.version != "1.2.0" || s.commit != "" || s.date.Format("2006-01-02") != "2026-11-30" {
		t.Errorf("%+v (%v)", s, err)
	}
	output(t, "git", "-C", root, "init", "-q")
	output(t, "git", "-C", root, "add", ".")
	command := exec.Command("git", append(author(root), "commit", "-q", "-m", "one")...)
	command.Env = append(os.Environ(), "GIT_COMMITTER_DATE=2026-12-24T12:00:00Z")
	if out, err := command.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	s, err = newSource(root, "dist", "")
	if err != nil || s.version != "1.2.0+git20261224."+s.commit[:8] {
		t.Errorf("%+v (%v)", s, err)
	}
}
