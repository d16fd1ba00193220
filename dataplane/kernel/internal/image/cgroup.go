package image

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/record"
)

// cgroup is a cgroup v2 as the programs know it.
type cgroup struct {
	id    uint64 // 0: it does not exist
	depth uint8  // number of cgroups above it
}

// CgroupID returns the number by which the kernel knows the cgroup of a path below the root of cgroup v2, or
// 0 if it does not exist. A cgroup that is created again has another one.
func CgroupID(path string) (uint64, error) {
	root, err := cgroupRoot()
	if err != nil {
		return 0, fmt.Errorf("%s: %w", path, err)
	}
	handle, _, err := unix.NameToHandleAt(unix.AT_FDCWD, filepath.Join(root, path), 0)
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR):
		return 0, nil
	case err != nil:
		return 0, fmt.Errorf("%s below %s: %w", path, root, err)
	case handle.Size() != 8:
		return 0, fmt.Errorf("%s below %s has no ID of 64 bits: this kernel is not supported", path, root)
	}
	return binary.NativeEndian.Uint64(handle.Bytes()), nil
}

// findCgroup finds a cgroup that the policy names.
func (e *encoder) findCgroup(path string) (cgroup, error) {
	id, err := CgroupID(path)
	if err == nil {
		e.named = append(e.named, record.Cgroup{Path: path, ID: id})
	}
	return cgroup{id, uint8(dataplane.CgroupDepth(path))}, err // the depth is at most MaxCgroupDepth
}

// initialCgroups is the inode of the first cgroup namespace (PROC_CGROUP_INIT_INO of linux/proc_ns.h).
const initialCgroups = 0xeffffffb

// lastRoot is the last result of findRoot, because a process asks for the same cgroups every second.
var lastRoot atomic.Pointer[string]

// cgroupRoot returns the mount point of the root of cgroup v2.
func cgroupRoot() (string, error) {
	if root := lastRoot.Load(); root != nil {
		var fs unix.Statfs_t
		if unix.Statfs(*root, &fs) == nil && fs.Type == unix.CGROUP2_SUPER_MAGIC {
			return *root, nil
		}
	}
	root, err := findRoot()
	if err == nil {
		lastRoot.Store(&root)
	}
	return root, err
}

// findRoot finds the root of cgroup v2. Programs count depths from the root of the whole system, so another
// namespace is refused.
func findRoot() (string, error) {
	var namespace unix.Stat_t
	if err := unix.Stat("/proc/self/ns/cgroup", &namespace); err == nil && namespace.Ino != initialCgroups {
		return "", errors.New("shaper is in a cgroup namespace of a container, whose depth is unknown: start it in the one of the host")
	}
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(text)) {
		mount, kind, found := strings.Cut(line, " - ") // proc_pid_mountinfo(5)
		fields := strings.Fields(mount)
		if found && strings.HasPrefix(kind, "cgroup2 ") && len(fields) > 4 && fields[3] == "/" {
			return unescape(fields[4]), nil
		}
	}
	return "", errors.New("cgroup v2 is not mounted: mount -t cgroup2 none /sys/fs/cgroup")
}

// unescape decodes the octal escapes of mountinfo.
func unescape(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}
