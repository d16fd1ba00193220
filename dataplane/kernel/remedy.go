package kernel

import "fmt"

// Remedy is an advice that avoids an error or repairs a problem. It is one of the
// constants below, which name fields of Config and functions, or a command line of
// another program.
type Remedy string

const (
	UseTC        Remedy = "use hook TC"
	UseTCX       Remedy = "use hook TCX, or remove the other program"
	UseIngress   Remedy = "use direction Ingress"
	UseHTB       Remedy = "use pacer HTB"
	UseUserSpace Remedy = "meter in user space, by dataplane.Pipeline"
	MountBpffs   Remedy = "mount -t bpf -o mode=0700 bpf /sys/fs/bpf, or use hook TC"
	MoveBack     Remedy = "move the interface back, or call Detach"
	CallDetach   Remedy = "call Detach"
	CallRepair   Remedy = "call Repair, or Detach and then Attach"
	Reattach     Remedy = "call Detach and then Attach"
)

// RemedyError is an error with a remedy. Its text does not include the remedy, so that
// callers can give advice in their own terms.
type RemedyError struct {
	Err    error
	Remedy Remedy
}

func (e *RemedyError) Error() string { return e.Err.Error() }
func (e *RemedyError) Unwrap() error { return e.Err }

func (r Remedy) errorf(format string, args ...any) error {
	return &RemedyError{fmt.Errorf(format, args...), r}
}
