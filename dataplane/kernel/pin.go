package kernel

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/cause"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/hook"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/safedir"
)

// Links that must outlive their process are pinned in a directory of bpffs.
const (
	bpffs  = "/sys/fs/bpf"
	pinDir = bpffs + "/shaper"
)

// errNoBpffs reports that nothing can be pinned.
var errNoBpffs = MountBpffs.errorf("bpffs, which pinned links need, is not mounted")

func bpffsMounted() bool {
	var s unix.Statfs_t
	return unix.Statfs(bpffs, &s) == nil && uint32(s.Type) == unix.BPF_FS_MAGIC
}

// pinPath returns the path of the pin of a direction's link.
func pinPath(at iface, direction Direction) string {
	return filepath.Join(pinDir, at.fileName(direction.String()))
}

// ownsPinDir reports whether the pin directory belongs to this user and only this user
// can write to it.
func ownsPinDir() bool {
	dir, err := safedir.Open(pinDir, safedir.AnyOwner)
	if err != nil {
		return false
	}
	defer dir.Close()
	return dir.Owner() == os.Geteuid()
}

// openPinDir creates the pin directory, or checks the existing one: a user who can
// write to it can detach shapers.
func openPinDir() error {
	dir, err := safedir.Open(pinDir, safedir.Create|safedir.AnyOwner)
	if err != nil {
		return err
	}
	defer dir.Close()
	if owner := dir.Owner(); owner != 0 && owner != os.Geteuid() {
		return fmt.Errorf("%s belongs to user %d, who could detach shapers: remove it, and mount bpffs so that only root can write to it: mount -t bpf -o mode=0700 bpf %s", pinDir, owner, bpffs)
	}
	return nil
}

// pinLink pins a link. It replaces the pin of another link, which belongs to a deleted
// interface or was left by a killed process.
func pinLink(l link.Link, path string) error {
	same, err := isPinned(l, path)
	if err != nil || same {
		return err
	}
	if err := removePin(path); err != nil { // may also remove the directory
		return err
	}
	for try := 0; ; try++ {
		if err := openPinDir(); err != nil {
			return err
		}
		// Another process may remove the directory, together with its last pin.
		if err := l.Pin(path); !errors.Is(err, fs.ErrNotExist) || try == maxTries {
			return cause.Of(err)
		}
	}
}

// isPinned reports whether the pin at path is one of link l.
func isPinned(l link.Link, path string) (bool, error) {
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

// removePin removes a pin if there is one, and the directory with the last pin.
func removePin(path string) error {
	err := os.Remove(path)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) && !ownsPinDir() {
		return nil // the pins in another user's directory are not ours
	}
	if err != nil {
		return err
	}
	_ = os.Remove(pinDir) // fails unless it is empty
	return nil
}

// removeOrphanPins removes the pins of detached links, whose interface or namespace is
// gone. It returns their file names.
func removeOrphanPins() (removed []string, err error) {
	files, err := os.ReadDir(pinDir)
	if err != nil {
		return nil, nil // the directory does not exist, or this user cannot read it
	}
	if !ownsPinDir() {
		return nil, nil
	}
	var errs []error
	for _, f := range files {
		path := filepath.Join(pinDir, f.Name())
		l, err := link.LoadPinnedLink(path, nil)
		if err != nil {
			continue
		}
		id, err := (&hook.BPFLink{Link: l}).Program()
		l.Close()
		if err == nil && id == 0 {
			errs = append(errs, removePin(path))
			removed = append(removed, f.Name())
		}
	}
	return removed, errors.Join(errs...)
}
