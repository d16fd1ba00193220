//go:build linux && amd64

package chaos

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The tracer runs a command and makes one of its system calls fail, or kills it
// there. strace can inject the same faults, but it counts the calls of each
// thread separately. A goroutine changes threads, so a number would select
// another call in each run. Here a point has the name of its call and a number
// that counts such calls of all threads.

// plan is the task of the tracer, as JSON in the environment variable planVariable.
type plan struct {
	Log   string // path of the log
	Point string // point of the fault, "" for none
	Fault string // kill, kill-all or the name of an error
	Guard bool   // points are those of the processes that the command starts, such as its guard
}

const planVariable = "SHAPER_CHAOS_PLAN"

// Lines of the log begin with one of these words.
const (
	logPoint = "point" // a point was passed
	logFault = "fault" // the fault was injected
	logChild = "child" // a process was started
)

// faultErrors are the errors that calls fail with.
var faultErrors = map[string]syscall.Errno{
	"ENOMEM": unix.ENOMEM, "EBUSY": unix.EBUSY, "ENOSPC": unix.ENOSPC, "EMFILE": unix.EMFILE,
}

const (
	faultKill    = "kill"     // the command is killed
	faultKillAll = "kill-all" // the guard is killed too, before the command
)

// tracer follows the threads of one process.
type tracer struct {
	plan     plan
	log      *os.File
	pid      int
	threads  map[int]int           // process of each known thread
	early    map[int]bool          // threads that stopped before the event that announces them
	failing  map[int]syscall.Errno // error that a thread's current call will return
	children []int                 // processes that the command started
	detach   map[int]bool          // children to detach from
	seen     map[string]int        // number of points by name
	done     bool                  // the fault was injected
}

// trace runs the tracer. It exits with the command's status.
func trace(args []string) {
	runtime.LockOSThread()
	t := &tracer{
		threads: map[int]int{}, early: map[int]bool{}, failing: map[int]syscall.Errno{},
		detach: map[int]bool{}, seen: map[string]int{},
	}
	status, err := t.run(args)
	if err != nil {
		fmt.Fprintln(os.Stderr, "tracer:", err)
		os.Exit(99)
	}
	if status.Signaled() {
		os.Exit(128 + int(status.Signal()))
	}
	os.Exit(status.ExitStatus())
}

