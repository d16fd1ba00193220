package safedir

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// Rules say which directories Open accepts.
type Rules uint8

const (
	// Create makes missing directories, with mode 0700.
	Create Rules = 1 << iota
	// AnyOwner accepts a directory of any user, such as a service's, if nobody but its user, this
	// one and root controls it. Its owner decides what its files contain.
	AnyOwner
	// Shared accepts a sticky directory, such as /tmp: other users can create files there, but not
	// replace ours.
	Shared
	// Link accepts a path ending in a symbolic link. Without it only a link of systemd is accepted.
	Link
)

// String returns the rules joined by plus signs, such as create+shared, or none.
func (r Rules) String() string {
	var names []string
	for i, name := range [...]string{"create", "any-owner", "shared", "link"} {
		if r&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	return cmp.Or(strings.Join(names, "+"), "none")
}

// ErrForeign is the error for a file in a directory that shaper did not make.
var ErrForeign = errors.New("not a file that shaper made")

// Dir is an open directory. Its methods use its descriptor, even if another directory has its name
// by now. The names of files must not contain a slash.
type Dir struct {
	file  *os.File // named by its path
	owner uint32   // user
	ours  bool     // the owner is this user or root
	rules Rules    // by which it was opened
	held  string   // the path given to Hold: Close has no effect; "": not held
}

// Open opens a directory. The error is an *UnsafeError if another user could replace it, replace a
// directory above it, or write to it: all of them must belong to this user or root, and only directories
// above it may be sticky. Symbolic links above it must belong to this user or root, too.
//
// After Hold of the same path, Open returns the directory opened by Hold.
func Open(path string, rules Rules) (*Dir, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	holdings.Lock()
	d, ok := holdings.dirs[path]
	holdings.Unlock()
	if !ok {
		return open(path, rules)
	}
	removed, err := d.removed()
	if removed {
		err = d.again()
	}
	if err != nil {
		return nil, err
	}
	return &d, nil
}

// holdings are the directories held by this process, by path.
var holdings = struct {
	sync.Mutex
	dirs map[string]Dir
}{dirs: map[string]Dir{}}

// Hold opens a directory until the process ends. From now on, Open returns it for the same path,
// even if another directory took its name. If it is removed, the next Open opens the path again, by
// the same rules.
func Hold(path string, rules Rules) error {
	path, err := filepath.Abs(path)
	if err == nil {
		_, err = hold(path, rules)
	}
	return err
}

func hold(path string, rules Rules) (*Dir, error) {
	d, err := open(path, rules)
	if err != nil {
		return nil, err
	}
	d.held = path
	holdings.Lock()
	defer holdings.Unlock()
	holdings.dirs[path] = *d
	return d, nil
}

// again opens a held directory again, after it was removed.
func (d *Dir) again() error {
	next, err := hold(d.held, d.rules)
	if err != nil {
		return fmt.Errorf("it was removed, and cannot be made again: %w", err)
	}
	*d = *next
	return nil
}

// open is Open for an absolute path without holdings.
func open(path string, rules Rules) (*Dir, error) {
	w := walk{rules: rules, trusted: []uint32{0, uint32(os.Geteuid())}}
	if err := w.from("/"); err != nil {
		return nil, err
	}
	// The owner of / controls every path. In a user namespace the number of this user is not 0.
	w.trusted = append(w.trusted, w.stat.Uid)
	ours := w.trusted
	var last unix.Stat_t
	// The slash mounts what an automount point is for.
	if rules&AnyOwner != 0 && unix.Stat(path+"/", &last) == nil {
		w.trusted = append(slices.Clone(ours), last.Uid)
	}
	if err := w.follow(path); err != nil {
		w.at.Close()
		return nil, err
	}
	return &Dir{file: w.at, owner: w.stat.Uid, ours: slices.Contains(ours, w.stat.Uid), rules: rules}, nil
}

func (d *Dir) fd() int { return int(d.file.Fd()) }

// removed reports whether the directory lost its name.
func (d *Dir) removed() (bool, error) {
	var stat unix.Stat_t
	err := unix.Fstat(d.fd(), &stat)
	if err == unix.ESTALE { // NFS
		return true, nil
	}
	return err == nil && stat.Nlink == 0, err
}

// Close closes the directory, unless it is held.
func (d *Dir) Close() {
	if d.held == "" {
		d.file.Close()
	}
}

// Owner returns the user who owns the directory.
func (d *Dir) Owner() int { return int(d.owner) }

// Path returns the path of a file, for messages.
func (d *Dir) Path(name string) string { return filepath.Join(d.file.Name(), name) }

func (d *Dir) failed(op, name string, err error) error {
	if err == nil {
		return nil
	}
	return &fs.PathError{Op: op, Path: d.Path(name), Err: err}
}

// Open opens a file. It follows no links and waits for no pipe. The error wraps ErrForeign if the
// file is not a regular one, if others can write to it, or if it belongs to another user than this
// one, root and the owner of the directory. flags are those of os.OpenFile; the mode of a new file
// is 0600, and its owner the directory's.
//
// Open of a new file makes a held directory again if it was removed.
func (d *Dir) Open(name string, flags int) (*os.File, error) {
	open := func() (int, error) {
		return unix.Openat(d.fd(), name, flags|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0o600)
	}
	fd, err := open()
	if (err == unix.ENOENT || err == unix.ESTALE) && flags&os.O_CREATE != 0 && d.held != "" {
		if err := d.again(); err != nil {
			return nil, err
		}
		fd, err = open()
	}
	if errors.Is(err, unix.ELOOP) || errors.Is(err, unix.EISDIR) || errors.Is(err, unix.ENXIO) {
		return nil, fmt.Errorf("%s is %w: remove it", d.Path(name), ErrForeign)
	}
	if err != nil {
		return nil, d.failed("open", name, err)
	}
	file := os.NewFile(uintptr(fd), d.Path(name))
	if err := d.check(file); err != nil {
		file.Close()
		return nil, err
	}
	if flags&os.O_CREATE != 0 && !d.ours {
		_ = file.Chown(int(d.owner), -1) // the owner's process must read and remove it
	}
	return file, nil
}

// check refuses a file not made by shaper.
func (d *Dir) check(file *os.File) error {
	var stat unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &stat); err != nil {
		return d.failed("stat", filepath.Base(file.Name()), err)
	}
	known := stat.Uid == 0 || stat.Uid == d.owner || int(stat.Uid) == os.Geteuid()
	linked := !d.ours && stat.Nlink > 1 // by the owner of the directory, perhaps to a file of root
	if stat.Mode&unix.S_IFMT != unix.S_IFREG || stat.Mode&0o022 != 0 || !known || linked {
		return fmt.Errorf("%s is %w (user %d, mode %o): remove it", file.Name(), ErrForeign, stat.Uid,
			stat.Mode)
	}
	return nil
}

// Rename gives a file another name.
func (d *Dir) Rename(from, to string) error {
	return d.failed("rename", from, unix.Renameat(d.fd(), from, d.fd(), to))
}

// Remove removes a file, or an empty directory.
func (d *Dir) Remove(name string) error {
	err := unix.Unlinkat(d.fd(), name, 0)
	if err == unix.EISDIR {
		err = unix.Unlinkat(d.fd(), name, unix.AT_REMOVEDIR)
	}
	return d.failed("remove", name, err)
}

// Exists reports whether there is a file, or a link, of a name.
func (d *Dir) Exists(name string) bool {
	return unix.Faccessat(d.fd(), name, unix.F_OK, unix.AT_SYMLINK_NOFOLLOW) == nil
}

// Sync waits until names of files are on the disk.
func (d *Dir) Sync() error {
	return d.failed("sync", "", syncAt(d.fd()))
}

// syncAt is Sync for a descriptor.
func syncAt(dir int) error {
	fd, err := unix.Openat(dir, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err == nil {
		err = errors.Join(unix.Fsync(fd), unix.Close(fd))
	}
	return err
}
