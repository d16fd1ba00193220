package main

import (
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// output is a file that is replaced as a whole: it is written to a temporary file in the same
// directory, which is renamed at the end. Other files, such as pipes and /dev/null, are
// written directly.
type output struct {
	io.Writer
	what string // kind of output, for errors
	path string // path as given by the user; "-" for the standard output
	file *os.File
	temp string      // name before commit, or ""
	goal string      // name after commit
	old  os.FileInfo // file to replace, or nil
	gzip *gzip.Writer
}

// create creates an output. It returns an error if the file is one of taken, whose keys
// describe the files.
func create(what, path string, stdout io.Writer, taken map[string]os.FileInfo) (*output, error) {
	o := &output{what: what, path: path, Writer: stdout}
	if path == "-" {
		return o, nil
	}
	if err := followable(path); err != nil {
		return nil, usagef("%s %q: %w", what, path, err)
	}
	info, err := os.Stat(path)
	if err == nil {
		for name, other := range taken {
			if os.SameFile(info, other) {
				return nil, usagef("%s %q is the same file as %s: choose another name", what, path, name)
			}
		}
		if info.IsDir() {
			return nil, usagef("%s %q is a directory", what, path)
		}
	}
	if err == nil && !info.Mode().IsRegular() {
		o.file, err = os.OpenFile(path, os.O_WRONLY, 0)
	} else {
		err = o.createTemp(info)
	}
	if err != nil {
		return nil, o.wrap(err)
	}
	o.Writer = o.file
	if strings.HasSuffix(path, ".gz") {
		o.gzip = gzip.NewWriter(o.file)
		o.Writer = o.gzip
	}
	return o, nil
}

// followable returns an error if path leads through a symbolic link of another user than this
// one or root. That user could make this process replace any file.
func followable(path string) error {
	for range 40 { // as many links as the kernel follows
		info, err := os.Lstat(path)
		if err != nil || info.Mode()&os.ModeSymlink == 0 {
			return nil // opening the file reports errors
		}
		if uid := info.Sys().(*syscall.Stat_t).Uid; uid != 0 && int(uid) != os.Geteuid() {
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
func (o *output) createTemp(old os.FileInfo) (err error) {
	o.goal, o.old = absolute(o.path), old
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

// inherit copies the owner, the group and the mode of the file to replace, as far as that is
// permitted.
func (o *output) inherit() {
	mode := o.old.Mode().Perm()
	stat := o.old.Sys().(*syscall.Stat_t)
	uid, gid := int(stat.Uid), int(stat.Gid)
	if o.file.Chown(uid, gid) != nil && o.file.Chown(-1, gid) != nil {
		mode = mode&^0o070 | mode&0o007<<3 // a different group gets the permissions of others
	}
	_ = o.file.Chmod(mode)
}

// commit closes the output and renames it.
func (o *output) commit() error {
	if o == nil || o.file == nil {
		return nil
	}
	var err error
	if o.gzip != nil {
		err = o.gzip.Close()
	}
	if o.old != nil {
		o.inherit()
	}
	if err == nil && o.temp != "" {
		err = o.file.Sync() // otherwise a crash could leave an incomplete file of that name
	}
	err = errors.Join(err, o.file.Close())
	if err == nil && o.temp != "" {
		err = os.Rename(o.temp, o.goal)
	}
	if err != nil {
		o.abort()
		return o.wrap(err)
	}
	o.file = nil
	forgetTemp(o.temp)
	return nil
}

// abort removes an incomplete output. After commit it does nothing.
func (o *output) abort() {
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

// wrap adds the name of the output to an error of writing to it. nil stays nil.
func (o *output) wrap(err error) error {
	if err == nil {
		return nil
	}
	err = withoutPath(err)
	if o.temp == "" {
		return fmt.Errorf("%s %q: %w", o.what, o.path, err)
	}
	return fmt.Errorf("%s %q: %w: nothing was written", o.what, o.path, err)
}

// withoutPath returns the reason in an error that names a file.
func withoutPath(err error) error {
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

// absolute returns a path without symbolic links, so that paths can be compared.
func absolute(path string) string {
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
