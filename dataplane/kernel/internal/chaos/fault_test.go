//go:build linux && amd64

package chaos

import (
	"fmt"
	"hash/fnv"
	"strings"
	"syscall"
	"time"
)

// fault is one fault of a victim.
type fault struct {
	kind  string        // a fault of the tracer, "none", or the name of a signal
	point string        // point of a fault of the tracer
	after time.Duration // time of a signal after the start
	all   bool          // a signal kills the guard too
}

func (f fault) String() string {
	switch {
	case f.point != "":
		return f.kind + "@" + f.point
	case f.kind == "none":
		return f.kind
	case f.all:
		return fmt.Sprintf("%s+guard@%v", f.kind, f.after)
	}
	return fmt.Sprintf("%s@%v", f.kind, f.after)
}

// parseFault parses the output of String.
func parseFault(text string) (f fault, err error) {
	kind, rest, _ := strings.Cut(text, "@")
	f.kind, f.all = strings.CutSuffix(kind, "+guard")
	switch _, isError := faultErrors[kind]; {
	case kind == "none" && rest == "":
	case isError, kind == faultKill, kind == faultKillAll:
		f.point = rest
	case signals[f.kind] != 0:
		f.after, err = time.ParseDuration(rest)
	default:
		err = fmt.Errorf("unknown fault %q", text)
	}
	return f, err
}

// class is the class of a fault in the summary.
func (f fault) class() string {
	if f.after == 0 {
		return f.kind
	}
	if f.all {
		return "random " + f.kind + "+guard"
	}
	return "random " + f.kind
}

// kills reports whether the fault ends the victim at once.
func (f fault) kills() bool {
	return f.kind == faultKill || f.kind == faultKillAll || f.kind == "SIGKILL"
}

// rerun reports whether to run a shaper again after the fault. Only one in four faults does: it
// takes long, and the next attempt in the same world does much the same.
func (f fault) rerun() bool {
	h := fnv.New32a()
	_, _ = h.Write([]byte(f.String()))
	return h.Sum32()%4 == 0
}

// signals are the signals of random kills.
var signals = map[string]syscall.Signal{
	"SIGKILL": syscall.SIGKILL, "SIGTERM": syscall.SIGTERM, "SIGINT": syscall.SIGINT,
}
