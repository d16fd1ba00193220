package process

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"path/filepath"
	"time"

	"github.com/spf13/pflag"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/changes"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/cli"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/live"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/safedir"
)

// StateOptions is the option --state. A file of state begins with a line that names its content, and ends
// with a CRC-32C of all bytes before.
type StateOptions struct{ command, dir string }

// savedState is the state of one service, in files.
type savedState struct {
	*StateOptions
	saved  time.Time // of the last call of save
	failed error     // of the last call of save
}

func (s *StateOptions) add(flags *pflag.FlagSet, command string) {
	s.command = command
	flags.StringVar(&s.dir, "state", "", "keep changes by shaper set, the quotas used and the tokens "+
		"of customers in `DIR`, across a restart and a reboot")
}

// Given reports whether the option was given.
func (s *StateOptions) Given() bool { return s.dir != "" }

// open opens the directory, or makes it, until the process ends. Files in it are trusted, so it is an
// error if another user controls it.
func (s *StateOptions) open() (err error) {
	if s.dir == "" {
		return nil
	}
	if s.dir, err = filepath.Abs(s.dir); err != nil {
		return err
	}
	err = safedir.Hold(s.dir, safedir.Create)
	if errors.As(err, new(*safedir.UnsafeError)) {
		return cli.Usagef("--state: %w", err)
	}
	return cli.PlainPathError("--state", err)
}

// path returns the path of a file of state. name is made of the interface and its directions.
func (s *StateOptions) path(name, kind string) string { return filepath.Join(s.dir, name+"."+kind) }

// directionName returns the name of the files of one direction.
func directionName(name string, d dataplane.Direction) string { return name + "-" + d.String() }

// paths returns a path in the directory, if there is one.
func (s *StateOptions) paths() []string {
	if s.dir == "" {
		return nil
	}
	return []string{filepath.Join(s.dir, "file")}
}

// stateVersion is the version of the content of all files.
const stateVersion = 1

// first returns the first line of a file of a kind. A TAP device and an interface may share a name.
func (s *StateOptions) first(kind string) []byte {
	return fmt.Appendf(nil, "shaper %s %s %d\n", s.command, kind, stateVersion)
}

// stateSum returns the checksum of a file.
func stateSum(text []byte) []byte {
	return binary.LittleEndian.AppendUint32(nil, crc32.Checksum(text, crc32.MakeTable(crc32.Castagnoli)))
}

// errState is the error for an unusable file of state.
var errState = errors.New("written by another version or command, or damaged")

// read returns the content of a file; nil if there is none.
func (s *StateOptions) read(name, kind string) ([]byte, error) {
	if s.dir == "" {
		return nil, nil
	}
	path := s.path(name, kind)
	text, err := changes.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, cli.PlainPathError("state", err)
	}
	end := max(len(text)-4, 0)
	content, ok := bytes.CutPrefix(text[:end], s.first(kind))
	if !ok || !bytes.Equal(text[end:], stateSum(text[:end])) {
		return nil, fmt.Errorf("state %q: %w", path, errState)
	}
	return content, nil
}

// write replaces a file.
func (s *StateOptions) write(name, kind string, content []byte) error {
	text := append(s.first(kind), content...)
	return cli.PlainPathError("state", changes.Replace(s.path(name, kind), append(text, stateSum(text)...)))
}

// The kinds of files.
const (
	stateChanges   = "changes"
	stateQuotas    = "quotas"
	stateCustomers = "customers"
)

// restoreQuotas reads what customers have used. It returns an error if the file cannot be used;
// then the counts begin at 0.
func (s *StateOptions) restoreQuotas(name string, c *live.Changer) error {
	text, err := s.read(name, stateQuotas)
	if err == nil && text != nil {
		err = c.RestoreQuotas(text)
	}
	if err != nil {
		return fmt.Errorf("%w: quotas begin anew", err)
	}
	return nil
}

const (
	saveInterval = time.Minute // time between two writes of the state
	saveRetry    = time.Second // the same after an error
)

// due reports whether it is time to save.
func (s *savedState) due() bool {
	pause := saveInterval
	if s.failed != nil {
		pause = saveRetry
	}
	return s.dir != "" && time.Since(s.saved) >= pause
}

// save keeps what customers have used, and tokens, by the names of their files. A function returns
// nil if there are none.
func (s *savedState) save(name string, c *live.Changer, tokens map[string]func() ([]byte, error)) error {
	if s.dir == "" {
		return nil
	}
	begin := time.Now()
	var errs []error
	keep := func(name, kind string, content []byte, err error) {
		if err == nil && content != nil {
			err = s.write(name, kind, content)
		}
		errs = append(errs, err)
	}
	keep(name, stateQuotas, c.SaveQuotas(), nil)
	for name, read := range tokens {
		content, err := read()
		keep(name, stateCustomers, content, err)
	}
	s.saved = begin.Add(200 * time.Since(begin)) // at most half a percent of the time
	s.failed = errors.Join(errs...)
	return s.failed
}
