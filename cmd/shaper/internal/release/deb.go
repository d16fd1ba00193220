package main

import (
	"bytes"
	"crypto/md5"
	"embed"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"text/template"
	"time"
)

// debian holds control files: templates, and the scripts that dpkg runs.
//
//go:embed debian
var debian embed.FS

const documents = "usr/share/doc/shaper"

// writeDeb writes a Debian package: the files of make install with the names and the compression that
// Debian's policy asks for, and the control files.
func (s *source) writeDeb(arch string) (string, error) {
	dir, err := s.install(arch, "/usr")
	defer os.RemoveAll(dir)
	if err != nil {
		return "", err
	}
	if err := s.debianize(dir, arch); err != nil {
		return "", err
	}
	if err := s.normalize(dir); err != nil {
		return "", err
	}
	path := filepath.Join(s.out, fmt.Sprintf("shaper_%s-1_%s.deb", s.version, arch))
	part := path + ".part"
	defer os.Remove(part)
	command := exec.Command("dpkg-deb", "--root-owner-group", "-Zxz", "--build", dir, part)
	command.Env = append(os.Environ(), fmt.Sprint("SOURCE_DATE_EPOCH=", s.date.Unix()),
		"DPKG_DEB_THREADS_MAX=1") // the number of threads changes the output of xz
	if out, err := command.CombinedOutput(); err != nil {
		return "", fmt.Errorf("dpkg-deb: %w: %s", err, out)
	}
	return path, os.Rename(part, path)
}

// debianize turns installed files into those of a package.
func (s *source) debianize(dir, arch string) error {
	pages, err := filepath.Glob(filepath.Join(dir, "usr/share/man/man?/*"))
	if err != nil {
		return err
	}
	for _, page := range pages {
		if err := compressFile(page, page+".gz"); err != nil {
			return err
		}
	}
	docs := filepath.Join(dir, documents)
	changes := filepath.Join(docs, "CHANGELOG.md")
	if err := compressFile(changes, filepath.Join(docs, "changelog.gz")); err != nil {
		return err
	}
	if err := os.Remove(filepath.Join(docs, "LICENSE")); err != nil { // copyright names it
		return err
	}
	if err := s.linkToSource(docs); err != nil {
		return err
	}
	size, err := installedSize(dir)
	if err != nil {
		return err
	}
	about := map[string]string{
		"Version": s.version + "-1", "Arch": arch, "Size": fmt.Sprint(size), "Repository": repository,
		"Date": s.date.Format(time.RFC1123Z), "Released": s.version, "Commit": s.commit,
	}
	for name, path := range map[string]string{
		"copyright": documents + "/copyright", "changelog": documents + "/changelog.Debian",
		"overrides": "usr/share/lintian/overrides/shaper", "control": "DEBIAN/control",
		"postinst": "DEBIAN/postinst", "prerm": "DEBIAN/prerm", "postrm": "DEBIAN/postrm",
	} {
		text, err := template.ParseFS(debian, "debian/"+name)
		if err != nil {
			return err
		}
		var out bytes.Buffer
		if err := text.Execute(&out, about); err != nil {
			return err
		}
		if err := writeFile(filepath.Join(dir, path), out.Bytes()); err != nil {
			return err
		}
	}
	for _, script := range []string{"postinst", "prerm", "postrm"} {
		if err := os.Chmod(filepath.Join(dir, "DEBIAN", script), 0o755); err != nil {
			return err
		}
	}
	changes = filepath.Join(docs, "changelog.Debian")
	if err := compressFile(changes, changes+".gz"); err != nil {
		return err
	}
	return writeLists(dir)
}

// compressFile replaces a file by a compressed one.
func compressFile(from, to string) error {
	text, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	if text, err = compress(text); err != nil {
		return err
	}
	if err := os.WriteFile(to, text, 0o644); err != nil {
		return err
	}
	return os.Remove(from)
}

func writeFile(path string, text []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, text, 0o644)
}

// installedSize returns the size of all files as dpkg counts it, KiB.
func installedSize(dir string) (kib int64, err error) {
	err = filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err != nil || e.IsDir() {
			kib++
			return err
		}
		kib += (info.Size() + 1023) / 1024
		return nil
	})
	return kib, err
}

// writeLists writes the lists of configuration files and of checksums.
func writeLists(dir string) error {
	var conffiles, sums strings.Builder
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(dir, path)
		switch {
		case err != nil:
			return err
		case name == "DEBIAN":
			return filepath.SkipDir
		case e.IsDir():
			return nil
		case strings.HasPrefix(name, "etc/"):
			fmt.Fprintf(&conffiles, "/%s\n", name)
			return nil
		}
		text, err := os.ReadFile(path)
		fmt.Fprintf(&sums, "%x  %s\n", md5.Sum(text), name)
		return err
	})
	if err != nil {
		return err
	}
	if err := writeFile(filepath.Join(dir, "DEBIAN/conffiles"), []byte(conffiles.String())); err != nil {
		return err
	}
	return writeFile(filepath.Join(dir, "DEBIAN/md5sums"), []byte(sums.String()))
}
