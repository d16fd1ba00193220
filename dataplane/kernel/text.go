package kernel

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Texts are files that the label of a shaper mentions, such as a large file of customers. Their
// copies in StateDir last as long as a record of the interface mentions their names, so a
// rollback finds the text of the previous policy even if its file has changed.

// textPrefix is the prefix of the names of copies, after that of the interface.
const textPrefix = "text-"

// TextPath returns the path of the copy of a text. The name must be unique for its content, such
// as a hash.
func TextPath(iface, name string) (string, error) {
	d, err := deviceByName(iface)
	if err != nil {
		return "", err
	}
	return filepath.Join(StateDir, d.fileName(textPrefix+name)), nil
}

// KeepText writes the copy of a text that the shaper's label mentions by its name, and removes
// the copies that no record of the interface mentions.
func (s *Shaper) KeepText(name, text string) error {
	st, err := s.lockSite()
	if err != nil {
		return err
	}
	file := st.fileName(textPrefix + name)
	if !fileExists(filepath.Join(StateDir, file)) {
		err = writeState(file, []byte(text))
	}
	return errors.Join(err, st.pruneTexts(), st.close())
}

// pruneTexts removes the copies that no record of the interface mentions.
func (st *site) pruneTexts() error {
	files, err := filepath.Glob(filepath.Join(StateDir, st.fileName(textPrefix)+"*"))
	if err != nil || len(files) == 0 {
		return err
	}
	var records [][]byte
	for _, direction := range []Direction{Egress, Ingress} {
		list, err := attachments(st.Index, direction)
		if err != nil {
			return err
		}
		for _, a := range list {
			text, err := a.recordText()
			if errors.Is(err, unix.EPERM) {
				return nil // without CAP_SYS_ADMIN it is not known which copies are in use
			}
			if err != nil {
				return err
			}
			records = append(records, text)
		}
	}
	for _, path := range files {
		name := strings.TrimPrefix(filepath.Base(path), st.fileName(textPrefix))
		mentioned := false
		for _, record := range records {
			mentioned = mentioned || bytes.Contains(record, []byte(name))
		}
		if !mentioned {
			if err := os.Remove(path); err != nil {
				return fmt.Errorf("copy of a text: %w", err)
			}
		}
	}
	return nil
}
