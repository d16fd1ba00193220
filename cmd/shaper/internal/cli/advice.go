package cli

import (
	"errors"
	"strings"

	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/remedy"
)

// advice holds the flags and commands for each remedy. IFACE stands for the interface.
var advice = map[remedy.Advice]string{
	remedy.UseTC:        "use --hook tc",
	remedy.UseTCX:       "use --hook tcx, or remove it",
	remedy.UseIngress:   "use --direction ingress",
	remedy.UseHTB:       "use --pacer htb",
	remedy.UseUserSpace: "use shaper tap, or replay --engine go",
	remedy.UseTAP:       "use shaper tap",
	remedy.UseFlow:      "use fair: flow, or shaper tap",
	remedy.MountBpffs:   "mount -t bpf -o mode=0700 bpf /sys/fs/bpf, or use --hook tc",
	remedy.MoveBack:     "move it back, or shaper detach IFACE here",
	remedy.CallReload:   "use shaper reload to change its policy, or shaper detach to end it",
	remedy.CallDetach:   "shaper detach IFACE",
	remedy.CallRenew:    "shaper reload IFACE",
	remedy.CallRepair:   "--repair restores ours, or shaper detach IFACE and run it again",
	remedy.Reattach:     "shaper detach IFACE, then run it again",
}

// AdviceOf returns the advice for an interface; "" for any.
func AdviceOf(r remedy.Advice, name string) string {
	text, known := advice[r]
	if !known {
		return string(r)
	}
	if name == "" {
		return strings.ReplaceAll(text, " IFACE", "")
	}
	return strings.ReplaceAll(text, "IFACE", name)
}

// adviceOn returns the advice on an error, after a colon, or "".
func adviceOn(err error) string {
	var r *remedy.Error
	if errors.As(err, &r) {
		return ": " + AdviceOf(r.Remedy, "")
	}
	return ""
}

// advisedError is an error with its advice.
type advisedError struct{ error }

func (e *advisedError) Error() string { return e.error.Error() + adviceOn(e.error) }
func (e *advisedError) Unwrap() error { return e.error }

// Advised adds the advice to an error, or to each joined error. It does nothing if the advice
// is there already.
func Advised(err error) error {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		var out []error
		for _, err := range joined.Unwrap() {
			out = append(out, Advised(err))
		}
		return errors.Join(out...)
	}
	if err == nil || errors.As(err, new(*advisedError)) || adviceOn(err) == "" {
		return err
	}
	return &advisedError{err}
}
