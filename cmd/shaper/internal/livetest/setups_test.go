package livetest

import (
	"path/filepath"
	"strings"
	"testing"
)

// TestLiveSetups attaches the policies of docs/SETUPS.md, and recipes with queues, in both directions. If the
// kernel lacks the qdisc that a policy needs, the error names it.
func TestLiveSetups(t *testing.T) {
	p := newQueuePair(t)
	before, qdiscs := p.deviceState(), p.qdiscState()
	for _, test := range []struct {
		policy, kind string
		code         int // without the qdisc
	}{
		{"isp.yaml", "fq_codel", 2},
		{"home.yaml", "cake", 1},
		{"recipes/isp/isp.yaml", "fq_codel", 2},
		{"recipes/devices/devices.yaml", "cake", 1},
	} {
		path, err := filepath.Abs("../../../../docs/" + test.policy)
		if err != nil {
			t.Fatal(err)
		}
		run := []string{"run", "v0", "--policy", path, "--both", "--background"}
		if haveQdisc(t, test.kind) {
			p.wantExit(0, run...)
			if now := p.qdiscState(); !strings.Contains(now, "qdisc "+test.kind) {
				t.Errorf("%s: no %s in\n%s", test.policy, test.kind, now)
			}
			p.wantExit(0, "detach", "v0")
		} else {
			_, stderr := p.wantExit(test.code, run...)
			if want := "this kernel has no " + test.kind + " qdisc"; !strings.Contains(stderr, want) {
				t.Errorf("%s: got error %q, want %q", test.policy, stderr, want)
			}
		}
		p.awaitClean(before, qdiscs)
	}
}
