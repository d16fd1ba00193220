package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/cli"
)

// TestInterruptedCompile sends a signal to commands while they compile their policy. They must
// end at once with exit code 1, and leave nothing behind.
func TestInterruptedCompile(t *testing.T) {
	for name, args := range map[string][]string{
		"check":  {"check", "/dev/stdin"},
		"replay": {"replay", "in.pcap", "-o", "out.pcap", "--policy", "/dev/stdin"},
		"run":    {"run", "eth9", "--policy", "/dev/stdin"},
		"tap":    {"tap", "tap9", "--peer", "tap8", "--policy", "/dev/stdin"},
		"why":    {"why", "in.pcap", "1", "--policy", "/dev/stdin"},
	} {
		for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
			t.Run(name+" "+sig.String(), func(t *testing.T) {
				t.Parallel()
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
				defer cancel()
				cmd := exec.CommandContext(ctx, "shaper", args...)
				cmd.Dir = t.TempDir()
				in, err := cmd.StdinPipe()
				if err != nil {
					t.Fatal(err)
				}
				var out, stderr bytes.Buffer
				cmd.Stdout, cmd.Stderr = &out, &stderr
				if err := cmd.Start(); err != nil {
					t.Fatal(err)
				}
				const sent = 1 << 20
				if _, err := in.Write(bytes.Repeat([]byte("# a comment\n"), sent/12)); err != nil {
					t.Fatalf("%v: %s", err, &stderr)
				}
				for read := int64(0); read < sent/2; { // until it has begun to read
					info, err := os.ReadFile(fmt.Sprintf("/proc/%d/io", cmd.Process.Pid))
					if err != nil || ctx.Err() != nil {
						t.Fatal(err, ctx.Err(), &stderr)
					}
					fmt.Sscanf(string(info), "rchar: %d", &read)
				}
				if err := cmd.Process.Signal(sig); err != nil {
					t.Fatal(err)
				}
				err = cmd.Wait()
				var exit *exec.ExitError
				if !errors.As(err, &exit) || exit.ExitCode() != cli.ExitFailed ||
					stderr.String() != "shaper: interrupted\n" || out.Len() > 0 {
					t.Errorf("%v, stdout %q, stderr %q: want exit code 1, interrupted", err, &out, &stderr)
				}
				if left, err := os.ReadDir(cmd.Dir); err != nil || len(left) > 0 {
					t.Errorf("left behind: %v, %v", left, err)
				}
			})
		}
	}
}
