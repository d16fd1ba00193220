package livetest

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestLiveTapRootDrops checks that all threads drop root's capabilities except the two that are
// needed to reopen an uplink.
func TestLiveTapRootDrops(t *testing.T) {
	p := newTAPPair(t)
	r := p.startTap("--uplink", "v0", "--queues", "2", "--meter", unlimitedMeter)
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", r.cmd.Process.Pid))
	if err != nil || len(threads) < 4 {
		t.Fatalf("threads %v, %v", threads, err)
	}
	for _, path := range threads {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // the thread ended meanwhile
		}
		for _, name := range []string{"CapEff", "CapPrm", "CapBnd"} {
			if want := fmt.Sprintf("%s:\t%016x\n", name,
				1<<unix.CAP_NET_ADMIN|1<<unix.CAP_NET_RAW); !strings.Contains(string(text), want) {
				t.Errorf("%s: want %q in\n%s", path, want, text)
			}
		}
		if !strings.Contains(string(text), "NoNewPrivs:\t1\n") {
			t.Errorf("%s: no NoNewPrivs in\n%s", path, text)
		}
	}
	r.stopBySIGTERM()
}
