package safedir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// nobody is a user without files.
const nobody = 65534

func must(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// part is a directory, or a link if it has a target.
type part struct {
	path   string
	mode   os.FileMode
	owner  int // 0: this user
	target string
}

func (p part) make(t *testing.T, base string) {
	t.Helper()
	path := filepath.Join(base, p.path)
	if p.target != "" {
		must(t, os.Symlink(strings.ReplaceAll(p.target, "BASE", base), path))
	} else {
		must(t, os.Mkdir(path, 0o700), os.Chmod(path, p.mode))
	}
	if p.owner != 0 {
		must(t, os.Lchown(path, p.owner, p.owner))
	}
}

// TestOpen opens directories of this user and of others. Those who could replace or write a directory
// are listed by hand.
func TestOpen(t *testing.T) {
	sticky := os.ModeSticky
	for name, c := range map[string]struct {
		parts []part
		path  string
		rules Rules
		want  string // part of the error
	}{
		"ours":                      {[]part{{path: "a", mode: 0o700}}, "a", 0, ""},
		"others may read":           {[]part{{path: "a", mode: 0o755}}, "a", 0, ""},
		"missing":                   {nil, "a", 0, "no such file or directory"},
		"made":                      {nil, "a/b/c", Create, ""},
		"a group may write":         {[]part{{path: "a", mode: 0o770}}, "a", 0, "/a is writable by other users (user "},
		"all may write":             {[]part{{path: "a", mode: 0o702}}, "a", 0, "mode drwx----w-"},
		"a group may write above":   {[]part{{path: "a", mode: 0o770}, {path: "a/b", mode: 0o700}}, "a/b", 0, "/a is writable"},
		"made below open":           {[]part{{path: "a", mode: 0o777}}, "a/b", Create, "/a is writable"},
		"sticky":                    {[]part{{path: "a", mode: 0o777 | sticky}}, "a", 0, "/a is writable by other users (user "},
		"sticky, shared":            {[]part{{path: "a", mode: 0o777 | sticky}}, "a", Shared, ""},
		"open, shared":              {[]part{{path: "a", mode: 0o777}}, "a", Shared, "/a is writable"},
		"below sticky":              {[]part{{path: "a", mode: 0o777 | sticky}, {path: "a/b", mode: 0o700}}, "a/b", 0, ""},
		"made below sticky":         {[]part{{path: "a", mode: 0o777 | sticky}}, "a/b", Create, ""},
		"link":                      {[]part{{path: "a", mode: 0o700}, {path: "l", target: "a"}}, "l", 0, `/l is a symbolic link: give the directory itself, "a"`},
		"link, made":                {[]part{{path: "l", target: "a"}}, "l", Create, "/l is a symbolic link"},
		"link, accepted":            {[]part{{path: "a", mode: 0o700}, {path: "l", target: "./a/"}}, "l", Link, ""},
		"of systemd":                {[]part{{path: "private", mode: 0o700}, {path: "private/l", mode: 0o700}, {path: "l", target: "private/l"}}, "l", 0, ""},
		"of systemd, below":         {[]part{{path: "private", mode: 0o700}, {path: "private/a", mode: 0o755}, {path: "private/a/l", mode: 0o700}, {path: "a", mode: 0o755}, {path: "a/l", target: "../private/a/l"}}, "a/l", 0, ""},
		"of systemd, absolute":      {[]part{{path: "private", mode: 0o700}, {path: "private/l", mode: 0o700}, {path: "l", target: "BASE/private/l"}}, "l", 0, ""},
		"of systemd, writable":      {[]part{{path: "private", mode: 0o777}, {path: "private/l", mode: 0o700}, {path: "l", target: "private/l"}}, "l", 0, "/private is writable"},
		"elsewhere in private":      {[]part{{path: "private", mode: 0o700}, {path: "private/b", mode: 0o755}, {path: "private/b/l", mode: 0o700}, {path: "a", mode: 0o755}, {path: "a/l", target: "../private/b/l"}}, "a/l", 0, "/l is a symbolic link"},
		"like those of systemd":     {[]part{{path: "private", mode: 0o700}, {path: "private/a", mode: 0o700}, {path: "l", target: "private/a"}}, "l", 0, "/l is a symbolic link"},
		"of systemd, another's":     {[]part{{path: "private", mode: 0o700}, {path: "private/l", mode: 0o700}, {path: "l", target: "private/l", owner: nobody}}, "l", 0, "/l belongs to user"},
		"link above":                {[]part{{path: "a", mode: 0o700}, {path: "a/b", mode: 0o700}, {path: "l", target: "a/../a"}}, "l/b", 0, ""},
		"absolute link above":       {[]part{{path: "a", mode: 0o700}, {path: "a/b", mode: 0o700}, {path: "l", target: "BASE/a"}}, "l/b", 0, ""},
		"link to an open directory": {[]part{{path: "a", mode: 0o777}, {path: "a/b", mode: 0o700}, {path: "l", target: "a"}}, "l/b", 0, "/a is writable"},
		"link in a circle":          {[]part{{path: "l", target: "m"}, {path: "m", target: "l"}}, "l/b", 0, "too many levels"},

		"of another":             {[]part{{path: "a", mode: 0o700, owner: nobody}}, "a", 0, fmt.Sprintf("/a belongs to user %d, who controls what is there", nobody)},
		"of another, accepted":   {[]part{{path: "a", mode: 0o700, owner: nobody}}, "a", AnyOwner, ""},
		"above is another's":     {[]part{{path: "a", mode: 0o755, owner: nobody}, {path: "a/b", mode: 0o700}}, "a/b", 0, "/a belongs to user"},
		"above is a third's":     {[]part{{path: "a", mode: 0o755, owner: nobody}, {path: "a/b", mode: 0o700, owner: 1}}, "a/b", AnyOwner, "/a belongs to user"},
		"all of another":         {[]part{{path: "a", mode: 0o755, owner: nobody}, {path: "a/b", mode: 0o700, owner: nobody}}, "a/b", AnyOwner, ""},
		"another's, open":        {[]part{{path: "a", mode: 0o777, owner: nobody}}, "a", AnyOwner, "/a is writable"},
		"another's, sticky":      {[]part{{path: "a", mode: 0o777 | sticky, owner: nobody}}, "a", Shared, "/a belongs to user"},
		"another's below sticky": {[]part{{path: "a", mode: 0o777 | sticky}, {path: "a/b", mode: 0o700, owner: nobody}}, "a/b", 0, "/b belongs to user"},
		"another's link":         {[]part{{path: "a", mode: 0o700}, {path: "s", mode: 0o777 | sticky}, {path: "s/l", target: "../a", owner: nobody}}, "s/l", Link, "/s/l belongs to user"},
		"another's link above":   {[]part{{path: "a", mode: 0o700}, {path: "a/b", mode: 0o700}, {path: "l", target: "a", owner: nobody}}, "l/b", 0, "/l belongs to user"},
	} {
		t.Run(name, func(t *testing.T) {
			base, err := filepath.EvalSymlinks(t.TempDir())
			must(t, err)
			for _, p := range c.parts {
				if p.owner != 0 && os.Geteuid() != 0 {
					t.Skip("needs root, to give files away")
				}
				p.make(t, base)
			}
			d, err := Open(filepath.Join(base, c.path), c.rules)
			if c.want != "" {
				if err == nil || !strings.Contains(err.Error(), c.want) {
					t.Errorf("got %v, want %q", err, c.want)
				}
				return
			}
			must(t, err)
			defer d.Close()
			file, err := d.Open("file", os.O_WRONLY|os.O_CREATE)
			must(t, err)
			file.Close()
			if info, err := os.Stat(filepath.Join(base, c.path, "file")); err != nil || info.Mode() != 0o600 {
				t.Errorf("the file is not there: %v, %v", info, err)
			}
		})
	}
	var unsafe *UnsafeError
	if _, err := Open("/proc/self/status/x", 0); errors.As(err, &unsafe) || err == nil {
		t.Errorf("below a file: got %v", err)
	}
	path := t.TempDir() + "/f"
	must(t, os.WriteFile(path, nil, 0o600))
	if _, err := Open(path, Create); !errors.Is(err, unix.ENOTDIR) {
		t.Errorf("a file: got %v", err)
	}
}

// TestAutomount opens the directory of traces, on which the kernel mounts a file system at the first use.
func TestAutomount(t *testing.T) {
	base, missing := t.TempDir(), make(chan error)
	go func() {
		defer close(missing)
		runtime.LockOSThread() // until the end: the thread has mounts of its own
		err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS)
		if err == nil {
			err = unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
		}
		if err == nil {
			err = unix.Mount("none", base, "debugfs", 0, "")
		}
		path := filepath.Join(base, "tracing")
		if _, e := os.Stat(path); err != nil || e != nil {
			missing <- errors.Join(err, e)
			return
		}
		for name, rules := range map[string]Rules{path: 0, path + "/events": AnyOwner} {
			d, err := Open(name, rules)
			if err != nil {
				t.Error(err)
				continue
			}
			defer d.Close()
			if !d.Exists("enable") && !d.Exists("trace") {
				t.Errorf("%s: nothing is mounted", name)
			}
		}
	}()
	if err := <-missing; err != nil {
		t.Skip("needs root, and debugfs with traces: ", err)
	}
}

