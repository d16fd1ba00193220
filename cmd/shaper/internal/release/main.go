// Command release writes packages and the other files of a release to dist. It needs the binaries that
// make binaries builds.
//
//	release deb                 Debian packages
//	release image               an OCI image
//	release check [-run] 1.2.3  checks that the commit can become this version
//	release release 1.2.3       all files of a version
//
// It publishes nothing: it neither pushes nor tags. All files depend only on the commit.
package main

import (
	"debug/buildinfo"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) == 0 {
		return errors.New("usage: release deb, image, check VERSION or release VERSION")
	}
	flags := flag.NewFlagSet(args[0], flag.ContinueOnError)
	test := flags.Bool("run", false, "run .ci/run unless it has passed for this commit")
	out := flags.String("out", "dist", "`directory` of the files")
	arch := flags.String("arch", "", "`architecture` of a package; all by default")
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	s, err := newSource(".", *out, flags.Arg(0))
	if err != nil {
		return err
	}
	if *arch != "" {
		s.architectures = []string{*arch}
	}
	switch args[0] {
	case "deb":
		return s.writeEach(s.writeDeb)
	case "image":
		return s.write(s.writeImage)
	case "check":
		return s.check(*test)
	case "release":
		return s.writeRelease()
	default:
		return fmt.Errorf("unknown command %q", args[0])
	}
}

// write writes one file, and prints its path.
func (s *source) write(file func() (string, error)) error {
	if err := os.MkdirAll(s.out, 0o755); err != nil {
		return err
	}
	path, err := file()
	if err != nil {
		return err
	}
	fmt.Println(path)
	return nil
}

// writeEach writes a file for each architecture.
func (s *source) writeEach(file func(arch string) (string, error)) error {
	for _, arch := range s.architectures {
		if err := s.write(func() (string, error) { return file(arch) }); err != nil {
			return err
		}
	}
	return nil
}

// removeFormer removes the files that releases and packages wrote before. It removes none if the
// directory has others.
func (s *source) removeFormer() error {
	entries, err := os.ReadDir(s.out)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, e := range entries {
		if e.IsDir() || !strings.HasPrefix(e.Name(), "shaper_") && e.Name() != "SHA256SUMS" {
			return fmt.Errorf("%s contains %s, which is no file of a release: remove it, or use another directory",
				s.out, e.Name())
		}
	}
	for _, e := range entries {
		if err := os.Remove(filepath.Join(s.out, e.Name())); err != nil {
			return err
		}
	}
	return nil
}

// writeRelease writes all files of a version.
func (s *source) writeRelease() error {
	if s.unreleased {
		return errors.New("no version: make release VERSION=x.y.z")
	}
	for _, arch := range s.architectures {
		info, err := buildinfo.ReadFile(s.binary(arch))
		if err != nil {
			return err
		}
		if err := s.ownBuild(info); err != nil {
			return fmt.Errorf("%s: %w", s.binary(arch), err)
		}
	}
	if err := s.removeFormer(); err != nil {
		return err
	}
	for _, file := range []func(string) (string, error){s.writeDeb, s.writeArchive, s.writeSBOM} {
		if err := s.writeEach(file); err != nil {
			return err
		}
	}
	for _, file := range []func() (string, error){s.writeImage, s.writeNotes, s.writeSums} {
		if err := s.write(file); err != nil {
			return err
		}
	}
	fmt.Printf("To publish: git tag -a v%s, git push origin v%[1]s, and upload the files of %s\n",
		s.version, s.out)
	return nil
}
