package main

import (
	"bytes"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// fixture returns a source with the files of this checkout, and scripts in place of the binaries.
func fixture(t *testing.T, version string) *source {
	t.Helper()
	for _, command := range []string{"make", "dpkg-deb"} {
		if _, err := exec.LookPath(command); err != nil {
			t.Skipf("needs %s", command)
		}
	}
	root := t.TempDir()
	for _, name := range []string{"Makefile", "LICENSE", "THIRD_PARTY", "CHANGELOG.md", "README.md", "docs", "testdata"} {
		if out, err := exec.Command("cp", "-R", "../../../../"+name, root).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	for _, name := range []string{
		"bin/shaper", "bin/amd64/shaper", "bin/arm64/shaper", "bin/man/shaper.1", "bin/man/shaper-policy.5",
		"bin/completions/shaper", "bin/completions/_shaper", "bin/completions/shaper.fish",
	} {
		if err := writeFile(filepath.Join(root, name), []byte("#!/bin/sh\n: "+name+"\n")); err != nil {
			t.Fatal(err)
		}
	}
	s, err := newSource(root, t.TempDir(), version)
	if err != nil {
		t.Fatal(err)
	}
	s.date, s.commit = time.Unix(1_800_000_000, 0).UTC(), strings.Repeat("0123456789", 4)
	return s
}

// output runs a command, and returns its output.
func output(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %v: %v: %s", name, args, err, out)
	}
	return string(out)
}

// TestDeb checks the files of a package, and that nothing in them names another prefix.
func TestDeb(t *testing.T) {
	t.Parallel()
	s := fixture(t, "1.2.3")
	path, err := s.writeDeb("arm64")
	if err != nil {
		t.Fatal(err)
	}
	if want := filepath.Join(s.out, "shaper_1.2.3-1_arm64.deb"); path != want {
		t.Errorf("wrote %s, want %s", path, want)
	}
	got := output(t, "dpkg-deb", "-f", path, "Version", "Architecture")
	if got != "Version: 1.2.3-1\nArchitecture: arm64\n" {
		t.Errorf("control: %s", got)
	}
	dir := t.TempDir()
	output(t, "dpkg-deb", "-R", path, dir)
	for _, name := range []string{
		"usr/share/man/man1/shaper.1.gz", "usr/share/man/man5/shaper-policy.5.gz",
		"usr/share/bash-completion/completions/shaper", "usr/share/zsh/vendor-completions/_shaper",
		"usr/share/fish/vendor_completions.d/shaper.fish", "usr/share/doc/shaper/copyright",
		"usr/share/doc/shaper/changelog.gz", "usr/share/doc/shaper/changelog.Debian.gz",
		"usr/share/doc/shaper/THIRD_PARTY", "usr/share/doc/shaper/docs/SERVE.md",
		"usr/share/doc/shaper/docs/uplink.yaml", "usr/share/doc/shaper/testdata/pcaps/bursts.pcap",
		"usr/share/doc/shaper/docs/recipes/dhcp/lease", "etc/shaper/shaper.yaml",
		"usr/lib/systemd/system/shaper.service", "usr/lib/systemd/system/shaper@.service", "DEBIAN/md5sums",
	} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			t.Error(err)
		}
	}
	binary, err := os.ReadFile(filepath.Join(dir, "usr/bin/shaper"))
	if err != nil || !strings.Contains(string(binary), "arm64") {
		t.Errorf("the binary is that of another architecture: %s (%v)", binary, err)
	}
	text, err := os.ReadFile(filepath.Join(dir, "DEBIAN/conffiles"))
	if string(text) != "/etc/shaper/shaper.yaml\n" {
		t.Errorf("conffiles: %s (%v)", text, err)
	}
	for _, script := range []string{"postinst", "prerm", "postrm"} {
		output(t, "sh", "-n", filepath.Join(dir, "DEBIAN", script))
	}
	for _, part := range []string{"usr/lib", "etc", "DEBIAN"} {
		err := filepath.WalkDir(filepath.Join(dir, part), func(path string, e fs.DirEntry, err error) error {
			if err != nil || e.IsDir() {
				return err
			}
			text, err := os.ReadFile(path)
			if strings.Contains(string(text), "/usr/local") || strings.Contains(string(text), "{{") {
				t.Errorf("%s names /usr/local, or is a template", path)
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	}
	checkLinks(t, filepath.Join(dir, documents), "v1.2.3")
	if got := output(t, "dpkg-deb", "-c", path); !strings.Contains(got, "-rwxr-xr-x root/root") ||
		strings.Contains(got, "/usr/share/doc/shaper/docs/etc") {
		t.Errorf("files:\n%s", got)
	}
}

// TestSameBytes checks that two packages of one commit are equal, whatever the dates and modes of the
// checkout's files.
func TestSameBytes(t *testing.T) {
	t.Parallel()
	files := map[string][]byte{}
	for round := range 2 {
		s := fixture(t, "1.2.3")
		for _, name := range []string{"docs/SERVE.md", "docs/etc/shaper.yaml", "bin/man/shaper.1"} {
			path := filepath.Join(s.root, name)
			when := time.Unix(1_700_000_000+1_000_000_000*int64(round), 0)
			if err := os.Chtimes(path, when, when); err != nil {
				t.Fatal(err)
			}
			if err := os.Chmod(path, []os.FileMode{0o600, 0o664}[round]); err != nil {
				t.Fatal(err)
			}
		}
		for _, file := range []func() (string, error){
			func() (string, error) { return s.writeDeb("amd64") },
			func() (string, error) { return s.writeArchive("amd64") },
			s.writeImage,
		} {
			path, err := file()
			if err != nil {
				t.Fatal(err)
			}
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			name := filepath.Base(path)
			if before := files[name]; round > 0 && !bytes.Equal(before, text) {
				t.Errorf("%s differs in the second build", name)
			}
			files[name] = text
		}
	}
	if len(files) != 3 {
		t.Errorf("%d files, want 3", len(files))
	}
}

// TestArchive checks that the archive has the files of make install below its prefix.
func TestArchive(t *testing.T) {
	t.Parallel()
	s := fixture(t, "1.2.3")
	path, err := s.writeArchive("amd64")
	if err != nil {
		t.Fatal(err)
	}
	list := output(t, "tar", "-tzf", path)
	for _, name := range []string{
		"bin/shaper", "share/man/man1/shaper.1", "lib/systemd/system/shaper.service",
	} {
		if !strings.Contains("\n"+list, "\n"+name+"\n") {
			t.Errorf("no %s in:\n%s", name, list)
		}
	}
	dir := t.TempDir()
	output(t, "tar", "-xzf", path, "-C", dir)
	checkLinks(t, filepath.Join(dir, "share/doc/shaper"), "v1.2.3")
}

// TestRemoveFormer removes the files of a release, but none of a directory with others.
func TestRemoveFormer(t *testing.T) {
	t.Parallel()
	s := &source{out: filepath.Join(t.TempDir(), "dist")}
	if err := s.removeFormer(); err != nil {
		t.Errorf("without a directory: %v", err)
	}
	names := func() (out []string) {
		entries, err := os.ReadDir(s.out)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			out = append(out, e.Name())
		}
		return out
	}
	for _, other := range []string{"shaper.yaml", "shaper_notes/x", ""} {
		for _, name := range []string{"shaper_1.0.0-1_amd64.deb", "SHA256SUMS", other} {
			if name == "" {
				continue
			}
			if err := writeFile(filepath.Join(s.out, name), []byte("x")); err != nil {
				t.Fatal(err)
			}
		}
		before := len(names())
		err := s.removeFormer()
		want := before
		if other == "" {
			want = 0
		}
		if left := len(names()); left != want || (err == nil) != (want == 0) {
			t.Errorf("with %q: %d of %d files left, error %v", other, left, before, err)
		}
		if other != "" {
			if err := os.RemoveAll(s.out); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// checkLinks checks that all links of installed pages lead to installed files, or to files of the source at
// a revision.
func checkLinks(t *testing.T, dir, revision string) {
	t.Helper()
	links := regexp.MustCompile(`\]\(([^)\s]+)\)`)
	source := repository + "/blob/" + revision + "/"
	local, absolute := 0, 0
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".md" {
			return err
		}
		text, err := os.ReadFile(path)
		for _, link := range links.FindAllStringSubmatch(string(text), -1) {
			target, _, _ := strings.Cut(link[1], "#")
			name, inSource := strings.CutPrefix(target, source)
			switch {
			case inSource:
				target = filepath.Join("../../../..", name)
				absolute++
			case target == "" || strings.Contains(target, ":"):
				continue
			default:
				target = filepath.Join(filepath.Dir(path), target)
				local++
			}
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s: link %s: %v", path, link[1], err)
			}
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	if local < 300 || absolute < 10 {
		t.Errorf("%d links to installed files, %d to the source", local, absolute)
	}
}
