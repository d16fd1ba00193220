package kernel

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// AwayError says that a process waits for an interface that is not there.
type AwayError struct {
	Interface string
	Direction Direction
	Process   int
	Policy    string // its name
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

// Away are the marks of a process that waits for its interface, one a direction, so
// that others see it and can end it.
type Away struct{ marks []awayMark }

type awayMark struct {
	lock
	direction Direction
}

// Wait sets the marks. It is an *AwayError if another process waits for the interface
// in one of the directions.
func Wait(name, policy string, directions ...Direction) (*Away, error) {
	here, err := namespace()
	if err != nil {
		return nil, err
	}
	a := &Away{}
	for _, direction := range directions {
		l, err := markAway(here, AwayError{name, direction, os.Getpid(), policy})
		if err != nil {
			a.End()
			return nil, err
		}
		a.marks = append(a.marks, awayMark{l, direction})
	}
	return a, nil
}

func markAway(here uint64, e AwayError) (lock, error) {
	name := awayFile(here, &e)
	l, err := takeLock(name, unix.LOCK_EX|unix.LOCK_NB)
	for try := 0; errors.Is(err, errLocked) && try < 5; try++ { // somebody may only look
		if other, e := readAway(name); e != nil || other != nil {
			return lock{}, errors.Join(e, other.orNil())
		}
		time.Sleep(10 * time.Millisecond)
		l, err = takeLock(name, unix.LOCK_EX|unix.LOCK_NB)
	}
	if err != nil {
		return lock{}, err
	}
	text, err := json.Marshal(e)
	if err == nil {
		err = l.Truncate(0)
	}
	if err == nil {
		_, err = l.WriteAt(text, 0)
	}
	if err != nil {
		return lock{}, errors.Join(err, l.Close())
	}
	return l, nil
}

// Directions are those in which no other process has ended the waiting.
func (a *Away) Directions() (out []Direction) {
	for _, m := range a.marks {
		if !m.ended() {
			out = append(out, m.direction)
		}
	}
	return out
}

func (m awayMark) ended() bool {
	_, err := os.Lstat(m.Name())
	return errors.Is(err, os.ErrNotExist)
}

// End removes the marks.
func (a *Away) End() {
	for _, m := range a.marks {
		if m.ended() {
			m.File.Close()
			continue
		}
		_ = m.Close()
	}
}

// EndAway has the process end its waiting in a direction.
func EndAway(e *AwayError) error {
	here, err := namespace()
	if err != nil {
		return err
	}
	return removeState(awayFile(here, e))
}

const awaySuffix = ".away"

// awayFile is the name of a mark.
func awayFile(here uint64, e *AwayError) string {
	return fmt.Sprintf("%d-%s.%v%s", here, strings.ReplaceAll(e.Interface, "/", "_"), e.Direction, awaySuffix)
}

// listAway are those that wait in a namespace.
func listAway(here uint64) (out []*AwayError, err error) {
	names, err := filepath.Glob(filepath.Join(StateDir, fmt.Sprintf("%d-*%s", here, awaySuffix)))
	if err != nil {
		return nil, err
	}
	for _, path := range names {
		e, err := readAway(filepath.Base(path))
		if err != nil && !errors.Is(err, errForeignFile) {
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
	if e.Direction > Ingress {
		return nil, nil // of another version
	}
	return e, nil
}
