package metrics

import (
	"bytes"
	"os"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/cli"
)

// The names of metrics of processes are those of Prometheus' own libraries.
var (
	descBuild = describe("shaper_build_info", "1, with the version of shaper, its commit and that of Go.",
		[]string{"version", "revision", "goversion"})
	descStart = describe("process_start_time_seconds", "Unix time at which the process started.", nil)
	descCPU   = describe("process_cpu_seconds_total", "CPU time of the process, in user and system mode.", nil)
	descRSS   = describe("process_resident_memory_bytes", "Resident memory of the process.", nil)
	descFiles = describe("process_open_fds", "Open file descriptors of the process.", nil)
	descLimit = describe("process_max_fds", "Maximum number of open file descriptors.", nil)
	descTasks = describe("go_goroutines", "Goroutines of the process.", nil)
)

// process adds the samples of this process. A value that cannot be read has no sample.
func (e exposition) process() {
	e.count(descBuild, 1, cli.Version.Version, cli.Version.Commit, runtime.Version())
	if at, err := startTime(); err == nil {
		e.gauge(descStart, at)
	}
	var used unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &used); err == nil {
		e.gauge(descCPU, float64(used.Utime.Nano()+used.Stime.Nano())/1e9)
	}
	if text, err := os.ReadFile("/proc/self/statm"); err == nil {
		if fields := strings.Fields(string(text)); len(fields) > 1 {
			pages, _ := strconv.ParseInt(fields[1], 10, 64) // the kernel writes numbers
			e.count(descRSS, pages*int64(os.Getpagesize()))
		}
	}
	if list, err := os.ReadDir("/proc/self/fd"); err == nil {
		e.count(descFiles, int64(len(list))-1) // one reads the directory
	}
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err == nil {
		e.gauge(descLimit, float64(limit.Cur))
	}
	e.count(descTasks, int64(runtime.NumGoroutine()))
}

// ticks is USER_HZ, the unit of times in /proc/PID/stat, per second.
const ticks = 100

// startTime returns the Unix time at which the process started.
func startTime() (float64, error) {
	stat, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		return 0, err
	}
	text := string(stat[bytes.LastIndexByte(stat, ')')+1:]) // the name may contain blanks
	fields := strings.Fields(text)                          // from field 3 on
	after, err := strconv.ParseInt(fields[22-3], 10, 64)
	if err != nil {
		return 0, err
	}
	system, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, err
	}
	_, boot, _ := strings.Cut(string(system), "\nbtime ")
	boot, _, _ = strings.Cut(boot, "\n")
	at, err := strconv.ParseInt(boot, 10, 64)
	return float64(at) + float64(after)/ticks, err
}
