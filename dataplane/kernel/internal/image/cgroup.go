package image

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

// cgroup is a cgroup v2 as the programs know it.
type cgroup struct {
	id    uint64
	depth uint8 // number of cgroups above it
}

// findCgroup returns the cgroup of a path below the root of cgroup v2.
func findCgroup(path string) (cgroup, error) {
	root, err := cgroupRoot()
	if err != nil {
		return cgroup{}, fmt.Errorf("%s: %w", path, err)
	}
	handle, _, err := unix.NameToHandleAt(unix.AT_FDCWD, filepath.Join(root, path), 0)
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR):
		return cgroup{}, fmt.Errorf("%s does not exist below %s: create the cgroup first", path, root)
	case err != nil:
		return cgroup{}, fmt.Errorf("%s below %s: %w", path, root, err)
	case handle.Size() != 8:
		return cgroup{}, fmt.Errorf("%s below %s has no ID of 64 bits: this kernel is not supported", path, root)
	}
	depth := uint8(dataplane.CgroupDepth(path)) // at most MaxCgroupDepth
	return cgroup{binary.NativeEndian.Uint64(handle.Bytes()), depth}, nil
}

// initialCgroups is the inode of the first cgroup namespace (PROC_CGROUP_INIT_INO of linux/proc_ns.h).
const initialCgroups = 0xeffffffb

// cgroupRoot returns the mount point of the root of cgroup v2. Programs count depths from the root of the
// whole system, so another namespace is refused.
func cgroupRoot() (string, error) {
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
