package kernel

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/qdisc"
)

// journal says what an interface was before shaper changed it: the kernel does not
// remember. It is written before the change, and what it says is done by whoever
// comes last, the process itself, its guard or another command.
type journal struct {
	Version int
	Qdiscs  *qdisc.Saved `json:",omitempty"` // at the root before ours; nil: not noted
	GSO     *gso         `json:",omitempty"` // nil: the device is as it was
	Clsact  bool         `json:",omitempty"` // the clsact qdisc is ours

	Restoring bool `json:",omitempty"` // Qdiscs are being put back

	saved []byte // what is in the file
}

const journalVersion = 1

// readJournal returns the journal of an interface, an empty one if there is none.
// One that cannot be used is set aside: broken names it.
func readJournal(at iface) (j *journal, broken string, err error) {
	j, err = peekJournal(at)
	var torn *tornError
	if !errors.As(err, &torn) {
		return j, "", err
	}
	aside := fmt.Sprintf("%s.broken-%d", torn.path, time.Now().Unix())
	if e := os.Rename(torn.path, aside); e != nil {
		return nil, "", errors.Join(err, e)
	}
	return &journal{}, fmt.Sprintf("%v: set aside as %s; what the interface was before is not known", torn, aside), nil
}

// tornError says that a journal cannot be used.
type tornError struct {
	path string
	err  error
}

func (e *tornError) Error() string {
	return fmt.Sprintf("journal %s cannot be read (%v)", e.path, e.err)
}

// journalPath is where the journal of an interface is kept.
func (at iface) journalPath() string { return filepath.Join(StateDir, at.file("journal")) }

// peekJournal is readJournal for those that change nothing.
func peekJournal(at iface) (*journal, error) {
	file, err := openState(at.file("journal"), os.O_RDONLY)
	if errors.Is(err, fs.ErrNotExist) {
		return &journal{}, nil
	}
	if errors.Is(err, errForeignFile) {
		return nil, &tornError{at.journalPath(), err}
	}
	if err != nil {
		return nil, err
	}
	defer file.Close()
	text, err := io.ReadAll(file)
	if err != nil {
		return nil, err
	}
	j := &journal{}
	err = json.Unmarshal(text, j)
	if err == nil && j.Version != journalVersion {
		err = fmt.Errorf("its version %d is unknown", j.Version)
	}
	if err != nil {
		return nil, &tornError{file.Name(), err}
	}
	j.saved = text
	return j, nil
}

// save writes the journal, or removes one that has nothing to say.
func (j *journal) save(at iface) error {
	name := at.file("journal")
	if j.Qdiscs == nil && j.GSO == nil && !j.Clsact {
		j.saved = nil
		return errors.Join(removeState(name), removeState(name+temporary))
	}
	j.Version = journalVersion
	text, err := json.Marshal(j)
	if err != nil {
		return err
	}
	if bytes.Equal(text, j.saved) {
		return removeState(name + temporary) // of a killed process
	}
	if err := writeState(name, text); err != nil {
		return fmt.Errorf("journal of interface %d: %w", at.Index, err)
	}
	j.saved = text
	return nil
}
