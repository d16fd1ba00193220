package process

import (
	"os"
	"os/signal"
	"syscall"
)

// hangups receives SIGHUP as a request to reload, or as the loss of the terminal.
type hangups struct{ reload, lost chan os.Signal }

// watchHangups starts to receive SIGHUP. To a process with a controlling terminal the kernel sends
// it when the terminal is closed, so it is a request to reload only without one, or under a service
// manager. Under nohup(1) it stays ignored.
func watchHangups(n notifier) *hangups {
	h := &hangups{make(chan os.Signal, 1), make(chan os.Signal, 1)}
	switch terminal := hasTerminal(); {
	case !terminal || n.socket != "":
		signal.Notify(h.reload, syscall.SIGHUP)
	case !signal.Ignored(syscall.SIGHUP):
		signal.Notify(h.lost, syscall.SIGHUP)
	}
	return h
}

func (h *hangups) stop() {
	signal.Stop(h.reload)
	signal.Stop(h.lost)
}

// hasTerminal reports whether the process has a controlling terminal.
func hasTerminal() bool {
	tty, err := os.OpenFile("/dev/tty", os.O_RDONLY|syscall.O_NOCTTY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return false
	}
	tty.Close()
	return true
}
