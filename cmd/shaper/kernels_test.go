package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// kernelsPage returns docs/KERNELS.md as .ci/kernels makes it of a file of results; "" for the committed one.
func kernelsPage(t *testing.T, results string) string {
	t.Helper()
	cmd := exec.Command("../../.ci/kernels", "page")
	if cmd.Env = os.Environ(); results != "" {
		cmd.Env = append(cmd.Env, "KERNELS_RESULTS="+results)
	}
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// TestKernelsPage checks that docs/KERNELS.md has the committed results, and that its features name existing
// tests.
func TestKernelsPage(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/KERNELS.md")
	if err != nil {
		t.Fatal(err)
	}
	if kernelsPage(t, "") != string(page) {
		t.Error("docs/KERNELS.md differs from .ci/kernels.tsv: .ci/kernels page >KERNELS.md")
	}
	list, err := os.ReadFile("../../.ci/kernels.list")
	if err != nil {
		t.Fatal(err)
	}
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	tests := testFunctions(t, root)
	for _, name := range regexp.MustCompile(`\bTest[A-Z]\w*`).FindAllString(string(list), -1) {
		if !strings.Contains(tests, "\nfunc "+name+"\n") {
			t.Errorf("kernels.list: there is no test %s", name)
		}
	}
}

// TestKernelsStates checks what the page says about each kind of result.
func TestKernelsStates(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "results.tsv")
	var text strings.Builder
	for _, row := range [][]string{
		{"TestLiveKernel/fq", "SKIP", "refused: this kernel has no fq qdisc"},
		{"TestLiveKernel/htb", "FAIL", ""},
		{"TestLiveKernel/tc", "PASS", ""},
		{"TestLiveKernel/tc_ingress", "PASS", ""},
		{"TestLiveNoTCX", "PASS", ""},
		{"TestLiveServe", "PASS", ""},
		{"TestLiveTags", "PASS", ""}, // and not TestLiveECN
		{"TestLiveCgroup", "PASS", ""},
		{"TestLiveCgroup/tc", "SKIP", "not in a VM"},
		{"TestLiveRecipeWireGuard", "SKIP", "needs wg"},
		{"TestLivePinned", "UNFINISHED", ""},
	} {
		text.WriteString("9.9\t9.9-test\tpackage\t" + strings.Join(row, "\t") + "\n")
	}
	if err := os.WriteFile(path, []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	page := kernelsPage(t, path)
	for _, want := range []string{
		"| | 9.9-test |", "| Hook `tcx`, egress and ingress | no |", "| Hook `tc`, egress and ingress | works |",
		"| Queues by departure times, `fq` | no: no fq qdisc |", "| Queues in HTB | fails |", "| `shaper serve` | works |",
		"| Marks of DSCP, VLAN and MPLS, ECN | untested |", "| Matches and keys by cgroup | untested |",
		"| The recipe for WireGuard | untested |", "| Pinned policies, `--pin` and `--background` | untested |",
	} {
		if !strings.Contains(page, want+"\n") {
			t.Errorf("no row %s in\n%s", want, page)
		}
	}
}