// run starts the command and handles its stops until all traced processes have ended.
func (t *tracer) run(args []string) (syscall.WaitStatus, error) {
	if err := json.Unmarshal([]byte(os.Getenv(planVariable)), &t.plan); err != nil {
		return 0, err
	}
	var err error
	if t.log, err = os.OpenFile(t.plan.Log, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600); err != nil {
		return 0, err
	}
	t.pid, err = syscall.ForkExec(args[0], args, &syscall.ProcAttr{
		Env: slices.DeleteFunc(os.Environ(),
			func(s string) bool { return strings.HasPrefix(s, planVariable) }),
		Files: []uintptr{0, 1, 2},
		Sys:   &syscall.SysProcAttr{Ptrace: true},
	})
	if err != nil {
		return 0, err
	}
	var status syscall.WaitStatus
	if _, err := syscall.Wait4(t.pid, &status, 0, nil); err != nil {
		return 0, err
	}
	const options = unix.PTRACE_O_TRACESYSGOOD | unix.PTRACE_O_TRACECLONE | unix.PTRACE_O_TRACEFORK |
		unix.PTRACE_O_TRACEVFORK | unix.PTRACE_O_TRACEEXEC | unix.PTRACE_O_EXITKILL
	if err := syscall.PtraceSetOptions(t.pid, options); err != nil {
		return 0, err
	}
	t.threads[t.pid] = t.pid
	t.resume(t.pid, 0)
	var result syscall.WaitStatus
	for {
		tid, err := syscall.Wait4(-1, &status, unix.WALL, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if errors.Is(err, unix.ECHILD) {
			return result, nil
		}
		if err != nil {
			return 0, err
		}
		switch {
		case status.Stopped():
			t.stopped(tid, status)
		case tid == t.pid:
			result = status
		}
	}
}

// resume continues a thread to its next system call. It may be dead by now.
func (t *tracer) resume(tid int, signal syscall.Signal) {
	_ = syscall.PtraceSyscall(tid, int(signal))
}

// stopped handles a stop of a thread.
func (t *tracer) stopped(tid int, status syscall.WaitStatus) {
	signal := status.StopSignal()
	switch {
	case t.threads[tid] == 0:
		t.firstStop(tid)
		return
	case signal == syscall.SIGTRAP|0x80:
		t.call(tid)
		signal = 0
	case signal == syscall.SIGTRAP && status.TrapCause() > 0:
		t.event(tid, status.TrapCause())
		signal = 0
	case signal == syscall.SIGSTOP: // first stop of a thread, after its event
		signal = 0
	}
	t.resume(tid, signal)
}

// firstStop handles the first stop of a new thread or process. It detaches from processes.
func (t *tracer) firstStop(tid int) {
	if t.detach[tid] {
		delete(t.detach, tid)
		_ = syscall.PtraceDetach(tid)
		return
	}
	t.early[tid] = true
}

// event handles the start of a thread or process.
func (t *tracer) event(tid, cause int) {
	message, err := syscall.PtraceGetEventMsg(tid)
	if err != nil || cause == unix.PTRACE_EVENT_EXEC {
		return
	}
	child := int(message)
	stopped := t.early[child]
	delete(t.early, child)
	t.threads[child] = t.threads[tid]
	if cause != unix.PTRACE_EVENT_CLONE {
		t.threads[child] = child
		t.children = append(t.children, child)
		fmt.Fprintf(t.log, "%s\t%d\n", logChild, child)
	}
	switch {
	case !t.plan.Guard && t.threads[child] != t.pid:
		delete(t.threads, child)
		t.detach[child] = true
		if stopped {
			t.firstStop(child)
		}
	case stopped:
		t.resume(child, 0)
	}
}

// callInfo is struct ptrace_syscall_info of linux/ptrace.h, at a system call's entry.
type callInfo struct {
	Op     uint8 // 1 entry, 2 exit
	_      [3]uint8
	Arch   uint32
	IP, SP uint64
	Number uint64
	Args   [6]uint64
	_      [16]byte
}

// call handles the entry to or the exit from a system call.
func (t *tracer) call(tid int) {
	const getSyscallInfo = 0x420e
	var info callInfo
	_, _, errno := unix.Syscall6(unix.SYS_PTRACE, getSyscallInfo, uintptr(tid), unsafe.Sizeof(info),
		uintptr(unsafe.Pointer(&info)), 0, 0)
	switch {
	case errno != 0:
	case info.Op == 1:
		t.enter(tid, &info)
	case info.Op == 2:
		if fail, ok := t.failing[tid]; ok {
			delete(t.failing, tid)
			t.setRegisters(tid, func(r *syscall.PtraceRegs) { r.Rax = uint64(-int64(fail)) })
		}
	}
}

// enter counts the point of a system call, and injects the fault there.
func (t *tracer) enter(tid int, info *callInfo) {
	if t.plan.Guard == (t.threads[tid] == t.pid) {
		return
	}
	name := nameOf(tid, info.Number, info.Args)
	if name == "" {
		return
	}
	t.seen[name]++
	point := fmt.Sprintf("%s#%d", name, t.seen[name])
	fmt.Fprintf(t.log, "%s\t%s\n", logPoint, point)
	if t.done || point != t.plan.Point {
		return
	}
	t.done = true
	fmt.Fprintf(t.log, "%s\t%s\n", logFault, point)
	switch t.plan.Fault {
	case faultKillAll:
		for _, child := range t.children {
			_ = syscall.Kill(child, syscall.SIGKILL)
		}
		fallthrough
	case faultKill: // the thread dies at the entry, before the call
		_ = syscall.Kill(t.threads[tid], syscall.SIGKILL)
	default:
		t.failing[tid] = faultErrors[t.plan.Fault]
		t.setRegisters(tid, func(r *syscall.PtraceRegs) { r.Orig_rax = ^uint64(0) }) // no system call
	}
}

// setRegisters changes the registers of a stopped thread.
func (t *tracer) setRegisters(tid int, f func(*syscall.PtraceRegs)) {
	var regs syscall.PtraceRegs
	if syscall.PtraceGetRegs(tid, &regs) == nil {
		f(&regs)
		_ = syscall.PtraceSetRegs(tid, &regs)
	}
}
