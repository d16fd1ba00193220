package livetest

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// hostScript is a host with a budget of its own, on which it runs the tests whose command line is
// in its arguments. It prints all that is in the state folder and among the pins afterwards.
const hostScript = `
mount -t tmpfs tmpfs /run
mount -t bpf bpf /sys/fs/bpf
mkdir -m 700 /run/shaper /sys/fs/bpf/shaper
echo theirs >/run/shaper/budgets
"$@" >&2
cd / && find run/shaper sys/fs/bpf/shaper && cat run/shaper/budgets
`

// TestLiveIsolated checks that tests of live shapers, pinned ones and budgets see nothing of the
// host, whose list of budgets would be an error, and leave the host as it was.
func TestLiveIsolated(t *testing.T) {
	skipInVM(t)
	newPair(t) // skips without privilege
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("unshare", "--mount", "sh", "-ec", hostScript, "sh", self, "-test.v", "-test.run",
		"^TestLive(BudgetParams|ConfirmEnded)$")
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil || strings.Contains(said.String(), "SKIP") ||
		strings.Count(said.String(), "--- PASS: TestLive") < 2 {
		t.Fatalf("%v\n%s", err, &said)
	}
	if want := "run/shaper\nrun/shaper/budgets\nsys/fs/bpf/shaper\ntheirs\n"; string(out) != want {
		t.Errorf("after the tests, the host has\n%s\nwant\n%s", out, want)
	}
}
