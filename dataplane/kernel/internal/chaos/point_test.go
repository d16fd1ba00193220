//go:build linux && amd64

package chaos

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// bpfCommands are enum bpf_cmd of linux/bpf.h.
var bpfCommands = []string{
	"MAP_CREATE", "MAP_LOOKUP_ELEM", "MAP_UPDATE_ELEM", "MAP_DELETE_ELEM", "MAP_GET_NEXT_KEY", "PROG_LOAD", "OBJ_PIN", "OBJ_GET",
	"PROG_ATTACH", "PROG_DETACH", "PROG_TEST_RUN", "PROG_GET_NEXT_ID", "MAP_GET_NEXT_ID", "PROG_GET_FD_BY_ID", "MAP_GET_FD_BY_ID",
	"OBJ_GET_INFO_BY_FD", "PROG_QUERY", "RAW_TRACEPOINT_OPEN", "BTF_LOAD", "BTF_GET_FD_BY_ID", "TASK_FD_QUERY",
	"MAP_LOOKUP_AND_DELETE_ELEM", "MAP_FREEZE", "BTF_GET_NEXT_ID", "MAP_LOOKUP_BATCH", "MAP_LOOKUP_AND_DELETE_BATCH",
	"MAP_UPDATE_BATCH", "MAP_DELETE_BATCH", "LINK_CREATE", "LINK_UPDATE", "LINK_GET_FD_BY_ID", "LINK_GET_NEXT_ID", "ENABLE_STATS",
	"ITER_CREATE", "LINK_DETACH", "PROG_BIND_MAP",
}

// netlinkTypes are the message types of linux/rtnetlink.h.
var netlinkTypes = map[uint16]string{
	unix.RTM_NEWLINK: "NEWLINK", unix.RTM_DELLINK: "DELLINK", unix.RTM_GETLINK: "GETLINK",
	unix.RTM_SETLINK: "SETLINK", unix.RTM_NEWQDISC: "NEWQDISC", unix.RTM_DELQDISC: "DELQDISC",
	unix.RTM_GETQDISC: "GETQDISC", unix.RTM_NEWTCLASS: "NEWTCLASS", unix.RTM_DELTCLASS: "DELTCLASS",
	unix.RTM_GETTCLASS: "GETTCLASS", unix.RTM_NEWTFILTER: "NEWTFILTER", unix.RTM_DELTFILTER: "DELTFILTER",
	unix.RTM_GETTFILTER: "GETTFILTER",
}

// System calls with a path, and the index of that argument; system calls with a descriptor as first
// argument; and others.
var (
	pathCalls = map[uint64]struct {
		name string
		arg  int
	}{
		unix.SYS_OPEN: {"open", 0}, unix.SYS_OPENAT: {"open", 1}, unix.SYS_STAT: {"stat", 0},
		unix.SYS_LSTAT: {"stat", 0}, unix.SYS_NEWFSTATAT: {"stat", 1}, unix.SYS_STATX: {"stat", 1},
		unix.SYS_STATFS: {"statfs", 0}, unix.SYS_MKDIR: {"mkdir", 0}, unix.SYS_MKDIRAT: {"mkdir", 1},
		unix.SYS_RMDIR: {"rmdir", 0}, unix.SYS_UNLINK: {"unlink", 0}, unix.SYS_UNLINKAT: {"unlink", 1},
		unix.SYS_RENAME: {"rename", 0}, unix.SYS_RENAMEAT: {"rename", 1}, unix.SYS_RENAMEAT2: {"rename", 1},
		unix.SYS_LINK: {"link", 1}, unix.SYS_LINKAT: {"link", 3}, unix.SYS_READLINKAT: {"readlink", 1},
		unix.SYS_CHMOD: {"chmod", 0}, unix.SYS_FCHMODAT: {"chmod", 1}, unix.SYS_FCHOWNAT: {"chown", 1},
	}
	fileCalls = map[uint64]string{
		unix.SYS_READ: "read", unix.SYS_PREAD64: "read", unix.SYS_WRITE: "write", unix.SYS_PWRITE64: "write",
		unix.SYS_FSTAT: "fstat", unix.SYS_FSYNC: "fsync", unix.SYS_FDATASYNC: "fsync",
		unix.SYS_FLOCK: "flock", unix.SYS_FTRUNCATE: "ftruncate", unix.SYS_FCHMOD: "fchmod",
		unix.SYS_FCHOWN: "fchown", unix.SYS_GETDENTS64: "getdents", unix.SYS_IOCTL: "ioctl",
	}
	otherCalls = map[uint64]string{
		unix.SYS_SOCKET: "socket", unix.SYS_BIND: "bind", unix.SYS_CONNECT: "connect",
		unix.SYS_SENDMSG: "sendmsg", unix.SYS_PIPE2: "pipe", unix.SYS_KILL: "kill",
		unix.SYS_PIDFD_OPEN: "pidfd_open", unix.SYS_PIDFD_SEND_SIGNAL: "pidfd_send_signal",
		unix.SYS_CAPSET: "capset", unix.SYS_MEMFD_CREATE: "memfd_create",
		unix.SYS_PERF_EVENT_OPEN: "perf_event_open", unix.SYS_VFORK: "fork", unix.SYS_FORK: "fork",
		unix.SYS_EXIT_GROUP: "exit",
	}
)

