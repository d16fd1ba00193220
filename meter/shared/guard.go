package shared

import (
	"fmt"
	"path/filepath"
	"runtime"
	"strings"
)

// guard calls f and returns a panic in it as an error with its place. It is the last line of
// defense: neither a defect of this package nor one of a meter may end a process metering packets.
func guard(f func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("internal error, please report it: %s (%s)", printable(fmt.Sprint(v)),
				panicPlace())
		}
	}()
	return f()
}

// panicPlace returns the file and line of a panic. The deferred function of guard
// calls it.
func panicPlace() string {
	pcs := make([]uintptr, 16)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(3, pcs)])
	for {
		f, more := frames.Next()
		if !strings.HasPrefix(f.Function, "runtime.") {
			return fmt.Sprintf("%s:%d", filepath.Base(f.File), f.Line)
		}
		if !more {
			return "unknown place"
		}
	}
}
