package rundir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/cause"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/hook"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/iface"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/remedy"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/safedir"
)

// Links that must outlive their process are pinned in a directory of bpffs.
const (
	Bpffs  = "/sys/fs/bpf"
	PinDir = Bpffs + "/shaper"
)

// ErrNoBpffs reports that nothing can be pinned.
var ErrNoBpffs = remedy.MountBpffs.Errorf("bpffs, which pinned links need, is not mounted")

func BpffsMounted() bool {
	var s unix.Statfs_t
	return unix.Statfs(Bpffs, &s) == nil && uint32(s.Type) == unix.BPF_FS_MAGIC
}

// PinPath returns the path of the pin of a direction's link.
func PinPath(at iface.ID, direction dataplane.Direction) string {
	return filepath.Join(PinDir, at.FileName(direction.String()))
}

// ownsPinDir reports whether the pin directory belongs to this user and only this user
// can write to it.
func ownsPinDir() bool {
	dir, err := safedir.Open(PinDir, safedir.AnyOwner)
	if err != nil {
		return false
	}
	defer dir.Close()
	return dir.Owner() == os.Geteuid()
}

// OpenPinDir creates the pin directory, or checks the existing one: a user who can
// write to it can detach shapers.
func OpenPinDir() error {
	dir, err := safedir.Open(PinDir, safedir.Create|safedir.AnyOwner)
	if err != nil {
		return err
	}
	defer dir.Close()
	if owner := dir.Owner(); owner != 0 && owner != os.Geteuid() {
		return fmt.Errorf("%s belongs to user %d, who could detach shapers: remove it, and mount bpffs so that only root can write to it: mount -t bpf -o mode=0700 bpf %s",
			PinDir, owner, Bpffs)
	}
	return nil
}

// PinLink pins a link. It replaces the pin of another link, which belongs to a deleted
// interface or was left by a killed process.
func PinLink(l link.Link, path string) error {
	same, err := IsPinned(l, path)
	if err != nil || same {
		return err
	}
	if err := RemovePin(path); err != nil { // may also remove the directory
		return err
	}
	for try := 0; ; try++ {
		if err := OpenPinDir(); err != nil {
			return err
		}
		// Another process may remove the directory, together with its last pin.
		if err := l.Pin(path); !errors.Is(err, fs.ErrNotExist) || try == MaxTries {
			return cause.Of(err)
		}
	}
}

// IsPinned reports whether the pin at path is one of link l.
func IsPinned(l link.Link, path string) (bool, error) {
	pinned, err := link.LoadPinnedLink(path, &ebpf.LoadPinOptions{})
	if err != nil {
		return false, nil // there is no pin, or it is not a link's
	}
	defer pinned.Close()
	ours, err := l.Info()
	if err != nil {
		return false, err
	}
	theirs, err := pinned.Info()
	return err == nil && ours.ID == theirs.ID, err
}

// RemovePin removes a pin if there is one, and the directory with the last pin.
func RemovePin(path string) error {
	err := os.Remove(path)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) && !ownsPinDir() {
		return nil // the pins in another user's directory are not ours
	}
	if err != nil {
		return err
	}
	_ = os.Remove(PinDir) // fails unless it is empty
	return nil
}

// RemoveOrphanPins removes the pins of detached links, whose interface or namespace is
// gone. It returns their file names.
func RemoveOrphanPins() (removed []string, err error) {
	files, err := os.ReadDir(PinDir)
	if err != nil {
		return nil, nil // the directory does not exist, or this user cannot read it
	}
	if !ownsPinDir() {
		return nil, nil
	}
	var errs []error
	for _, f := range files {
		path := filepath.Join(PinDir, f.Name())
		l, err := link.LoadPinnedLink(path, nil)
		if err != nil {
			continue
		}
		id, err := (&hook.BPFLink{Link: l}).Program()
		l.Close()
		if err == nil && id == 0 {
			errs = append(errs, RemovePin(path))
			removed = append(removed, f.Name())
		}
	}
	return removed, errors.Join(errs...)
}
