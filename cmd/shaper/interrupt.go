package main

import (
	"fmt"
	"io"
	"os"
	"sync"
)

// interrupt decides what a signal does. It ends the process at once while nothing
// is begun that would have to be undone or finished, such as while a policy is
// compiled; otherwise the command sees it in its context.
type interrupt struct {
	lock    sync.Mutex
	nothing int // how many say that nothing is begun
	came    bool
	err     io.Writer
}

var interrupted interrupt

// abruptly says that a signal may end the process until end is called. One that
// came before ends it now.
func (i *interrupt) abruptly() (end func()) {
	i.lock.Lock()
	defer i.lock.Unlock()
	i.nothing++
	if i.came {
		i.exit()
	}
	return func() {
		i.lock.Lock()
		defer i.lock.Unlock()
		i.nothing--
	}
}

// signal says that a signal came.
func (i *interrupt) signal(err io.Writer) {
	i.lock.Lock()
	defer i.lock.Unlock()
	i.came, i.err = true, err
	if i.nothing > 0 {
		i.exit()
	}
}

func (i *interrupt) exit() {
	fmt.Fprintf(i.err, "shaper: %v\n", errInterrupted)
	os.Exit(exitFailed)
}
