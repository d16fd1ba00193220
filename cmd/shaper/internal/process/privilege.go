package process

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/cli"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
)

// Capabilities kept by run and tap, as bits.
const (
	// CAP_SYS_ADMIN is needed to open programs by their ID, which other processes may have
	// reloaded, confirmed or left behind.
	runCapabilities = 1<<unix.CAP_NET_ADMIN | 1<<unix.CAP_BPF | 1<<unix.CAP_PERFMON | 1<<unix.CAP_SYS_ADMIN
	// A service of shaper@.service that starts later makes /run/shaper belong to its user.
	serveCapabilities = runCapabilities | 1<<unix.CAP_DAC_OVERRIDE
	tapCapabilities   = 1<<unix.CAP_NET_ADMIN | 1<<unix.CAP_NET_RAW
)

// dropPrivileges drops all capabilities of root but those in keep, in all threads, and sets
// NoNewPrivs, to keep programs it starts from gaining any. A process of another user has nothing to
// drop.
func dropPrivileges(s cli.Streams, keep uint64, o *Options, files ...string) {
	defer runtime.UnlockOSThread() // locked by init
	SetName()
	if os.Geteuid() != 0 {
		return
	}
	if o.Metrics.text != "" {
		keep |= 1 << unix.CAP_NET_BIND_SERVICE // the port may be below 1024
	}
	groups, _ := o.Control.groups() // check found them
	if o.Policy.File != "" {
		files = append(files, o.Policy.File)
	}
	if err := dropTo(keep, files, append(o.Control.paths(), o.State.paths()...), groups); err != nil {
		fmt.Fprintf(s.Err, "shaper: warning: keeping all capabilities: %v\n", err)
	}
}

// SetName sets the name shown by ps and pgrep. After executing /proc/self/exe it would be exe.
func SetName() { _ = os.WriteFile("/proc/self/comm", []byte("shaper"), 0) }

// inAllThreads makes a system call in all threads.
func inAllThreads(trap, a1, a2, a3 uintptr) error {
	if _, _, e := syscall.AllThreadsSyscall(trap, a1, a2, a3); e != 0 {
		return e
	}
	return nil
}

// dropTo drops the capabilities not in keep, and makes the process a member of groups, so that it
// can give sockets to them.
//
// Go cannot change the capabilities of all threads of a program linked with cgo. Then the process
// executes itself again with those of the calling thread, and dropTo does not return. The caller
// must be the main thread: while another thread calls exec, the process looks like a zombie.
func dropTo(keep uint64, files []string, sockets []string, groups []int) error {
	now, err := capabilities()
	if err != nil {
		return err
	}
	none, err := unix.PrctlRetInt(unix.PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0)
	if err != nil {
		return fmt.Errorf("PR_GET_NO_NEW_PRIVS: %w", err)
	}
	if keep, err = withFileAccess(now, keep, files, sockets); err != nil {
		return err
	}
	if now.permitted&^keep == 0 && none == 1 {
		return nil
	}
	prctl, again := inAllThreads, false
	if errors.Is(prctl(unix.SYS_PRCTL, unix.PR_GET_NO_NEW_PRIVS, 0, 0), unix.ENOTSUP) {
		again = true
		prctl = func(trap, a1, a2, a3 uintptr) error { return unix.Prctl(int(a1), a2, a3, 0, 0) }
	}
	for c := range uint64(unix.CAP_LAST_CAP + 1) {
		if keep&(1<<c) != 0 {
			continue
		}
		// EPERM: no CAP_SETPCAP; then no_new_privs limits exec to the capabilities permitted now.
		// EINVAL: the kernel does not know this capability.
		err := prctl(unix.SYS_PRCTL, unix.PR_CAPBSET_DROP, uintptr(c), 0)
		if err != nil && !errors.Is(err, unix.EPERM) && !errors.Is(err, unix.EINVAL) {
			return fmt.Errorf("PR_CAPBSET_DROP %d: %w", c, err)
		}
	}
	if err := prctl(unix.SYS_PRCTL, unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0); err != nil {
		return fmt.Errorf("PR_CAP_AMBIENT_CLEAR_ALL: %w", err)
	}
	if err := prctl(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0); err != nil {
		return fmt.Errorf("PR_SET_NO_NEW_PRIVS: %w", err)
	}
	if err := joinGroups(groups); err != nil && !errors.Is(err, unix.EPERM) { // EPERM: it may be a member
		return err
	}
	kept := now.permitted & keep
	sets := capabilitySets{effective: kept, permitted: kept}
	if !again {
		return sets.setAll()
	}
	if err := sets.set(); err != nil {
		return err
	}
	return fmt.Errorf("exec: %w", syscall.Exec("/proc/self/exe", os.Args, os.Environ()))
}