// ignoredFiles are files that the C library and the Go runtime read at the start, and the runtime's
// own descriptors: their failure ends any Go program.
var ignoredFiles = regexp.MustCompile(`^(/etc/|/lib|/usr/|/dev/|/proc/self/(maps|cgroup|mountinfo)|/proc/\d+/(maps|cgroup|mountinfo)|/sys/(kernel/mm|fs/cgroup|devices)/|anon_inode:\[event)`)

// number matches the parts of a path that differ from run to run.
var number = regexp.MustCompile(`\d{2,}`)

// nameOf describes a system call. It is empty for calls that get no fault.
func nameOf(tid int, nr uint64, args [6]uint64) string {
	if c, ok := pathCalls[nr]; ok {
		path := stringAt(tid, args[c.arg])
		if c.name == "stat" && path == "" { // fstat
			path = fileOf(tid, args[0])
		}
		return callName(c.name, path)
	}
	if name, ok := fileCalls[nr]; ok {
		if nr == unix.SYS_WRITE && (args[0] == 1 || args[0] == 2) {
			return [...]string{1: "write stdout", 2: "write stderr"}[args[0]]
		}
		return callName(name, fileOf(tid, args[0]))
	}
	switch nr {
	case unix.SYS_BPF:
		if int(args[0]) < len(bpfCommands) {
			return "bpf " + bpfCommands[args[0]]
		}
		return fmt.Sprintf("bpf %d", args[0])
	case unix.SYS_SENDTO:
		var header [6]byte
		if n, _ := syscall.PtracePeekData(tid, uintptr(args[1]), header[:]); n == len(header) {
			kind := binary.NativeEndian.Uint16(header[4:])
			if name := netlinkTypes[kind]; name != "" {
				return "netlink " + name
			}
			return fmt.Sprintf("netlink %d", kind)
		}
		return "sendto"
	case unix.SYS_RECVFROM, unix.SYS_RECVMSG:
		return "netlink receive"
	case unix.SYS_CLONE:
		if args[0]&unix.CLONE_THREAD == 0 {
			return "fork"
		}
	case unix.SYS_PRCTL:
		if args[0] == unix.PR_SET_NO_NEW_PRIVS || args[0] == unix.PR_CAPBSET_DROP ||
			args[0] == unix.PR_CAP_AMBIENT {
			return "prctl"
		}
	}
	return otherCalls[nr]
}

// callName names a call on a path, without the numbers that differ from run to run.
func callName(name, path string) string {
	if path == "" || ignoredFiles.MatchString(path) {
		return ""
	}
	path = strings.ReplaceAll(path, os.TempDir()+"/", "TMP/")
	if strings.Contains(path, "/fdinfo/") {
		path = "/proc/N/fdinfo/N"
	}
	return name + " " + number.ReplaceAllString(path, "N")
}

// stringAt reads a string from a thread's memory.
func stringAt(tid int, at uint64) string {
	var out []byte
	for len(out) < 4096 && at != 0 {
		var word [8]byte
		n, err := syscall.PtracePeekData(tid, uintptr(at)+uintptr(len(out)), word[:])
		if end := bytes.IndexByte(word[:n], 0); end >= 0 {
			return string(append(out, word[:end]...))
		}
		if err != nil {
			break
		}
		out = append(out, word[:n]...)
	}
	return string(out)
}

// fileOf is the path or kind of a thread's descriptor.
func fileOf(tid int, fd uint64) string {
	path, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", tid, int32(fd)))
	if err != nil {
		return ""
	}
	if kind, _, ok := strings.Cut(path, ":["); ok && kind != "anon_inode" {
		return kind // a pipe or a socket
	}
	return path
}

// visible matches points whose calls other processes can observe. A kill before any other call has
// the same effect as one before the next visible call.
var visible = regexp.MustCompile(`^(bpf (OBJ_PIN|LINK_(CREATE|UPDATE|DETACH)|PROG_(ATTACH|DETACH)|MAP_(UPDATE|DELETE)_\w+)|netlink (NEW|DEL|SET)` +
	`|(open|write|flock|ftruncate|chmod|fchmod|chown|fchown) /(run/shaper|sys)|(mkdir|rmdir|unlink|rename|link) |write (stdout|pipe|socket)|sendmsg|fork|kill|pidfd_send_signal|exit)`)

// listing matches points that occur once per object of the machine.
var listing = regexp.MustCompile(`_ID#|_INFO_|/fdinfo/|receive#|^(socket|bind)#`)

// failingListings is the number of listing points of one kind that fail.
const failingListings = 3

// selected reports whether a point gets faults. A call that is made a thousand times, as for the leaves
// of the flows of a queue, gets them at the first ones and then at every 50th.
func selected(point string) bool {
	_, text, _ := strings.Cut(point, "#")
	n, _ := strconv.Atoi(text)
	return n <= 20 || n%50 == 0
}

// inAllThreads matches the calls that the command makes in all its threads, to drop privileges. The kernel
// fails all of them or none. If one failed, Go's runtime would end the process, before it changes anything.
var inAllThreads = regexp.MustCompile(`^(prctl|capset|setgroups)#`)

// failing reports whether to let the call of a point fail.
func failing(point string) bool {
	name, text, _ := strings.Cut(point, "#")
	n, _ := strconv.Atoi(text)
	return name != "exit" && !inAllThreads.MatchString(point) &&
		(n <= failingListings || !listing.MatchString(point))
}
