package safedir

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// UnsafeError reports that another user controls a part of a path.
type UnsafeError struct {
	Path   string // of the part
	Reason string // with advice
}

func (e *UnsafeError) Error() string { return e.Path + " " + e.Reason }

// ofSystemd reports whether a link from a path to a target is made by systemd for a service with
// DynamicUser, such as from /var/lib/shaper/eth0 to ../private/shaper/eth0.
func ofSystemd(path, target string) bool {
	if !filepath.IsAbs(target) {
		target = filepath.Join(filepath.Dir(path), target)
	}
	for i, c := range path {
		if c == '/' && filepath.Clean(target) == path[:i]+"/private"+path[i:] {
			return true
		}
	}
	return false
}

// maxLinks is the number of symbolic links followed by the kernel in a path.
const maxLinks = 40

// walk follows a path from directory to directory, by descriptors.
type walk struct {
	rules   Rules
	trusted []uint32 // users who may own parts of the path
	at      *os.File // the directory so far; its name is its path
	stat    unix.Stat_t
	links   int
}

// from makes a directory the one so far.
func (w *walk) from(path string) error {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return w.move(fd, path)
}

// move makes the directory of a descriptor the one so far.
func (w *walk) move(fd int, path string) error {
	if w.at != nil {
		w.at.Close()
	}
	w.at = os.NewFile(uintptr(fd), path)
	return os.NewSyscallError("fstat", unix.Fstat(fd, &w.stat))
}

// names returns the names in a path.
func names(path string) []string {
	return slices.DeleteFunc(strings.Split(path, "/"),
		func(name string) bool { return name == "" || name == "." })
}

// follow goes to the end of an absolute path.
func (w *walk) follow(path string) error {
	rest := names(path)
	for {
		if err := w.check(len(rest) == 0); err != nil || len(rest) == 0 {
			return err
		}
		target, err := w.step(rest[0], len(rest) == 1)
		if err != nil {
			return err
		}
		if filepath.IsAbs(target) {
			if err := w.from("/"); err != nil {
				return err
			}
		}
		rest = append(names(target), rest[1:]...)
	}
}

// step goes to a directory below, or returns the target of a symbolic link.
func (w *walk) step(name string, last bool) (target string, err error) {
	path := filepath.Join(w.at.Name(), name)
	open := func(kind int) (int, error) {
		return unix.Openat(int(w.at.Fd()), name, kind|unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	}
	fd, err := open(unix.O_DIRECTORY) // which mounts what an automount point is for
	if err == unix.ENOENT && w.rules&Create != 0 {
		if err = unix.Mkdirat(int(w.at.Fd()), name, 0o700); err != nil && err != unix.EEXIST {
			return "", &fs.PathError{Op: "mkdir", Path: path, Err: err}
		}
		_ = syncAt(int(w.at.Fd())) // who cannot read the directory cannot sync it
		fd, err = open(unix.O_DIRECTORY)
	}
	if err == unix.ENOTDIR {
		fd, err = open(0)
	}
	if err != nil {
		return "", &fs.PathError{Op: "open", Path: path, Err: err}
	}
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil || stat.Mode&unix.S_IFMT != unix.S_IFLNK {
		if err == nil {
			err = w.move(fd, path)
		}
		return "", err
	}
	defer unix.Close(fd)
	text := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(fd, "", text)
	if err != nil {
		return "", &fs.PathError{Op: "readlink", Path: path, Err: err}
	}
	target = string(text[:n])
	if err := w.trust(path, stat.Uid); err != nil {
		return "", err
	}
	if last && w.rules&Link == 0 && !ofSystemd(path, target) {
		return "", &UnsafeError{
			path, fmt.Sprintf("is a symbolic link: give the directory itself, %q", target),
		}
	}
	if w.links++; w.links > maxLinks {
		return "", &fs.PathError{Op: "open", Path: path, Err: unix.ELOOP}
	}
	return target, nil
}

// check refuses the directory so far if other users control it.
func (w *walk) check(last bool) error {
	path := w.at.Name()
	if w.stat.Mode&unix.S_IFMT != unix.S_IFDIR {
		return &fs.PathError{Op: "open", Path: path, Err: unix.ENOTDIR}
	}
	if err := w.trust(path, w.stat.Uid); err != nil {
		return err
	}
	sticky := w.stat.Mode&unix.S_ISVTX != 0 && (!last || w.rules&Shared != 0)
	if w.stat.Mode&0o022 == 0 || sticky {
		return nil
	}
	mode := fs.ModeDir | fs.FileMode(w.stat.Mode&0o777)
	if w.stat.Mode&unix.S_ISVTX != 0 {
		mode |= fs.ModeSticky
	}
	return &UnsafeError{path, fmt.Sprintf(
		"is writable by other users (user %d, mode %v): inspect its contents, then chmod go-w it, or choose another directory",
		w.stat.Uid, mode)}
}

// trust refuses a part of the path owned by another user.
func (w *walk) trust(path string, uid uint32) error {
	if slices.Contains(w.trusted, uid) {
		return nil
	}
	return &UnsafeError{path, fmt.Sprintf(
		"belongs to user %d, who controls what is there: choose a directory that belongs to user %d or root, below directories of the same",
		uid, os.Geteuid())}
}
