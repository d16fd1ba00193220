package main

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// section returns the changelog's text of a version, without its heading.
func section(changelog, version string) (string, error) {
	heading := regexp.MustCompile(`(?m)^## \[` + regexp.QuoteMeta(version) + `\] - \d{4}-\d{2}-\d{2}\n`)
	at := heading.FindStringIndex(changelog)
	if at == nil {
		return "", fmt.Errorf("CHANGELOG.md has no heading ## [%s] with a date", version)
	}
	text, _, _ := strings.Cut(changelog[at[1]:], "\n## ")
	if text = strings.TrimSpace(text); text == "" {
		return "", fmt.Errorf("CHANGELOG.md says nothing about %s", version)
	}
	return text, nil
}

// entry is an entry of the changelog below a heading such as Added.
type entry struct{ kind, text string }

// entries lists the entries of a section. Lines that continue an entry are indented.
func entries(text string) (list []entry, err error) {
	kind := ""
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		switch {
		case line == "":
		case strings.HasPrefix(line, "### "):
			kind = line[len("### "):]
		case strings.HasPrefix(line, "- ") && kind != "":
			list = append(list, entry{kind, line})
		case strings.HasPrefix(line, "  ") && len(list) > 0:
			list[len(list)-1].text += "\n" + line
		default:
			return nil, fmt.Errorf("CHANGELOG.md: want ### Heading, an entry that begins with \"- \", "+
				"or two spaces before the rest of one, not %q", line)
		}
	}
	return list, nil
}

var (
	code = regexp.MustCompile("`[^`]+`")
	// goName matches names of the Go packages, such as `meter.Table`, `Packet.L4` and `kernel.List`.
	goName = regexp.MustCompile("^`([a-z]+\\.)?[A-Z]\\w*(\\.[A-Z]\\w*)*`$")
)

// forPrograms reports whether an entry is about the Go packages only: it begins with "Go:", or all code in
// it is names of them.
func (e entry) forPrograms() bool {
	if strings.HasPrefix(e.text, "- Go: ") {
		return true
	}
	names := code.FindAllString(e.text, -1)
	for _, name := range names {
		if !goName.MatchString(name) {
			return false
		}
	}
	return len(names) > 0
}

// notes returns the notes of a version: how to install it, and its changes, those of the command before
// those of the Go packages.
func (s *source) notes() (string, error) {
	text, err := section(s.changelog, s.version)
	if err != nil {
		return "", err
	}
	list, err := entries(text)
	if err != nil {
		return "", err
	}
	var out strings.Builder
	fmt.Fprintf(&out, "# shaper %s\n\n", s.version)
	fmt.Fprintf(&out, "`apt-get install ./shaper_%s-1_amd64.deb` installs it on Debian and Ubuntu. "+
		"[INSTALL](%s/blob/v%[1]s/docs/INSTALL.md) has other ways, and how to verify files by SHA256SUMS.\n",
		s.version, repository)
	for _, group := range []struct {
		title       string
		forPrograms bool
	}{{"For operators", false}, {"For programs that use the Go packages", true}} {
		writeGroup(&out, group.title, list, group.forPrograms)
	}
	return rebase(out.String(), s.version), nil
}

// writeGroup writes the entries for one kind of users, below the headings of the changelog.
func writeGroup(out *strings.Builder, title string, list []entry, forPrograms bool) {
	kind := ""
	for _, e := range list {
		if e.forPrograms() != forPrograms {
			continue
		}
		if kind == "" {
			fmt.Fprintf(out, "\n## %s\n", title)
		}
		if e.kind != kind {
			kind = e.kind
			fmt.Fprintf(out, "\n### %s\n\n", kind)
		}
		fmt.Fprintln(out, e.text)
	}
}

// rebase makes links to files of the repository absolute.
func rebase(text, version string) string {
	return localLink.ReplaceAllString(text, fmt.Sprintf("](%s/blob/v%s/$1$2)", repository, version))
}

func (s *source) writeNotes() (string, error) {
	text, err := s.notes()
	if err != nil {
		return "", err
	}
	path := filepath.Join(s.out, fmt.Sprintf("shaper_%s_notes.md", s.version))
	return path, os.WriteFile(path, []byte(text), 0o644)
}

// writeSums writes the checksums of all files, as sha256sum does.
func (s *source) writeSums() (string, error) {
	entries, err := os.ReadDir(s.out)
	if err != nil {
		return "", err
	}
	if len(entries) == 0 {
		return "", errors.New("no files")
	}
	var out strings.Builder
	for _, e := range entries {
		text, err := os.ReadFile(filepath.Join(s.out, e.Name()))
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&out, "%x  %s\n", sha256.Sum256(text), e.Name())
	}
	path := filepath.Join(s.out, "SHA256SUMS")
	return path, os.WriteFile(path, []byte(out.String()), 0o644)
}
