package live

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// TestChild kills processes and checks that each new one gets the needed instruction, until
// none is needed any more.
func TestChild(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	started := 0 // only one start at a time
	last := []any{}
	c, err := startChild(func() *exec.Cmd {
		started++
		return exec.Command("sh", "-c", fmt.Sprintf("exec cat >%s/%d", dir, started))
	}, func() []any { return last })
	if err != nil {
		t.Fatal(err)
	}
	tell := func(n int) error { return c.tell(func() { last = []any{n} }, n) }
	read := func(n int, want string) {
		t.Helper()
		var text []byte
		for range 30_000 {
			if text, _ = os.ReadFile(filepath.Join(dir, fmt.Sprint(n))); string(text) == want {
				return
			}
			time.Sleep(10 * time.Millisecond)
		}
		t.Fatalf("process %d got %q: want %q", n, text, want)
	}
	for _, instruction := range []int{1, 2} {
		if err := tell(instruction); err != nil {
			t.Fatal(err)
		}
	}
	read(1, "1\n2\n")
	for n := 2; n < 4; n++ {
		c.mu.Lock()
		_ = c.cmd.Process.Kill()
		c.mu.Unlock()
		got := fmt.Sprintln(n)
		read(n, got)
		if err := tell(n + 1); err != nil {
			t.Fatal(err)
		}
		read(n, got+fmt.Sprintln(n+1))
	}
	c.kill()
	c.kill() // again
	if started != 3 {
		t.Errorf("got %d processes: want 3", started)
	}
	if err := tell(4); err != nil {
		t.Error(err)
	}
}
