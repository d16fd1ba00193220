// Command thirdparty writes the licenses of all parts of a program: its modules, the Go
// standard library, and embedded files.
//
//	thirdparty -o THIRD_PARTY ./cmd/shaper Name=folder ...
//
// Name is a part that is not a Go module; folder has its license. The command needs no
// network, because go list reads the module cache.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

func main() {
	out := flag.String("o", "THIRD_PARTY", "`file` to write")
	flag.Parse()
	if err := run(*out, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "thirdparty:", err)
		os.Exit(1)
	}
}

func run(out string, args []string) error {
	if len(args) == 0 {
		return errors.New("usage: thirdparty [-o FILE] PACKAGE [NAME=FOLDER...]")
	}
	parts, err := linked(args[0])
	if err != nil {
		return err
	}
	for _, arg := range args[1:] {
		name, folder, ok := strings.Cut(arg, "=")
		if !ok {
			return fmt.Errorf("%q is not Name=folder", arg)
		}
		p := &part{name: name}
		if err := p.add(folder, folder); err != nil {
			return err
		}
		parts = append(parts, p)
	}
	var text bytes.Buffer
	if err := write(&text, parts); err != nil {
		return err
	}
	return os.WriteFile(out, text.Bytes(), 0o644)
}

// part is a part of the program, with its license files.
type part struct {
	name  string // name, and version if it has one
	files []licenseFile
}

type licenseFile struct{ path, text string }

// architectures are the supported architectures. A part may be linked on one of them only.
var architectures = []string{"amd64", "arm64"}

// linked returns the standard library and the modules of a program, sorted by name.
func linked(program string) ([]*part, error) {
	modules := map[string]*part{}
	var goroot string
	for _, arch := range architectures {
		list := exec.Command("go", "list", "-deps", "-json=Dir,Standard,Root,Module", program)
		list.Env = append(os.Environ(), "GOOS=linux", "GOARCH="+arch, "CGO_ENABLED=0")
		list.Stderr = os.Stderr
		packages, err := list.Output()
		if err != nil {
			return nil, fmt.Errorf("go list: %w", err)
		}
		for d := json.NewDecoder(bytes.NewReader(packages)); d.More(); {
			var p struct {
				Dir, Root string
				Standard  bool
				Module    *struct {
					Path, Version, Dir string
					Main               bool
				}
			}
			if err := d.Decode(&p); err != nil {
				return nil, err
			}
			switch {
			case p.Standard:
				goroot = p.Root
			case p.Module != nil && !p.Module.Main:
				m := modules[p.Module.Path]
				if m == nil {
					m = &part{name: p.Module.Path + " " + p.Module.Version}
					modules[p.Module.Path] = m
				}
				if err := m.add(p.Module.Dir, p.Dir); err != nil {
					return nil, err
				}
			}
		}
	}
	library := &part{name: "The Go standard library"}
	parts := []*part{library}
	for _, m := range modules {
		parts = append(parts, m)
	}
	slices.SortFunc(parts[1:], func(a, b *part) int { return strings.Compare(a.name, b.name) })
	return parts, library.add(goroot, goroot)
}

var isLicense = regexp.MustCompile(`(?i)^(un)?(licen[cs]e|copying|notice|patents)([.-].*)?$`)

// add adds the license files of a folder and of its parents up to root.
func (p *part) add(root, folder string) error {
	for ; strings.HasPrefix(folder, root); folder = filepath.Dir(folder) {
		entries, err := os.ReadDir(folder)
		if err != nil {
			return err
		}
		for _, e := range entries {
			if !e.Type().IsRegular() || !isLicense.MatchString(e.Name()) ||
				strings.HasSuffix(e.Name(), ".go") {
				continue
			}
			path, err := filepath.Rel(root, filepath.Join(folder, e.Name()))
			if err != nil {
				return err
			}
			if slices.ContainsFunc(p.files, func(f licenseFile) bool { return f.path == path }) {
				continue
			}
			text, err := os.ReadFile(filepath.Join(folder, e.Name()))
			if err != nil {
				return err
			}
			p.files = append(p.files, licenseFile{path, clean(string(text))})
		}
	}
	return nil
}

// clean removes differences between checkouts: carriage returns, spaces at the ends of
// lines, and empty lines around the text.
func clean(text string) string {
	var out strings.Builder
	for line := range strings.Lines(text) {
		out.WriteString(strings.TrimRight(line, " \t\r\n") + "\n")
	}
	return strings.Trim(out.String(), "\n") + "\n"
}

// write writes a list of all parts. Then it writes each license once, below the names of its
// parts. It returns an error if a part has no license.
func write(w io.Writer, parts []*part) error {
	fmt.Fprint(w, "The program shaper contains these parts. Their licenses follow.\n\n")
	owners := map[string][]string{}
	var texts []string // in order of their first owner
	var errs []error
	for _, p := range parts {
		fmt.Fprintf(w, "    %s\n", p.name)
		if len(p.files) == 0 {
			errs = append(errs, fmt.Errorf("%s has no license file", p.name))
		}
		slices.SortFunc(p.files, func(a, b licenseFile) int { return strings.Compare(a.path, b.path) })
		for _, f := range p.files {
			if owners[f.text] == nil {
				texts = append(texts, f.text)
			}
			owners[f.text] = append(owners[f.text], p.name+": "+f.path)
		}
	}
	for _, text := range texts {
		fmt.Fprintf(w, "\n%s\n", strings.Repeat("=", 80))
		for _, owner := range owners[text] {
			fmt.Fprintln(w, owner)
		}
		fmt.Fprintf(w, "%s\n\n%s", strings.Repeat("=", 80), text)
	}
	return errors.Join(errs...)
}