// joinGroups adds groups to those of the process.
func joinGroups(groups []int) error {
	if len(groups) == 0 {
		return nil
	}
	now, err := unix.Getgroups()
	if err == nil {
		err = syscall.Setgroups(append(now, groups...))
	}
	if err != nil {
		return fmt.Errorf("setgroups: %w", err)
	}
	return nil
}

// withFileAccess adds root's capabilities for files of other users: a policy in a home directory,
// the runtime directory of a service, or the directory of a socket.
func withFileAccess(
	now capabilitySets, keep uint64, files, sockets []string,
) (uint64, error) {
	without := now
	without.effective &= keep
	if err := without.set(); err != nil {
		return keep, err
	}
	for _, file := range files {
		if unix.Faccessat(unix.AT_FDCWD, file, unix.R_OK, unix.AT_EACCESS) == unix.EACCES {
			keep |= 1 << unix.CAP_DAC_READ_SEARCH
		}
	}
	dirs := []string{kernel.StateDir}
	for _, path := range sockets {
		dirs = append(dirs, filepath.Dir(path))
	}
	for _, dir := range dirs {
		if unix.Faccessat(unix.AT_FDCWD, dir, unix.W_OK|unix.X_OK, unix.AT_EACCESS) == unix.EACCES {
			keep |= 1 << unix.CAP_DAC_OVERRIDE
		}
	}
	return keep, now.set()
}

// capabilitySets are the capabilities of a thread, as bits.
type capabilitySets struct{ effective, permitted, inheritable uint64 }

// capabilities returns those of the calling thread.
func capabilities() (capabilitySets, error) {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData // the low and the high 32 bits
	if err := unix.Capget(&header, &data[0]); err != nil {
		return capabilitySets{}, fmt.Errorf("capget: %w", err)
	}
	join := func(low, high uint32) uint64 { return uint64(high)<<32 | uint64(low) }
	return capabilitySets{
		join(data[0].Effective, data[1].Effective),
		join(data[0].Permitted, data[1].Permitted),
		join(data[0].Inheritable, data[1].Inheritable),
	}, nil
}

// CanLook reports whether the process may look at the shapers in the kernel.
func CanLook() bool {
	now, err := capabilities()
	return err != nil || now.effective&(1<<unix.CAP_SYS_ADMIN) != 0
}

// encode returns them as capset takes them.
func (s capabilitySets) encode() (header unix.CapUserHeader, data [2]unix.CapUserData) {
	header.Version = unix.LINUX_CAPABILITY_VERSION_3
	data[0] = unix.CapUserData{
		Effective: uint32(s.effective), Permitted: uint32(s.permitted), Inheritable: uint32(s.inheritable),
	}
	data[1] = unix.CapUserData{
		Effective: uint32(s.effective >> 32), Permitted: uint32(s.permitted >> 32),
		Inheritable: uint32(s.inheritable >> 32),
	}
	return header, data
}

// set sets the capabilities of the calling thread.
func (s capabilitySets) set() error {
	header, data := s.encode()
	if err := unix.Capset(&header, &data[0]); err != nil {
		return fmt.Errorf("capset: %w", err)
	}
	return nil
}

// setAll sets the capabilities of all threads.
func (s capabilitySets) setAll() error {
	header, data := s.encode()
	_, _, err := syscall.AllThreadsSyscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&header)),
		uintptr(unsafe.Pointer(&data[0])), 0)
	if err != 0 {
		return fmt.Errorf("capset: %w", err)
	}
	return nil
}