// TestFiles opens files that shaper did not make.
func TestFiles(t *testing.T) {
	for name, c := range map[string]struct {
		make    func(path string) error
		foreign bool // the directory is of another user
		ours    bool // the file is accepted
	}{
		"a file":            {make: func(p string) error { return os.WriteFile(p, nil, 0o600) }, ours: true},
		"a directory":       {make: func(p string) error { return os.Mkdir(p, 0o700) }},
		"a link":            {make: func(p string) error { return os.Symlink("/dev/null", p) }},
		"a pipe":            {make: func(p string) error { return unix.Mkfifo(p, 0o600) }},
		"open to a group":   {make: func(p string) error { return errors.Join(os.WriteFile(p, nil, 0o600), os.Chmod(p, 0o620)) }},
		"another's":         {make: func(p string) error { return errors.Join(os.WriteFile(p, nil, 0o600), os.Chown(p, 1, 1)) }},
		"the owner's":       {make: func(p string) error { return errors.Join(os.WriteFile(p, nil, 0o600), os.Chown(p, nobody, 0)) }, foreign: true, ours: true},
		"another's there":   {make: func(p string) error { return errors.Join(os.WriteFile(p, nil, 0o600), os.Chown(p, 1, 1)) }, foreign: true},
		"two names":         {make: func(p string) error { return errors.Join(os.WriteFile(p, nil, 0o600), os.Link(p, p+"2")) }, ours: true},
		"root's, by a link": {make: func(p string) error { return errors.Join(os.WriteFile(p, nil, 0o600), os.Link(p, p+"2")) }, foreign: true},
	} {
		t.Run(name, func(t *testing.T) {
			if os.Geteuid() != 0 {
				t.Skip("needs root, to give files away")
			}
			base := t.TempDir()
			must(t, c.make(filepath.Join(base, "f")))
			if c.foreign {
				must(t, os.Chown(base, nobody, nobody))
			}
			d, err := Open(base, AnyOwner)
			must(t, err)
			defer d.Close()
			for _, flags := range []int{os.O_RDONLY, os.O_RDWR, os.O_WRONLY | os.O_CREATE} {
				f, err := d.Open("f", flags)
				if c.ours != (err == nil) || !c.ours && !errors.Is(err, ErrForeign) {
					t.Errorf("flags %x: got %v", flags, err)
				}
				f.Close()
			}
			f, err := d.Open("new", os.O_WRONLY|os.O_CREATE|os.O_EXCL)
			must(t, err)
			defer f.Close()
			var stat unix.Stat_t
			must(t, unix.Fstat(int(f.Fd()), &stat))
			if want := uint32(d.Owner()); stat.Uid != want {
				t.Errorf("a new file belongs to user %d, want that of the directory, %d", stat.Uid, want)
			}
		})
	}
}

