package changes

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/safedir"
)

// Replace replaces a file in one step: after a crash it contains the previous text or the new one.
func Replace(path string, text []byte) error {
	p, err := prepare(path, text, false)
	if err != nil {
		return err
	}
	defer p.discard()
	return p.replace(false)
}

// openDir opens the directory of a file. If this process does not hold it, its owner may be another user:
// the shaper of a service keeps its changes in a directory of its own.
func openDir(path string) (dir *safedir.Dir, name string, err error) {
	dir, err = safedir.Open(filepath.Dir(path), safedir.AnyOwner)
	return dir, filepath.Base(path), err
}

// open opens a file, as safedir.Dir.Open does.
func open(path string, flags int) (*os.File, error) {
	dir, name, err := openDir(path)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	return dir.Open(name, flags)
}

// OpenFile opens a file, as safedir.Dir.Open does.
func OpenFile(path string, flags int) (*os.File, error) { return open(path, flags) }

// exists reports whether there is a file, or anything else of its name.
func exists(path string) bool {
	dir, name, err := openDir(path)
	if err != nil {
		return !errors.Is(err, fs.ErrNotExist)
	}
	defer dir.Close()
	return dir.Exists(name)
}

// ReadFile returns the content of a file.
func ReadFile(path string) ([]byte, error) {
	file, err := open(path, os.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return io.ReadAll(file)
}

// prepared is a file whose new text is beside it, on the disk unless it is volatile.
type prepared struct {
	dir  *safedir.Dir
	name string
}

// prepare writes the new text of a file. Only one process may do it at a time.
func prepare(path string, text []byte, volatile bool) (*prepared, error) {
	dir, name, err := openDir(path)
	if err != nil {
		return nil, err
	}
	p := &prepared{dir, name}
	if err := p.write(text, volatile); err != nil {
		p.discard()
		return nil, err
	}
	return p, nil
}

func (p *prepared) write(text []byte, volatile bool) error {
	// left by a killed process
	if err := p.dir.Remove(p.temp()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	temp, err := p.dir.Open(p.temp(), os.O_WRONLY|os.O_CREATE|os.O_EXCL)
	if err != nil {
		return err
	}
	_, err = temp.Write(text)
	if err == nil && !volatile {
		err = temp.Sync()
	}
	return errors.Join(err, temp.Close())
}

func (p *prepared) temp() string { return p.name + ".new" }

// discard removes the new text, unless it is in the file.
func (p *prepared) discard() {
	_ = p.dir.Remove(p.temp())
	p.dir.Close()
}

// keepOld gives the previous file another name.
func (p *prepared) keepOld(suffix string) error { return p.dir.Rename(p.name, p.name+suffix) }

// replace puts the new text in place of the file's.
func (p *prepared) replace(volatile bool) error {
	if err := p.dir.Rename(p.temp(), p.name); err != nil || volatile {
		return err
	}
	return p.dir.Sync()
}
