//go:build linux && amd64

package chaos

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// disk is a directory with files of changes that breaks while changes are in force.
type disk struct {
	folder string
	fault  string // one of diskFaults
	used   bool   // it has a file of changes before
	held   *os.File
}

const (
	diskFull     = "full"
	diskReadOnly = "read-only"
	diskRemoved  = "removed" // with all files
	diskLocked   = "locked"  // another process has the lock of the changes, and is stopped
)

var diskFaults = []string{diskFull, diskReadOnly, diskRemoved, diskLocked}

// runFolder is the directory of changes without --state.
const runFolder = "/run/shaper"

// mount puts a small file system at the directory. Call the methods inside the world.
func (d *disk) mount() error {
	if err := os.MkdirAll(d.folder, 0o700); err != nil {
		return err
	}
	return unix.Mount("tmpfs", d.folder, "tmpfs", 0, "size=256k,mode=0700")
}

// unmount removes the directory. The shaper may write to it meanwhile.
func (d *disk) unmount() error {
	err := unix.Unmount(d.folder, unix.MNT_DETACH)
	if err != nil {
		return err
	}
	eventually(patience, func() bool {
		err = os.RemoveAll(d.folder)
		return !errors.Is(err, unix.ENOTEMPTY)
	})
	return err
}

// damage lets the fault happen.
func (d *disk) damage() error {
	switch d.fault {
	case diskFull:
		return d.fill()
	case diskReadOnly:
		return unix.Mount("", d.folder, "", unix.MS_REMOUNT|unix.MS_RDONLY, "")
	case diskRemoved:
		if d.folder == stateFolder {
			return d.unmount()
		}
		return d.empty()
	}
	files, err := filepath.Glob(filepath.Join(d.folder, "*changes*"))
	files = slices.DeleteFunc(files, func(path string) bool { return strings.HasSuffix(path, ".lock") })
	if err != nil || len(files) != 1 {
		return fmt.Errorf("got files of changes %q (%v), want one", files, err)
	}
	// shaper tap may not have made it yet
	if d.held, err = os.OpenFile(files[0]+".lock", os.O_RDONLY|os.O_CREATE, 0o600); err != nil {
		return err
	}
	return unix.Flock(int(d.held.Fd()), unix.LOCK_EX)
}

// fill uses up all space.
func (d *disk) fill() error {
	f, err := os.Create(filepath.Join(d.folder, "fill"))
	if err != nil {
		return err
	}
	defer f.Close()
	for err == nil {
		_, err = f.Write(make([]byte, 4096))
	}
	if err, ok := err.(*os.PathError); ok && err.Err == syscall.ENOSPC {
		return nil
	}
	return err
}

// empty removes all files.
func (d *disk) empty() error {
	list, err := os.ReadDir(d.folder)
	for _, e := range list {
		if err == nil {
			err = os.RemoveAll(filepath.Join(d.folder, e.Name()))
		}
	}
	return err
}

// repair ends the fault.
func (d *disk) repair() error {
	switch d.fault {
	case diskFull:
		return os.Remove(filepath.Join(d.folder, "fill"))
	case diskReadOnly:
		return unix.Mount("", d.folder, "", unix.MS_REMOUNT, "size=256k,mode=0700")
	case diskRemoved:
		return os.MkdirAll(d.folder, 0o700)
	case diskLocked:
		return d.held.Close()
	}
	return nil
}

// keepsNothing reports whether changes cannot be kept. The files of /run/shaper can be made anew, and a
// full file system has room in the last page of a file.
func (d *disk) keepsNothing() bool {
	switch d.fault {
	case diskFull:
		return !d.used
	case diskRemoved:
		return false // shaper makes it again
	}
	return true
}

// onDisk runs f with the disk inside the world.
func (a *attempt) onDisk(what string, f func(*disk) error) bool {
	var err error
	a.w.inside(func() { err = f(a.s.disk) })
	if err != nil {
		a.problem("setup: %s %s: %v", what, a.s.disk.folder, err)
	}
	return err == nil
}

