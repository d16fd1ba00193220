package kernel

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Links that are to outlive their process are pinned here.
const bpffs = "/sys/fs/bpf"

// errNoBpffs says why nothing can be pinned.
var errNoBpffs = errors.New("bpffs, which keeps a link when its process ends, is not mounted: mount -t bpf bpf " + bpffs + ", or use --hook tc")

func haveBpffs() bool {
	var s unix.Statfs_t
	return unix.Statfs(bpffs, &s) == nil && s.Type == unix.BPF_FS_MAGIC
}

// dots are reserved in names there.
var dots = strings.NewReplacer("%", "%25", ".", "%2e")

// pin is where the link of a shaper is pinned.
func (a *About) pin() string {
	return filepath.Join(bpffs, "shaper", fmt.Sprintf("%d-%s-%v", a.Namespace, dots.Replace(a.Interface), a.Direction))
}
