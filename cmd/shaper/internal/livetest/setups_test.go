package livetest

import (
	"path/filepath"
	"strings"
	"testing"
)

// TestLiveSetups attaches the policies of docs/SETUPS.md in both directions. If the kernel lacks the qdisc
// that a policy needs, the error names it.
func TestLiveSetups(t *testing.T) {
	for _, test := range []struct {
		policy, kind string
		code         int // without the qdisc
	}{{"isp.yaml", "fq_codel", 2}, {"home.yaml", "cake", 1}} {
		t.Run(test.policy, func(t *testing.T) {
			p := newQueuePair(t)
			before, qdiscs := p.deviceState(), p.qdiscState()
			path, err := filepath.Abs("../../../../docs/" + test.policy)
			if err != nil {
				t.Fatal(err)
			}
			run := []string{"run", "v0", "--policy", path, "--both", "--background"}
			if !haveQdisc(t, test.kind) {
				_, stderr := p.wantExit(test.code, run...)
				if want := "this kernel has no " + test.kind + " qdisc"; !strings.Contains(stderr, want) {
					t.Errorf("got error %q, want %q", stderr, want)
				}
				p.awaitClean(before, qdiscs)
				return
			}
			p.wantExit(0, run...)
			if now := p.qdiscState(); !strings.Contains(now, "qdisc "+test.kind) {
				t.Errorf("no %s in\n%s", test.kind, now)
			}
			p.wantExit(0, "detach", "v0")
			p.awaitClean(before, qdiscs)
		})
	}
}
