package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

const repository = "https://github.com/a-seed-32e5a53f/shaper"

// source is the commit that is packed.
type source struct {
	root, out  string // directories: of the checkout, of the written files
	version    string // without v
	unreleased bool   // the version names a commit after a release
	commit     string // "" outside of a clone
	date       time.Time
	changelog  string

	architectures []string // by the names that Go, Debian and OCI share
}

// dated matches the heading of a released version.
var dated = regexp.MustCompile(`(?m)^## \[(\d+\.\d+\.\d+)\] - (\d{4}-\d{2}-\d{2})$`)

// newSource reads a checkout. Without a version, it is the latest of the changelog and the commit.
// SOURCE_DATE_EPOCH replaces the date of the commit. Outside of a clone it is that of the version.
func newSource(root, out, version string) (*source, error) {
	s := &source{root: root, out: out, version: strings.TrimPrefix(version, "v")}
	s.architectures = []string{"amd64", "arm64"}
	text, err := os.ReadFile(filepath.Join(root, "CHANGELOG.md"))
	if err != nil {
		return nil, err
	}
	s.changelog = string(text)
	latest := dated.FindStringSubmatch(s.changelog)
	if latest == nil {
		return nil, fmt.Errorf("CHANGELOG.md has no heading such as ## [1.2.3] - 2026-01-31")
	}
	if s.date, err = time.Parse(time.DateOnly, latest[2]); err != nil {
		return nil, err
	}
	if about, err := s.git("log", "-1", "--format=%H %ct"); err == nil {
		commit, seconds, _ := strings.Cut(about, " ")
		s.commit = commit
		if err := s.setDate(seconds); err != nil {
			return nil, err
		}
	}
	if epoch := os.Getenv("SOURCE_DATE_EPOCH"); epoch != "" {
		if err := s.setDate(epoch); err != nil {
			return nil, fmt.Errorf("SOURCE_DATE_EPOCH: %w", err)
		}
	}
	if s.version == "" {
		s.unreleased, s.version = true, latest[1]
		if s.commit != "" {
			s.version += fmt.Sprintf("+git%s.%s", s.date.Format("20060102"), s.commit[:8])
		}
	}
	return s, nil
}

func (s *source) setDate(seconds string) error {
	n, err := strconv.ParseInt(seconds, 10, 64)
	s.date = time.Unix(n, 0).UTC()
	return err
}

// git returns the output of a command of git, without the end of the line.
func (s *source) git(args ...string) (string, error) {
	out, err := exec.Command("git", append([]string{"-C", s.root}, args...)...).Output()
	return strings.TrimSpace(string(out)), err
}

// binary returns the path of a built command.
func (s *source) binary(arch string) string { return filepath.Join(s.root, "bin", arch, "shaper") }

// install runs make install, and returns the directory with the files. All of them have the mode of a
// plain file or a program, and the date of the source.
func (s *source) install(arch, prefix string) (dir string, err error) {
	if _, err := os.Stat(s.binary(arch)); err != nil {
		return "", fmt.Errorf("%w: make binaries builds it", err)
	}
	if dir, err = os.MkdirTemp("", "shaper-release-"); err != nil {
		return "", err
	}
	binary, err := filepath.Abs(s.binary(arch))
	if err != nil {
		return dir, err
	}
	command := exec.Command("make", "-s", "-C", s.root, "install",
		"DESTDIR="+dir, "PREFIX="+prefix, "BINARY="+binary)
	if out, err := command.CombinedOutput(); err != nil {
		return dir, fmt.Errorf("make install: %w: %s", err, out)
	}
	return dir, nil
}

// normalize sets the mode and the date of all files below a directory.
func (s *source) normalize(dir string) error {
	return filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		mode := os.FileMode(0o644)
		if info.Mode()&0o100 != 0 { // directories, too
			mode = 0o755
		}
		if err := os.Chmod(path, mode); err != nil {
			return err
		}
		return os.Chtimes(path, s.date, s.date)
	})
}

// writeArchive writes what make install puts below /usr/local.
func (s *source) writeArchive(arch string) (string, error) {
	dir, err := s.install(arch, "/usr/local")
	defer os.RemoveAll(dir)
	if err != nil {
		return "", err
	}
	if err := s.linkToSource(filepath.Join(dir, "usr/local/share/doc/shaper")); err != nil {
		return "", err
	}
	var files bytes.Buffer
	if err := s.pack(&files, filepath.Join(dir, "usr/local")); err != nil {
		return "", err
	}
	packed, err := compress(files.Bytes())
	if err != nil {
		return "", err
	}
	path := filepath.Join(s.out, fmt.Sprintf("shaper_%s_linux_%s.tar.gz", s.version, arch))
	return path, os.WriteFile(path, packed, 0o644)
}

// pack writes all files of a directory to a tar archive, as files of root with the date of the source.
func (s *source) pack(w io.Writer, dir string) error {
	if err := s.normalize(dir); err != nil {
		return err
	}
	archive := tar.NewWriter(w)
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		header, err := tar.FileInfoHeader(info, "")
		if err != nil {
			return err
		}
		if header.Name, err = filepath.Rel(dir, path); err != nil {
			return err
		}
		if e.IsDir() {
			header.Name += "/"
		}
		header.Uid, header.Gid, header.Uname, header.Gname = 0, 0, "", ""
		if err := archive.WriteHeader(header); err != nil || e.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		if err == nil {
			_, err = archive.Write(text)
		}
		return err
	})
	if err != nil {
		return err
	}
	return archive.Close()
}

// compress compresses with gzip, without a name and a date.
func compress(text []byte) ([]byte, error) {
	var out bytes.Buffer
	w, err := gzip.NewWriterLevel(&out, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	if _, err := w.Write(text); err != nil {
		return nil, err
	}
	err = w.Close()
	return out.Bytes(), err
}
