package standby

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

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/filelock"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/iface"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/rundir"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/safedir"
)

// AwayError reports a process waiting for a missing interface.
type AwayError struct {
	Interface string              // name
	Direction dataplane.Direction // direction to be shaped by the process
	Process   int                 // process ID
	Policy    string              // name of the policy
}

func (e *AwayError) Error() string {
	return fmt.Sprintf("%s does not exist: process %d waits for it", e.Interface, e.Process)
}

// Away marks this process as waiting for an interface, by one locked file for each
// direction. Look lists the marks of all processes, and EndAway removes one.
type Away struct{ marks []awayMark }

type awayMark struct {
	rundir.Lock
	direction dataplane.Direction
}

// MarkAway marks this process as waiting for the named interface. It does not wait
// itself. The error is an *AwayError if another process waits for the interface in one
// of the directions. The caller must call End.
func MarkAway(name, policy string, directions ...dataplane.Direction) (*Away, error) {
	namespace, err := iface.CurrentNamespace()
	if err != nil {
		return nil, err
	}
	a := &Away{}
	for _, direction := range directions {
		l, err := lockAwayMark(namespace, AwayError{name, direction, os.Getpid(), policy})
		if err != nil {
			a.End()
			return nil, err
		}
		a.marks = append(a.marks, awayMark{l, direction})
	}
	return a, nil
}

func lockAwayMark(namespace uint64, e AwayError) (rundir.Lock, error) {
	name := awayFile(namespace, &e)
	l, err := rundir.TakeLock(name, unix.LOCK_EX|unix.LOCK_NB)
	for try := 0; errors.Is(err, rundir.ErrLocked) && try < 5; try++ { // ReadAway takes the lock for a moment
		other, e := ReadAway(name)
		if e != nil {
			return rundir.Lock{}, e
		}
		if other != nil {
			return rundir.Lock{}, other
		}
		time.Sleep(10 * time.Millisecond)
		l, err = rundir.TakeLock(name, unix.LOCK_EX|unix.LOCK_NB)
	}
	if err != nil {
		return rundir.Lock{}, err
	}
	text, err := json.Marshal(e)
	if err == nil {
		err = l.Truncate(0)
	}
	if err == nil {
		_, err = l.WriteAt(text, 0)
	}
	if err != nil {
		return rundir.Lock{}, errors.Join(err, l.Close())
	}
	return l, nil
}

// Directions returns the directions whose marks no other process removed by EndAway.
func (a *Away) Directions() (out []dataplane.Direction) {
	for _, m := range a.marks {
		if !m.removed() {
			out = append(out, m.direction)
		}
	}
	return out
}

func (m awayMark) removed() bool { return !rundir.HasName(m.File) }

// End removes the remaining marks.
func (a *Away) End() {
	for _, m := range a.marks {
		if m.removed() {
			m.File.Close()
			continue
		}
		_ = m.Close()
	}
}

// EndAway removes the mark of a waiting process. The process should then stop waiting for this
// direction.
func EndAway(e *AwayError) error {
	namespace, err := iface.CurrentNamespace()
	if err != nil {
		return err
	}
	return rundir.RemoveState(awayFile(namespace, e))
}

const AwaySuffix = ".away"

// awayFile returns the name of the file of a mark.
func awayFile(namespace uint64, e *AwayError) string {
	return fmt.Sprintf("%d-%s.%v%s", namespace, strings.ReplaceAll(e.Interface, "/", "_"), e.Direction,
		AwaySuffix)
}

// ListAway returns the marks of the processes waiting in a namespace.
func ListAway(namespace uint64) (out []*AwayError, err error) {
	names, err := filepath.Glob(filepath.Join(rundir.StateDir, fmt.Sprintf("%d-*%s", namespace, AwaySuffix)))
	if err != nil {
		return nil, err
	}
	for _, path := range names {
		e, err := ReadAway(filepath.Base(path))
		if err != nil && !errors.Is(err, safedir.ErrForeign) {
			return nil, err
		}
		if e != nil {
			out = append(out, e)
		}
	}
	return out, nil
}

// AwayFrom returns the marks of the processes waiting for one interface. Its cost does not depend on others.
func AwayFrom(namespace uint64, name string) (out []*AwayError, err error) {
	for _, direction := range []dataplane.Direction{dataplane.Egress, dataplane.Ingress} {
		e, err := ReadAway(awayFile(namespace, &AwayError{Interface: name, Direction: direction}))
		if err != nil && !errors.Is(err, safedir.ErrForeign) {
			return nil, err
		}
		if e != nil && e.Interface == name {
			out = append(out, e)
		}
	}
	return out, nil
}

// ReadAway reads a mark. It returns nil if the process ended, or if the mark cannot be read.
func ReadAway(name string) (*AwayError, error) {
	file, err := rundir.OpenState(name, os.O_RDWR)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, os.ErrPermission) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if filelock.Flock(file, unix.LOCK_SH|unix.LOCK_NB) == nil {
		return nil, nil // its process was killed
	}
	text, err := io.ReadAll(file)
	if err != nil {
		return nil, err
	}
	return parseAway(text), nil
}

// parseAway returns nil if the mark is not complete, or of another version.
func parseAway(text []byte) *AwayError {
	e := &AwayError{}
	if json.Unmarshal(text, e) != nil || e.Direction > dataplane.Ingress {
		return nil
	}
	return e
}
