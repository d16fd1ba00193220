package kernel

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// Undo is what takes a shaper away from an interface that the kernel would
// leave there when its process is killed. It needs nothing of the shaper.
type Undo struct {
	Interface string
	Namespace uint64
	Direction Hook
	Place     place
	GSO       *GSO
	Qdiscs    *qdiscs
	IFB       *ifb
	lost      uint32 // packets that still waited when it was done
}

// Undo returns what is left when the process is killed, or nil for nothing.
func (s *Shaper) Undo() *Undo {
	if s.Pinned || s.Place.Method != TC && s.GSO == nil && s.Qdiscs == nil && s.IFB == nil {
		return nil
	}
	return s.undo()
}

func (s *Shaper) undo() *Undo {
	return &Undo{
		Interface: s.Interface, Namespace: s.Namespace, Direction: s.Direction,
		Place: s.Place, GSO: s.GSO, Qdiscs: s.Qdiscs, IFB: s.IFB,
	}
}

// Do undoes it.
func (u *Undo) Do() error {
	var errs []error
	if u.Place.Method == TC {
		errs = append(errs, (&filterHook{u.Place.bare()}).remove())
	}
	errs = append(errs, u.GSO.restore(u.Interface), u.unpace())
	if u.Place.Method == TC {
		errs = append(errs, (&filterHook{u.Place}).removeClsact())
	}
	return errors.Join(errs...)
}

// bare is the place without the qdisc of ours. That has to go after what holds
// packets: where it goes, the kernel empties the root of the device.
func (at place) bare() place {
	at.Clsact = false
	return at
}

// drain is how long packets that wait have to leave when a shaper ends. What is
// left then is lost.
const drain = time.Second

// unpace removes what holds packets, and its note.
func (u *Undo) unpace() error {
	if u.Qdiscs == nil && u.IFB == nil {
		return nil
	}
	index := u.Place.Index
	if u.IFB != nil {
		index = u.IFB.Device
	}
	for end := time.Now().Add(drain); time.Now().Before(end) && waiting(index) > 0; {
		time.Sleep(10 * time.Millisecond)
	}
	u.lost = waiting(index)
	var errs []error
	if u.IFB != nil {
		errs = append(errs, u.IFB.remove()) // with its qdiscs
	} else {
		errs = append(errs, u.Qdiscs.restore(index))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if err := os.Remove(u.note()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// waiting is how many packets a tree of ours holds.
func waiting(index int) uint32 {
	list, err := dump(unix.RTM_GETQDISC, index, 0)
	root := rootOf(list)
	if err != nil || root == nil || root.Handle != major<<16 {
		return 0
	}
	s, _ := root.counted()
	return s.Waiting
}

// note is a file that says what is to be undone where no process is left to do
// it: qdiscs outlive programs, and cannot say what stood there before.
func (u *Undo) note() string {
	return filepath.Join(locks, fmt.Sprintf("%d-%s-%v-qdiscs", u.Namespace, u.Interface, u.Direction))
}

// leave writes the note.
func (u *Undo) leave() error {
	text, err := json.Marshal(u)
	if err != nil {
		return err
	}
	return os.WriteFile(u.note(), text, 0o600)
}

// tidy undoes what a process left that was killed with its guard.
func (s *Shaper) tidy() error {
	_, err := tidy(s.Namespace, s.Interface, s.Direction)
	return err
}

func tidy(here uint64, name string, direction Hook) (found bool, err error) {
	u := &Undo{Interface: name, Namespace: here, Direction: direction}
	text, err := os.ReadFile(u.note())
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err == nil {
		err = json.Unmarshal(text, u)
	}
	if err == nil {
		err = u.unpace()
	}
	return true, err
}

// Tidy removes what shapers of an interface left that were killed with all that
// belonged to them, and says whether there was anything.
func Tidy(name string, direction Hook) (found bool, err error) {
	here, err := namespace()
	if err != nil {
		return false, err
	}
	owner, err := ownerLock(here, name, direction)
	if errors.Is(err, errLocked) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer owner.Close()
	return tidy(here, name, direction)
}
