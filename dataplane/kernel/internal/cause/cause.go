// Package cause finds the cause of an error of the bpf system call or of netlink, and how
// to remove it.
package cause

import (
	"errors"
	"fmt"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/features"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// oldestKernel is the first kernel with all functions used by the programs, as LINUX_VERSION_CODE:
// 5.18 for bpf_xdp_load_bytes.
const oldestKernel = 5<<16 | 18<<8

// Of returns an error with the cause and a remedy if both are known: too few file
// descriptors, an old kernel, a missing capability, or a kernel built without eBPF.
// Otherwise it returns err. The result matches err, unix.EMFILE or unix.EPERM with
// errors.Is. Of(nil) is nil.
func Of(err error) error {
	if err == nil {
		return nil
	}
	version, _ := features.LinuxVersionCode()
	var refused *ebpf.VerifierError
	switch {
	case outOfFiles(err):
		return fmt.Errorf("%w: raise the limit (ulimit -n, in a service LimitNOFILE=): %d are enough",
			unix.EMFILE, enoughFiles)
	case version != 0 && version < oldestKernel && !errors.Is(err, unix.EPERM):
		return fmt.Errorf("kernel %d.%d is too old: shaper needs 5.18 or newer: %w", version>>16,
			version>>8&0xff, err)
	// the verifier, without CAP_PERFMON
	case errors.As(err, &refused) && strings.Contains(err.Error(), "!root"):
		return notPermitted()
	case errors.Is(err, unix.EPERM) && !errors.As(err, &refused):
		return notPermitted()
	case errors.Is(err, ebpf.ErrNotSupported):
		return fmt.Errorf(
			"this kernel lacks a part of eBPF (CONFIG_BPF_SYSCALL, CONFIG_BPF_JIT, CONFIG_NET_CLS_ACT): %w",
			err)
	}
	return err
}

// enoughFiles is a limit of open files that suffices for shapers of both directions. Each
// opens about 20.
const enoughFiles = 128

// outOfFiles reports whether an error is caused by a lack of file descriptors. If they run
// out during a probe of the kernel's features, the library returns ErrNotSupported.
func outOfFiles(err error) bool {
	if errors.Is(err, unix.EMFILE) {
		return true
	}
	if !errors.Is(err, ebpf.ErrNotSupported) {
		return false
	}
	const probes = 32 // descriptors: more than a probe opens, plus those closed since
	for range probes {
		fd, err := unix.Open("/", unix.O_PATH|unix.O_CLOEXEC, 0)
		if err != nil {
			return errors.Is(err, unix.EMFILE)
		}
		defer unix.Close(fd)
	}
	return false
}

// notPermitted returns EPERM with the missing capabilities.
func notPermitted() error {
	const remedy = "run as root, or with CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON"
	switch list := missingCapabilities(); len(list) {
	case 0: // the thread may have them in another user namespace only
		return fmt.Errorf("%w: %s", unix.EPERM, remedy)
	case 1:
		return fmt.Errorf("%w: %s is missing: %s", unix.EPERM, list[0], remedy)
	default:
		last := len(list) - 1
		return fmt.Errorf("%w: %s and %s are missing: %s", unix.EPERM, strings.Join(list[:last], ", "),
			list[last], remedy)
	}
}

// missingCapabilities returns the names of the capabilities that this thread lacks to attach
// a program. CAP_SYS_ADMIN includes CAP_BPF and CAP_PERFMON.
func missingCapabilities() (names []string) {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData // the low and the high 32 bits
	if err := unix.Capget(&header, &data[0]); err != nil {
		return nil
	}
	has := func(c int) bool { return data[c/32].Effective&(1<<(c%32)) != 0 }
	if !has(unix.CAP_BPF) && !has(unix.CAP_SYS_ADMIN) {
		names = append(names, "CAP_BPF")
	}
	if !has(unix.CAP_NET_ADMIN) {
		names = append(names, "CAP_NET_ADMIN")
	}
	if !has(unix.CAP_PERFMON) && !has(unix.CAP_SYS_ADMIN) {
		names = append(names, "CAP_PERFMON")
	}
	return names
}

// NoDevice reports whether a netlink request failed because the device does not exist.
func NoDevice(err error) bool {
	return errors.As(err, new(netlink.LinkNotFoundError)) || errors.Is(err, unix.ENODEV)
}