// breaking are ends of changes and quotas, in spite of a disk.
func breaking() []*scenario {
	var list []*scenario
	for _, fault := range diskFaults {
		for _, s := range []struct {
			name, folder string
			tap          bool
		}{{"run", runFolder, false}, {"state", stateFolder, false}, {"tap", stateFolder, true}} {
			if fault == diskReadOnly && s.folder == runFolder {
				continue // Linux refuses it while a file is open for writing
			}
			x := &scenario{
				name: fault + "-" + s.name, within: within("egress"), want: nothing, may: []string{nothing},
				besideWant: policyA, terms: lessTerms, beside: attach("acr", "tcx", "egress"),
				customers: true, ruled: true, tap: s.tap,
				disk: &disk{folder: s.folder, fault: fault},
			}
			if s.tap {
				x.beside = []string{
					"tap", tapDevice, "--uplink", "v0", "--policy", "acr.yaml", "--drain", "10ms",
				}
			}
			if s.folder == stateFolder {
				x.beside = append(x.beside, stateFlags...)
			}
			quota := *x // without a file of changes before
			quota.name, quota.victim = x.name+"-quota", setCommand(x.device(), "")
			x.victim = setCommand(x.device(), c2Off+" --for 3s")
			used := *x.disk
			used.used, x.disk = true, &used
			list = append(list, x)
			if fault != diskLocked {
				list = append(list, &quota)
			}
		}
	}
	return list
}

// c2Off is a change that ends; c1 uses up its quota meanwhile.
const c2Off = "customer c2 off"

// patienceOfCommands is the time limit of a command while the disk does not work.
const patienceOfCommands = 30 * time.Second

// judgeDisk damages the disk. The change must still end, the quota must still
// apply, and status must report the problem. Afterwards commands must work, and list the changes in force.
func (a *attempt) judgeDisk() {
	if !a.onDisk("damage", (*disk).damage) {
		return
	}
	a.w.prober.spend()
	a.awaitTerms(lessTerms)
	if a.s.disk.keepsNothing() &&
		!eventually(patienceOfTerms, func() bool { return len(a.problemsInStatus()) > 0 }) {
		a.problem("silent: status reports no problem with %s, which is %s", a.s.disk.folder, a.s.disk.fault)
	}
	for _, args := range [][]string{
		setCommand(a.s.device(), c2Off),
		{"reload", a.s.device()},
		setCommand(a.s.device(), "customer c2 reset"),
	} {
		r := a.w.start(nil, args...)
		if !eventually(patienceOfCommands, func() bool { return !r.alive() }) {
			a.problem("hang: %s has not ended after %v", strings.Join(args, " "), patienceOfCommands)
			_ = r.cmd.Process.Kill()
			r.wait()
		}
		if text := a.termsDiffer([]string{lessTerms, "c1 closed, c2 off"}); text != "" {
			a.problem("after %s: exit %d: %s: %s", strings.Join(args, " "), r.code(), text, r.stderr())
		}
	}
	if !a.onDisk("repair", (*disk).repair) {
		return
	}
	if !eventually(patienceOfTerms, func() bool { return len(a.problemsInStatus()) == 0 }) {
		a.problem("stuck: status still reports %q", a.problemsInStatus())
	}
	if r, ok := a.w.runCommand(setCommand(a.s.device(), "customer c2 reset")...); !ok || r.code() != 0 {
		a.problem("stuck: shaper set fails after the repair: %s", r.stderr())
	}
	a.awaitTerms(lessTerms)
}

// problemsInStatus are the problems of the shaper, as status prints them.
func (a *attempt) problemsInStatus() (out []string) {
	for _, rows := range a.status() {
		for _, r := range rows {
			if r.Problem != "" {
				out = append(out, r.Problem)
			}
		}
	}
	return out
}
