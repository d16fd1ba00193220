package kernel

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// AwayError says that a process waits for an interface that is not there.
type AwayError struct {
	Interface  string
	Directions []Hook
	Process    int
	Policy     string // its name
}

func (e *AwayError) Error() string {
	return fmt.Sprintf("%s is away: process %d waits for it", e.Interface, e.Process)
}

func (e *AwayError) orNil() error {
	if e == nil {
		return nil
	}
	return e
}

// Away is the mark of a process that waits for its interface, so that others see
// it and can end it.
type Away struct{ lock }

// Wait sets the mark. It is an *AwayError if another process waits for the interface.
func Wait(e AwayError) (*Away, error) {
	here, err := namespace()
	if err != nil {
		return nil, err
	}
	name := awayFile(here, &e)
	l, err := takeLock(name, unix.LOCK_EX|unix.LOCK_NB)
	for try := 0; errors.Is(err, errLocked) && try < 5; try++ { // somebody may only look
		if other, e := readAway(name); e != nil || other != nil {
			return nil, errors.Join(e, other.orNil())
		}
		time.Sleep(10 * time.Millisecond)
		l, err = takeLock(name, unix.LOCK_EX|unix.LOCK_NB)
	}
	if err != nil {
		return nil, err
	}
	e.Process = os.Getpid()
	text, err := json.Marshal(e)
	if err == nil {
		err = l.Truncate(0)
	}
	if err == nil {
		_, err = l.WriteAt(text, 0)
	}
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return &Away{l}, nil
}

// Ended says whether another process has ended the waiting.
func (a *Away) Ended() bool {
	_, err := os.Lstat(a.Name())
	return errors.Is(err, os.ErrNotExist)
}

// End removes the mark.
func (a *Away) End() {
	if a.Ended() {
		a.File.Close()
		return
	}
	_ = a.Close()
}

// EndAway has the process end that waits for an interface.
func EndAway(e *AwayError) error {
	here, err := namespace()
	if err != nil {
		return err
	}
	return removeState(awayFile(here, e))
}

const awaySuffix = ".away"

// awayFile is the name of a mark: a process waits for each direction by itself.
func awayFile(here uint64, e *AwayError) string {
	name := fmt.Sprint(here, "-", strings.ReplaceAll(e.Interface, "/", "_"))
	for _, direction := range e.Directions {
		name += "." + direction.String()
	}
	return name + awaySuffix
}

// listAway are those that wait in a namespace.
func listAway(here uint64) (out []*AwayError, err error) {
	names, err := filepath.Glob(filepath.Join(StateDir, fmt.Sprintf("%d-*%s", here, awaySuffix)))
	if err != nil {
		return nil, err
	}
	for _, path := range names {
		e, err := readAway(filepath.Base(path))
		if err != nil && !errors.Is(err, errStrange) {
			return nil, err
		}
		if e != nil {
			out = append(out, e)
		}
	}
	return out, nil
}

// readAway reads a mark. It is nil if its process has ended.
func readAway(name string) (*AwayError, error) {
	file, err := openState(name, os.O_RDWR)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, os.ErrPermission) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if flock(file, unix.LOCK_SH|unix.LOCK_NB) == nil {
		return nil, nil // its process was killed
	}
	text, err := io.ReadAll(file)
	if err != nil {
		return nil, err
	}
	e := &AwayError{}
	if err := json.Unmarshal(text, e); err != nil {
		return nil, nil // it is being written
	}
	e.Directions = slices.DeleteFunc(e.Directions, func(h Hook) bool { return h > Ingress })
	return e, nil
}
