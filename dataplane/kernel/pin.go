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
)

// Links that are to outlive their process are pinned in a folder of bpffs.
const (
	bpffs  = "/sys/fs/bpf"
	pinDir = bpffs + "/shaper"
)

// errNoBpffs says why nothing can be pinned.
var errNoBpffs = MountBpffs.errorf("bpffs, which keeps a link when its process ends, is not mounted")

func haveBpffs() bool {
	var s unix.Statfs_t
	return unix.Statfs(bpffs, &s) == nil && s.Type == unix.BPF_FS_MAGIC
}

// pin is where the link of a direction is pinned.
func (at iface) pin(direction Direction) string {
	return filepath.Join(pinDir, at.file(direction.String()))
}

// mayPin says whether the folder is this user's.
func mayPin() bool {
	owner, err := safeDir(pinDir)
	return err == nil && int(owner) == os.Geteuid()
}

// openPinDir makes the folder, or checks the one that exists: who can write
// there can end shaping.
func openPinDir() error {
	if err := os.Mkdir(pinDir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	owner, err := safeDir(pinDir)
	if err != nil {
		return err
	}
	if owner != 0 && int(owner) != os.Geteuid() {
		return fmt.Errorf("%s belongs to user %d, who could end shaping: remove it, and mount bpffs so that only root can write there: mount -t bpf -o mode=0700 bpf %s", pinDir, owner, bpffs)
	}
	return nil
}

// pinLink pins a link. A pin of that name that is another link's is one of an
// interface that is gone, or was left by a killed process: it is replaced.
func pinLink(l link.Link, path string) error {
	same, err := isPinned(l, path)
	if err != nil || same {
		return err
	}
	if err := removePin(path); err != nil { // the folder may go with it
		return err
	}
	for try := 0; ; try++ {
		if err := openPinDir(); err != nil {
			return err
		}
		// The last pin of another process may take the folder along.
		if err := l.Pin(path); !errors.Is(err, fs.ErrNotExist) || try == tries {
			return cause.Of(err)
		}
	}
}

// isPinned says whether a pin is that of a link.
func isPinned(l link.Link, path string) (bool, error) {
	pinned, err := link.LoadPinnedLink(path, &ebpf.LoadPinOptions{})
	if err != nil {
		return false, nil // there is none, or it is no link
	}
	defer pinned.Close()
	ours, err := l.Info()
	if err != nil {
		return false, err
	}
	theirs, err := pinned.Info()
	return err == nil && ours.ID == theirs.ID, err
}

// removePin removes a pin, and the folder with the last one.
func removePin(path string) error {
	err := os.Remove(path)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) && !mayPin() {
		return nil // in a folder of another user nothing is ours
	}
	if err != nil {
		return err
	}
	_ = os.Remove(pinDir) // if it is empty by now
	return nil
}

// sweepPins removes pins of links that are attached to nothing: their interface
// or namespace is gone. It returns their names.
func sweepPins() (removed []string, err error) {
	files, err := os.ReadDir(pinDir)
	if err != nil {
		return nil, nil // there is none, or it is not for us to read
	}
	if !mayPin() {
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
