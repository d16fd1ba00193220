package main

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
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
	"github.com/a-seed-32e5a53f/shaper/internal/safedir"
)

// stateFlag is the flag --state of a command. A file of state begins with a line with its content,
// and ends with a CRC-32C of all bytes before.
type stateFlag struct {
	command, dir string
	saved        time.Time // of the last call of save
	failed       error     // of the last call of save
}

func (f *stateFlag) add(flags *pflag.FlagSet, command string) {
	f.command = command
	flags.StringVar(&f.dir, "state", "", "keep changes by shaper set, the quotas used and the tokens of customers in `DIR`, across a restart and a reboot")
}

// open opens the directory, or makes it, until the process ends. Files in it are trusted, so it is an
// error if another user controls it.
func (f *stateFlag) open() (err error) {
	if f.dir == "" {
		return nil
	}
	if f.dir, err = filepath.Abs(f.dir); err != nil {
		return err
	}
	err = safedir.Hold(f.dir, safedir.Create)
	if errors.As(err, new(*safedir.UnsafeError)) {
		return cli.Usagef("--state: %w", err)
	}
	return cli.PlainPathError("--state", err)
}

// path returns the path of a file of state. name is that of the interface and its directions.
func (f *stateFlag) path(name, kind string) string { return filepath.Join(f.dir, name+"."+kind) }

// directionName returns the name of the files of one direction.
func directionName(name string, d kernel.Direction) string { return name + "-" + d.String() }

// paths returns a path in the directory, if there is one.
func (f *stateFlag) paths() []string {
	if f.dir == "" {
		return nil
	}
	return []string{filepath.Join(f.dir, "file")}
}

// stateVersion is the version of the content of all files.
const stateVersion = 1

// first returns the first line of a file of a kind. The same name may be that of a TAP device and of
// an interface.
func (f *stateFlag) first(kind string) []byte {
	return fmt.Appendf(nil, "shaper %s %s %d\n", f.command, kind, stateVersion)
}

// stateSum returns the checksum of a file.
func stateSum(text []byte) []byte {
	return binary.LittleEndian.AppendUint32(nil, crc32.Checksum(text, crc32.MakeTable(crc32.Castagnoli)))
}

// errState means that a file of state cannot be used.
var errState = errors.New("written by another version or command, or damaged")

// read returns the content of a file; nil if there is none.
func (f *stateFlag) read(name, kind string) ([]byte, error) {
	if f.dir == "" {
		return nil, nil
	}
	path := f.path(name, kind)
	text, err := changes.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, cli.PlainPathError("state", err)
	}
	end := max(len(text)-4, 0)
	content, ok := bytes.CutPrefix(text[:end], f.first(kind))
	if !ok || !bytes.Equal(text[end:], stateSum(text[:end])) {
		return nil, fmt.Errorf("state %q: %w", path, errState)
	}
	return content, nil
}

// write replaces a file.
func (f *stateFlag) write(name, kind string, content []byte) error {
	text := append(f.first(kind), content...)
	return cli.PlainPathError("state", changes.Replace(f.path(name, kind), append(text, stateSum(text)...)))
}

// The kinds of files.
const (
	stateChanges   = "changes"
	stateQuotas    = "quotas"
	stateCustomers = "customers"
)

// restoreQuotas reads what customers have used. It returns an error if the file cannot be used;
// then the counts begin at 0.
func (f *stateFlag) restoreQuotas(name string, c *live.Changer) error {
	text, err := f.read(name, stateQuotas)
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
func (f *stateFlag) due() bool {
	pause := saveInterval
	if f.failed != nil {
		pause = saveRetry
	}
	return f.dir != "" && time.Since(f.saved) >= pause
}

// save keeps what customers have used, and tokens, by the names of their files. A function returns
// nil if there are none.
func (f *stateFlag) save(name string, c *live.Changer, tokens map[string]func() ([]byte, error)) error {
	if f.dir == "" {
		return nil
	}
	begin := time.Now()
	var errs []error
	keep := func(name, kind string, content []byte, err error) {
		if err == nil && content != nil {
			err = f.write(name, kind, content)
		}
		errs = append(errs, err)
	}
	keep(name, stateQuotas, c.SaveQuotas(), nil)
	for name, read := range tokens {
		content, err := read()
		keep(name, stateCustomers, content, err)
	}
	f.saved = begin.Add(200 * time.Since(begin)) // at most half a percent of the time
	f.failed = errors.Join(errs...)
	return f.failed
}
