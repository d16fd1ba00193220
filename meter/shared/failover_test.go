package shared

import (
	"strings"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/meter/shared/storetest"
)

// TestSentinelFailover kills the primary: the replica decides next.
func TestSentinelFailover(t *testing.T) {
	t.Parallel()
	kinds := storetest.Kinds(t)
	primary := storetest.Start(t, kinds[len(kinds)-1], storetest.Password(secretWord))
	storetest.Replica(t, primary)
	sentinels := storetest.Sentinel(t, primary, 3)
	url := "redis://:" + secretWord + "@" + sentinels.Addrs()[0] + "?master_name=" + sentinels.Name
	for _, addr := range sentinels.Addrs()[1:] {
		url += "&addr=" + addr
	}
	testFailover(t, url, primary.Kill)
}

// TestClusterFailover kills one of three primaries: only its budgets are lost.
func TestClusterFailover(t *testing.T) {
	t.Parallel()
	nodes := storetest.Cluster(t, storetest.Kinds(t)[0], 3)
	url := "redis://" + nodes.Addrs()[0] + "?addr=" + strings.Join(nodes.Addrs()[1:], "&addr=")
	s := testFailover(t, url, func() {
		owner, _ := nodes.Owner(nodes.Slot("{shaper:customer-42}"))
		owner.Kill()
	})
	storetest.Until(t, "the primary counts as found",
		func() bool { stats := s.Stats(); return stats.Found == stats.Lost })
}

// testFailover kills the server that decides about customer-42 and waits until
// another one does.
func testFailover(t *testing.T, url string, kill func()) *Backend {
	t.Helper()
	var l losses
	config := l.config()
	config.Deadline = 200 * time.Millisecond
	s := newTestStore(t, openClient(t, url), config)
	limit := newTestLimiter(t, s, Limit{Name: "limit", Params: family[0], Fail: FailRescue, Share: 0.2})
	decide := func() Decision {
		d, err := limit.Decide(ctx, "customer-42", 1)
		noError(t, err)
		return d
	}
	storetest.Until(t, "the store decides", func() bool { return decide().Source == FromStore })
	kill()
	storetest.Until(t, "the store is lost", func() bool { return decide().Source == FromRescue })
	storetest.Until(t, "another server decides", func() bool { return decide().Source == FromStore })
	return s
}
