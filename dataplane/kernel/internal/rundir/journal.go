package rundir

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

	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/iface"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/qdisc"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/safedir"
)

// Journal stores the settings of an interface before shaper changed them, since the
// kernel does not. It is written before the change. The last process to remove a shaper
// restores the settings: its own process, its guard or another command.
type Journal struct {
	Version int          // journalVersion
	Qdiscs  *qdisc.Saved `json:",omitempty"` // previous root qdisc; nil if unchanged
	GSO     *GSOLimits   `json:",omitempty"` // GSO limits; nil if unchanged
	Clsact  bool         `json:",omitempty"` // shaper created the clsact qdisc

	Restoring bool `json:",omitempty"` // Qdiscs is being restored

	written []byte // content of the file
}

const journalVersion = 1

// ReadJournal returns the journal of an interface, or an empty one if there is none. It
// renames a journal that cannot be used; broken describes that, for the user.
func ReadJournal(at iface.ID) (j *Journal, broken string, err error) {
	j, err = PeekJournal(at)
	var invalid *JournalError
	if !errors.As(err, &invalid) {
		return j, "", err
	}
	aside := fmt.Sprintf("%s.broken-%d", invalid.path, time.Now().Unix())
	if e := os.Rename(invalid.path, aside); e != nil {
		return nil, "", errors.Join(err, e)
	}
	return &Journal{}, fmt.Sprintf(
		"%v: set aside as %s; the previous settings of the interface are not known", invalid, aside), nil
}

// JournalError reports unusable content of a journal.
type JournalError struct {
	path string
	err  error
}

func (e *JournalError) Error() string {
	return fmt.Sprintf("journal %s cannot be read (%v)", e.path, e.err)
}

// JournalPath returns the path of the interface's journal.
func JournalPath(at iface.ID) string { return filepath.Join(StateDir, at.FileName("journal")) }

// PeekJournal is like ReadJournal, but changes no file. The error is a *JournalError if
// the journal cannot be used.
func PeekJournal(at iface.ID) (*Journal, error) {
	file, err := OpenState(at.FileName("journal"), os.O_RDONLY)
	if errors.Is(err, fs.ErrNotExist) {
		return &Journal{}, nil
	}
	if errors.Is(err, safedir.ErrForeign) {
		return nil, &JournalError{JournalPath(at), err}
	}
	if err != nil {
		return nil, err
	}
	defer file.Close()
	text, err := io.ReadAll(file)
	if err != nil {
		return nil, err
	}
	j, err := parseJournal(text)
	if err != nil {
		return nil, &JournalError{file.Name(), err}
	}
	return j, nil
}

func parseJournal(text []byte) (*Journal, error) {
	j := &Journal{written: text}
	err := json.Unmarshal(text, j)
	if err == nil && j.Version != journalVersion {
		err = fmt.Errorf("its version %d is unknown", j.Version)
	}
	return j, err
}

// SaveJournal writes the journal, or removes it if no setting is changed.
func (j *Journal) SaveJournal(at iface.ID) error {
	name := at.FileName("journal")
	if j.Qdiscs == nil && j.GSO == nil && !j.Clsact {
		j.written = nil
		return errors.Join(RemoveState(name), RemoveState(name+Temporary))
	}
	j.Version = journalVersion
	text, err := json.Marshal(j)
	if err != nil {
		return err
	}
	if bytes.Equal(text, j.written) {
		return RemoveState(name + Temporary) // left by a killed process
	}
	if err := writeState(name, text); err != nil {
		return fmt.Errorf("journal of interface %d: %w", at.Index, err)
	}
	j.written = text
	return nil
}

// GSOLimits is the journal's record of a device's GSO limits, in bytes.
type GSOLimits struct {
	Max, MaxIPv4 uint32    // the device's limits before the first change
	Limits       [2]uint32 // limit needed by the shaper of each direction; 0 for none
}

// SmallestLimit returns the smaller of the shapers' limits, or 0 if none needs one.
func (g *GSOLimits) SmallestLimit() uint32 {
	out := uint32(0)
	for _, l := range g.Limits {
		if l != 0 && (out == 0 || l < out) {
			out = l
		}
	}
	return out
}

// Targets returns the values that the device gets: the previous ones, lowered to the
// smallest limit.
func (g *GSOLimits) Targets() (all, ipv4 uint32) {
	if limit := g.SmallestLimit(); limit != 0 {
		return min(g.Max, limit), min(g.MaxIPv4, limit)
	}
	return g.Max, g.MaxIPv4
}