// TestHold gives the name of a held directory to others, and removes it.
func TestHold(t *testing.T) {
	base := t.TempDir()
	path := filepath.Join(base, "d")
	must(t, Hold(path, Create))
	write := func(name string) error {
		d, err := Open(path, 0)
		if err != nil {
			return err
		}
		defer d.Close()
		f, err := d.Open(name+".new", os.O_WRONLY|os.O_CREATE|os.O_EXCL)
		if err != nil {
			return err
		}
		f.Close()
		return errors.Join(d.Rename(name+".new", name), d.Sync())
	}
	exists := func(path string) {
		t.Helper()
		if _, err := os.Lstat(filepath.Join(base, path)); err != nil {
			t.Error(err)
		}
	}
	must(t, write("one"))
	exists("d/one")

	must(t, os.Rename(path, path+"2"), os.Mkdir(filepath.Join(base, "other"), 0o700),
		os.Symlink("other", path))
	must(t, write("two"))
	exists("d2/two")
	if list, err := os.ReadDir(filepath.Join(base, "other")); err != nil || len(list) > 0 {
		t.Errorf("files behind the link: %v, %v", list, err)
	}

	must(t, os.RemoveAll(path+"2"))
	if err := write("three"); err == nil ||
		!strings.Contains(err.Error(),
			"it was removed, and cannot be made again: "+path+" is a symbolic link") {
		t.Errorf("removed, and a link is there: got %v", err)
	}
	must(t, os.Remove(path))
	must(t, write("three"))
	exists("d/three")
	must(t, os.RemoveAll(path), os.Mkdir(path, 0o700))
	must(t, write("four"))
	exists("d/four")
	d, err := Open(path, 0)
	must(t, err)
	if !d.Exists("four") || d.Exists("five") {
		t.Error("Exists is wrong")
	}
	if err := d.Remove("five"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v", err)
	}
	must(t, os.RemoveAll(path))
	f, err := d.Open("six", os.O_WRONLY|os.O_CREATE) // removed since Open
	must(t, err)
	f.Close()
	exists("d/six")
	must(t, os.WriteFile(filepath.Join(path, "four"), nil, 0o600))
	must(t, d.Remove("four"), os.Mkdir(filepath.Join(path, "dir"), 0o700), d.Remove("dir"))
}

func TestRulesHaveNames(t *testing.T) {
	for want, r := range map[string]Rules{
		"none": 0, "create": Create, "any-owner+shared": AnyOwner | Shared, "create+link": Create | Link,
	} {
		if got := r.String(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
