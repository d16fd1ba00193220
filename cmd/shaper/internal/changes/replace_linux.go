package changes

import (
	"errors"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Replace replaces a file in one step: after a crash it has the previous text or the new one.
func Replace(path string, text []byte) error {
	p, err := prepare(path, text, false)
	if err != nil {
		return err
	}
	defer p.discard()
	return p.replace(false)
}

// prepared is the path of a file whose new text is beside it, on the disk unless it is volatile.
type prepared string

// prepare writes the new text of a file. Only one process may do it at a time.
func prepare(path string, text []byte, volatile bool) (prepared, error) {
	p := prepared(path)
	temp, err := os.OpenFile(p.temp(), os.O_WRONLY|os.O_CREATE|os.O_TRUNC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return "", err
	}
	_, err = temp.Write(text)
	if err == nil && !volatile {
		err = temp.Sync()
	}
	if err := errors.Join(err, temp.Close()); err != nil {
		p.discard()
		return "", err
	}
	return p, nil
}

func (p prepared) temp() string { return string(p) + ".new" }

// discard removes the new text, unless it is in the file.
func (p prepared) discard() { _ = os.Remove(p.temp()) }

// replace makes the new text that of the file.
func (p prepared) replace(volatile bool) error {
	if err := os.Rename(p.temp(), string(p)); err != nil || volatile {
		return err
	}
	dir, err := os.Open(filepath.Dir(string(p)))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
