package process

import (
	"fmt"
	"net"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// notifier reports the state of a service to its manager: sd_notify(3). It does nothing if
// there is no manager. Errors are ignored, because shaping does not depend on the manager.
type notifier struct{ socket string }

// newNotifier removes the socket from the environment, to keep it from the guard process.
func newNotifier() notifier {
	n := notifier{os.Getenv("NOTIFY_SOCKET")}
	_ = os.Unsetenv("NOTIFY_SOCKET")
	return n
}

// send sends assignments in one datagram.
func (n notifier) send(assignments ...string) {
	if !strings.HasPrefix(n.socket, "/") && !strings.HasPrefix(n.socket, "@") {
		return
	}
	conn, err := net.Dial("unixgram", n.socket) // @ means an abstract socket to Dial too
	if err != nil {
		return
	}
	defer conn.Close()
	_, _ = conn.Write([]byte(strings.Join(assignments, "\n")))
}

// ready reports the service ready. systemctl status shows the status line.
func (n notifier) ready(status string) {
	n.send("READY=1", "STATUS="+strings.ReplaceAll(status, "\n", "; "))
}

// reload reports the begin and the end of do, which reloads, and its error.
func (n notifier) reload(status string, do func() error) error {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return fmt.Errorf("clock: %w", err)
	}
	n.send("RELOADING=1", fmt.Sprintf("MONOTONIC_USEC=%d", now.Nano()/1000))
	err := do()
	if err != nil {
		status += "; the last reload failed: " + err.Error()
	}
	n.ready(status)
	return err
}

// alive resets the watchdog of the manager. A manager that does not watch ignores it.
func (n notifier) alive() { n.send("WATCHDOG=1") }

func (n notifier) stopping() { n.send("STOPPING=1") }
