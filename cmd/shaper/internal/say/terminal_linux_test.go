package say

import (
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// openTerminal returns both ends of a pseudo terminal.
func openTerminal(t *testing.T) (outside, inside *os.File) {
	t.Helper()
	outside, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("needs pseudo terminals: %v", err)
	}
	t.Cleanup(func() { outside.Close() })
	fd := int(outside.Fd())
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: 25, Col: 90}); err != nil {
		t.Fatal(err)
	}
	inside, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("needs /dev/pts: %v", err)
	}
	t.Cleanup(func() { inside.Close() })
	return outside, inside
}

// TestShowProgress checks that a terminal gets the percentage and the time left.
func TestShowProgress(t *testing.T) {
	t.Parallel()
	outside, inside := openTerminal(t)
	if Width(inside) != 90 || Width(&strings.Builder{}) != 80 {
		t.Errorf("the widths are %d and %d, want 90 and 80", Width(inside), Width(&strings.Builder{}))
	}
	var done atomic.Int64
	done.Store(10) // of 1,000: the rest takes minutes
	end := ShowProgress(inside, Work{Name: "working", Done: &done, All: 1000})
	defer end()
	var text strings.Builder
	begin := time.Now()
	b := make([]byte, 1<<10)
	for !strings.Contains(text.String(), "ETA") || !strings.Contains(text.String(), "1.00%") {
		if time.Since(begin) > time.Minute {
			t.Fatalf("it prints %q, want a percentage and the time left", text.String())
		}
		n, err := outside.Read(b)
		if err != nil {
			t.Fatal(err)
		}
		text.Write(b[:n])
	}
}
