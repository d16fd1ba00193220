package cli

import (
	"fmt"
	"io"
	"os"
	"sync"
)

// interrupt decides the effect of a signal. While there is nothing to undo or finish, such as
// while a policy is compiled, a signal ends the process at once. Otherwise it cancels the
// command's context.
type interrupt struct {
	lock     sync.Mutex
	exitable int // number of callers that allow an immediate exit
	received bool
	err      io.Writer
}

// Interrupted receives the signals to end the command.
var Interrupted interrupt

// AllowExit allows a signal to end the process, until end is called. If a signal was received
// before, the process ends now.
func (i *interrupt) AllowExit() (end func()) {
	i.lock.Lock()
	defer i.lock.Unlock()
	i.exitable++
	if i.received {
		i.exit()
	}
	return func() {
		i.lock.Lock()
		defer i.lock.Unlock()
		i.exitable--
	}
}

// Signal handles a signal. err is for the message.
func (i *interrupt) Signal(err io.Writer) {
	i.lock.Lock()
	defer i.lock.Unlock()
	i.received, i.err = true, err
	if i.exitable > 0 {
		i.exit()
	}
}

func (i *interrupt) exit() {
	fmt.Fprintf(i.err, "shaper: %v\n", ErrInterrupted)
	os.Exit(ExitFailed)
}
