package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
)

// Capabilities that run and tap keep, as bits.
const (
	// CAP_SYS_ADMIN is needed to open programs by their ID, which other processes may have
	// reloaded, confirmed or left behind.
	runCapabilities = 1<<unix.CAP_NET_ADMIN | 1<<unix.CAP_BPF | 1<<unix.CAP_PERFMON | 1<<unix.CAP_SYS_ADMIN
	tapCapabilities = 1<<unix.CAP_NET_ADMIN | 1<<unix.CAP_NET_RAW
)

// dropPrivileges executes a command of root again in the same process, with only the
// capabilities in keep, and with NoNewPrivs, so that no program it starts can gain any.
//
// A thread can only change its own capabilities, and Go cannot change those of all its
// threads if it is linked with cgo. After exec, a process has the capabilities of the
// calling thread. That must be the main thread: while another thread calls exec, the process
// looks like a zombie. A process of another user has nothing to drop, and would lose file
// capabilities by exec.
func dropPrivileges(s streams, keep uint64, policy *policyFlags, metrics string, control *controlFlags, state *stateFlag) {
	defer runtime.UnlockOSThread() // locked by init
	nameProcess()
	if os.Geteuid() != 0 {
		return
	}
	if metrics != "" {
		keep |= 1 << unix.CAP_NET_BIND_SERVICE // the port may be below 1024
	}
	groups, _ := control.groups() // check found them
	if err := restartWith(keep, policy.file, append(control.paths(), state.paths()...), groups); err != nil {
		fmt.Fprintf(s.err, "shaper: warning: keeping all capabilities: %v\n", err)
	}
}

// nameProcess sets the name that ps and pgrep show. After executing /proc/self/exe it would be
// exe.
func nameProcess() { _ = os.WriteFile("/proc/self/comm", []byte("shaper"), 0) }

// restartWith restarts the process with the capabilities in keep, as a member of groups, so that
// it can give sockets to them. It returns nil if there is nothing to drop, and an error if it
// fails; otherwise it does not return.
func restartWith(keep uint64, policy string, sockets []string, groups []int) error {
	now, err := capabilities()
	if err != nil {
		return err
	}
	none, err := unix.PrctlRetInt(unix.PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0)
	if err != nil {
		return fmt.Errorf("PR_GET_NO_NEW_PRIVS: %w", err)
	}
	if keep, err = withFileAccess(now, keep, policy, sockets); err != nil {
		return err
	}
	if now.permitted&^keep == 0 && none == 1 {
		return nil
	}
	for c := range uint64(unix.CAP_LAST_CAP + 1) {
		if keep&(1<<c) != 0 {
			continue
		}
		// EPERM: no CAP_SETPCAP; then no_new_privs limits exec to the capabilities that
		// are permitted now. EINVAL: the kernel does not know this capability.
		err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(c), 0, 0, 0)
		if err != nil && !errors.Is(err, unix.EPERM) && !errors.Is(err, unix.EINVAL) {
			return fmt.Errorf("PR_CAPBSET_DROP %d: %w", c, err)
		}
	}
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return fmt.Errorf("PR_CAP_AMBIENT_CLEAR_ALL: %w", err)
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("PR_SET_NO_NEW_PRIVS: %w", err)
	}
	if err := joinGroups(groups); err != nil && !errors.Is(err, unix.EPERM) { // EPERM: it may be a member
		return err
	}
	kept := now.permitted & keep
	if err := (capabilitySets{effective: kept, permitted: kept}).set(); err != nil {
		return err
	}
	return fmt.Errorf("exec: %w", syscall.Exec("/proc/self/exe", os.Args, os.Environ()))
}

// joinGroups adds groups to those of the calling thread, which a process has after exec.
func joinGroups(groups []int) error {
	if len(groups) == 0 {
		return nil
	}
	now, err := unix.Getgroups()
	if err == nil {
		err = unix.Setgroups(append(now, groups...))
	}
	if err != nil {
		return fmt.Errorf("setgroups: %w", err)
	}
	return nil
}

// withFileAccess adds the capabilities that root needs for files of other users: a policy in
// a home directory, the runtime directory of a service, or the directory of a socket.
func withFileAccess(now capabilitySets, keep uint64, policy string, sockets []string) (uint64, error) {
	without := now
	without.effective &= keep
	if err := without.set(); err != nil {
		return keep, err
	}
	if policy != "" && unix.Faccessat(unix.AT_FDCWD, policy, unix.R_OK, unix.AT_EACCESS) == unix.EACCES {
		keep |= 1 << unix.CAP_DAC_READ_SEARCH
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

// set sets the capabilities of the calling thread.
func (s capabilitySets) set() error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	data := [2]unix.CapUserData{
		{Effective: uint32(s.effective), Permitted: uint32(s.permitted), Inheritable: uint32(s.inheritable)},
		{Effective: uint32(s.effective >> 32), Permitted: uint32(s.permitted >> 32), Inheritable: uint32(s.inheritable >> 32)},
	}
	if err := unix.Capset(&header, &data[0]); err != nil {
		return fmt.Errorf("capset: %w", err)
	}
	return nil
}
