package main

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
)

// guard is a process that cleans up after one that is killed: a tc filter and
// the limits of a device outlive who set them, and a policy that nobody
// confirmed must go. It acts when its input ends; one that has nothing to do any
// more is killed.
type guard struct {
	cmd   *exec.Cmd
	input io.WriteCloser
}

func startGuard(name string) (*guard, error) {
	cmd := exec.Command("/proc/self/exe", "guard", name)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // not ended by the terminal
	input, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return &guard{cmd, input}, nil
}

// tell says what is to be undone, in place of what was said before.
func (g *guard) tell(list []*kernel.Shaper) error {
	var undo []*kernel.Undo
	for _, sh := range list {
		if u := sh.Undo(); u != nil {
			undo = append(undo, u)
		}
	}
	return json.NewEncoder(g.input).Encode(undo)
}

// end ends the guard after all is clean.
func (g *guard) end() {
	if g != nil {
		_ = g.cmd.Process.Kill()
		_ = g.cmd.Wait()
	}
}

func newGuard(s streams) *cobra.Command {
	return &cobra.Command{
		Use:    "guard IFACE",
		Short:  "Clean up after a shaper run that is killed",
		Hidden: true,
		Args:   oneArg("interface"),
		RunE: func(_ *cobra.Command, args []string) error {
			var undo []*kernel.Undo
			for in := json.NewDecoder(s.in); ; {
				var next []*kernel.Undo
				if err := in.Decode(&next); errors.Is(err, io.EOF) {
					break
				} else if err != nil {
					return err
				}
				undo = next
			}
			var errs []error
			for _, u := range undo {
				errs = append(errs, u.Do())
			}
			return errors.Join(append(errs, awaitPromises(args[0]))...)
		},
	}
}

// awaitPromises goes back to what was before where nobody confirms in time.
func awaitPromises(name string) error {
	all, err := kernel.List()
	if errors.Is(err, os.ErrPermission) {
		return nil // nor could it be confirmed
	}
	var errs []error
	for _, sh := range all {
		if sh.Interface == name && !sh.Until.IsZero() {
			errs = append(errs, goBackUnless(sh))
		}
		sh.Close()
	}
	return errors.Join(append(errs, err)...)
}

// goBackUnless waits for the confirmation that another process would have
// waited for.
func goBackUnless(sh *kernel.Shaper) error {
	for until := sh.Until; time.Now().Before(until); time.Sleep(pollInterval) {
		if err := sh.Refresh(); errors.Is(err, kernel.ErrDetached) {
			return nil
		} else if err != nil || !sh.Until.Equal(until) {
			return err
		}
	}
	return goBack(sh)
}

// goBack makes a shaper what it was before its promise.
func goBack(sh live) error {
	before := sh.Info().Before
	if before == nil {
		return sh.Detach()
	}
	policy, err := policyOf(before.Label)
	if err != nil {
		return err
	}
	return sh.GoBack(policy.Policy)
}
