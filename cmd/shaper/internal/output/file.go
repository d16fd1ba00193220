package output

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/klauspost/pgzip"
)

// File is a file replaced as a whole: its text is written to a temporary file in the same
// directory, which is renamed at the end. Other files, such as pipes and /dev/null, are written
// directly.
type File struct {
	io.Writer
	kind string // for errors
	path string // path as given by the user; "-" for the standard output
	file *os.File
	temp string      // name before commit, or ""
	goal string      // name after commit
	old  os.FileInfo // file to replace, or nil
	gzip *pgzip.Writer
}

// NameError is the error for a name that cannot be that of an output.
type NameError struct{ err error }

func (e *NameError) Error() string { return e.err.Error() }
func (e *NameError) Unwrap() error { return e.err }

func nameErrorf(format string, args ...any) error { return &NameError{fmt.Errorf(format, args...)} }

// Create creates an output, or returns stdout for the name "-". It returns a *NameError if
// the file is a directory, one of taken, whose keys describe the files, or behind a symbolic
// link of another user. kind describes the output in errors.
func Create(kind, path string, stdout io.Writer, taken map[string]os.FileInfo) (*File, error) {
	o := &File{kind: kind, path: path, Writer: stdout}
	if path == "-" {
		return o, nil
	}
	if err := followable(path); err != nil {
		return nil, nameErrorf("%s %q: %w", kind, path, err)
	}
	info, err := os.Stat(path)
	if err == nil {
		for name, other := range taken {
			if os.SameFile(info, other) {
				return nil, nameErrorf("%s %q is the same file as %s: choose another name", kind, path, name)
			}
		}
		if info.IsDir() {
			return nil, nameErrorf("%s %q is a directory", kind, path)
		}
	}
	if err == nil && !info.Mode().IsRegular() {
		o.file, err = os.OpenFile(path, os.O_WRONLY, 0)
	} else {
		err = o.createTemp(info)
	}
	if err != nil {
		return nil, o.Wrap(err)
	}
	o.Writer = o.file
	if strings.HasSuffix(path, ".gz") {
		// Levels of better compression would take most of the time of a replay.
		o.gzip, _ = pgzip.NewWriterLevel(o.file, pgzip.BestSpeed) // the level is valid
		o.Writer = o.gzip
	}
	return o, nil
}

// followable returns an error if path leads through a symbolic link of another user than this one
// or root. Such a user could make this process replace any file.
func followable(path string) error {
	for range 40 { // as many links as the kernel follows
		info, err := os.Lstat(path)
		if err != nil || info.Mode()&os.ModeSymlink == 0 {
			return nil // opening the file reports errors
		}
		if uid, other := otherOwner(info); other {
			return fmt.Errorf("%s is a symbolic link of user %d: use the name of its target", path, uid)
		}
		target, err := os.Readlink(path)
		if err != nil {
			return err
		}
		if !filepath.IsAbs(target) {
			target = filepath.Join(filepath.Dir(path), target)
		}
		path = target
	}
	return nil
}

// createTemp creates the temporary file. If it will replace another file, only its owner can
// read it until it is complete.
func (o *File) createTemp(old os.FileInfo) (err error) {
	o.goal, o.old = Absolute(o.path), old
	mode := os.FileMode(0o666) // less the umask
	if old != nil {
		mode = 0o600
	}
	o.file, err = newTemp(filepath.Dir(o.goal), mode)
	if err == nil {
		o.temp = o.file.Name()
	}
	return err
}

// Commit closes the output and gives a temporary file its name. After an error the file to
// replace is unchanged. Commit of a nil File does nothing.
func (o *File) Commit() error {
	if o == nil || o.file == nil {
		return nil
	}
	var err error
	if o.gzip != nil {
		err = o.gzip.Close()
	}
	if o.old != nil {
		inherit(o.file, o.old)
	}
	if err == nil && o.temp != "" {
		err = o.file.Sync() // otherwise a crash could leave an incomplete file of the name
	}
	err = errors.Join(err, o.file.Close())
	if err == nil && o.temp != "" {
		err = os.Rename(o.temp, o.goal)
	}
	if err != nil {
		o.Abort()
		return o.Wrap(err)
	}
	o.file = nil
	forgetTemp(o.temp)
	return nil
}

// Abort removes an incomplete output. After Commit, and for a nil File, it does nothing.
func (o *File) Abort() {
	if o == nil || o.file == nil {
		return
	}
	o.file.Close()
	o.file = nil
	if o.temp != "" {
		os.Remove(o.temp)
		forgetTemp(o.temp)
	}
}

// Wrap adds the kind and the name of the output to an error of writing to it. It returns nil
// for nil.
func (o *File) Wrap(err error) error {
	if err == nil {
		return nil
	}
	err = WithoutPath(err)
	if o.temp == "" {
		return fmt.Errorf("%s %q: %w", o.kind, o.path, err)
	}
	return fmt.Errorf("%s %q: %w: nothing was written", o.kind, o.path, err)
}

// WithoutPath returns the reason in an error about a named file.
func WithoutPath(err error) error {
	var path *os.PathError
	var link *os.LinkError
	switch {
	case errors.As(err, &path):
		return path.Err
	case errors.As(err, &link):
		return link.Err
	}
	return err
}

// Absolute returns a path without symbolic links, for comparisons of paths.
func Absolute(path string) string {
	abs, err := filepath.Abs(path)
	if err != nil {
		return path
	}
	if dir, err := filepath.EvalSymlinks(filepath.Dir(abs)); err == nil {
		abs = filepath.Join(dir, filepath.Base(abs))
	}
	if target, err := filepath.EvalSymlinks(abs); err == nil {
		return target
	}
	return abs
}
