package remedy

import "fmt"

// Advice avoids an error or repairs a problem. It is one of the constants below, which name
// fields of kernel.Config and functions, or a command line of another program.
type Advice string

const (
	UseTC        Advice = "use hook TC"
	UseTCX       Advice = "use hook TCX, or remove the other program"
	UseIngress   Advice = "use direction Ingress"
	UseHTB       Advice = "use pacer HTB"
	UseUserSpace Advice = "meter in user space, by pipeline.Pipeline"
	UseTAP       Advice = "shape in user space, by package tap"
	UseFlow      Advice = "divide the queue by the key flow, or shape in user space, by package tap"
	MountBpffs   Advice = "mount -t bpf -o mode=0700 bpf /sys/fs/bpf, or use hook TC"
	MoveBack     Advice = "move the interface back, or call Detach"
	CallReload   Advice = "call Reload to change its policy, or Detach to end it"
	CallDetach   Advice = "call Detach"
	CallRenew    Advice = "call Renew"
	CallRepair   Advice = "call Repair, or Detach and then Attach"
	Reattach     Advice = "call Detach and then Attach"
)

// Error is an error with a remedy. Its text does not include the remedy, so that
// callers can give advice in their own terms.
type Error struct {
	Err    error
	Remedy Advice
}

func (e *Error) Error() string { return e.Err.Error() }
func (e *Error) Unwrap() error { return e.Err }

// Errorf returns an *Error with this remedy.
func (r Advice) Errorf(format string, args ...any) error {
	return &Error{fmt.Errorf(format, args...), r}
}
