//go:build linux && amd64

package chaos

import (
	"fmt"
	"hash/fnv"
	"strings"
	"syscall"
	"time"
)

// fault is what happens to a victim.
type fault struct {
	kind  string // one of the tracer's, "none", or a signal at a random moment
	point string // of the tracer's
	after time.Duration
	all   bool // a signal kills the guard as well
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

// parseFault reads what String wrote.
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
		err = fmt.Errorf("no fault is written %q", text)
	}
	return f, err
}

// class is what the summary counts a fault as.
func (f fault) class() string {
	if f.after == 0 {
		return f.kind
	}
	if f.all {
		return "random " + f.kind + "+guard"
	}
	return "random " + f.kind
}

// again says whether to run a shaper again afterwards: after each fourth fault,
// since it takes long, and the next attempt in the same world does much the same.
func (f fault) again() bool {
	h := fnv.New32a()
	_, _ = h.Write([]byte(f.String()))
	return h.Sum32()%4 == 0
}

// signals that random kills send.
var signals = map[string]syscall.Signal{"SIGKILL": syscall.SIGKILL, "SIGTERM": syscall.SIGTERM, "SIGINT": syscall.SIGINT}
