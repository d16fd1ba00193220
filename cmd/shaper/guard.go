package main

import (
	"errors"
	"io"
	"os/exec"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
)

// guard is a process that cleans up after one that is killed: a tc filter and
// the limits of a device outlive who set them. It waits for the end of its
// input, which comes with the end of the other.
type guard struct {
	cmd   *exec.Cmd
	input io.Closer
}

func startGuard(name string) (*guard, error) {
	cmd := exec.Command("/proc/self/exe", "guard", name)
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

// end ends the guard after all is clean.
func (g *guard) end() error {
	if g == nil {
		return nil
	}
	return errors.Join(g.input.Close(), g.cmd.Wait())
}

func newGuard(s streams) *cobra.Command {
	return &cobra.Command{
		Use:    "guard IFACE",
		Short:  "Clean up after a shaper run that is killed",
		Hidden: true,
		Args:   oneArg("interface"),
		RunE: func(_ *cobra.Command, args []string) error {
			if _, err := io.Copy(io.Discard, s.in); err != nil {
				return err
			}
			return cleanUp(args[0])
		},
	}
}

// cleanUp detaches what is neither pinned nor owned by a process.
func cleanUp(name string) error {
	all, err := kernel.List()
	if err != nil {
		return err
	}
	var errs []error
	for _, sh := range all {
		if sh.Interface != name || sh.Pinned {
			sh.Close()
			continue
		}
		for end := time.Now().Add(2 * time.Second); sh.Owned() && time.Now().Before(end); {
			time.Sleep(10 * time.Millisecond) // its files are being closed
		}
		if sh.Owned() {
			sh.Close()
			continue
		}
		errs = append(errs, sh.Detach())
	}
	return errors.Join(errs...)
}
