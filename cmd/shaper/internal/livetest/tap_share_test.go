package livetest

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane/nettest"
	"github.com/a-seed-32e5a53f/shaper/meter/shared/storetest"
)

// TestQuietTapShare checks that two shapers, each in its own pair, share 8 Mbit/s on a real
// server. At full load they must use the budget and never exceed it. When the server does not
// answer, each must fall to its rescue share.
func TestQuietTapShare(t *testing.T) {
	nettest.Quiet(t)
	pairs := []*pair{newTAPPair(t), anotherPair(t)}
	socket := filepath.Join(t.TempDir(), "store")
	server := storetest.Start(t, storetest.Kinds(t)[0],
		storetest.Config("unixsocket "+socket, "unixsocketperm 777"))
	text := `classes:
  - name: all
    meter:
      type: token-bucket
      rate: 8mbit
      burst: 64KiB
      share: {budget: customer, store: "unix://` + socket + `", interval: 200ms, rescue: 40%, hosts: 2}
`
	policy := writePolicy(t, text)
	const rate, burst, length = 1e6, 64 << 10, 1000
	var shapers []*process
	for i, p := range pairs {
		// the names must differ, because the host is the same
		r := p.startNamedTap(fmt.Sprint("t", i), "--uplink", "v0", "--policy", policy)
		r.err.awaitMatch(t, `budget customer: \S+ \S+ of 8 Mbit/s`)
		shapers = append(shapers, r)
	}
	// shown returns an error if status does not match a regular expression.
	shown := func(p *pair, want string) error {
		t.Helper()
		stdout, _ := p.wantExit(0, "status")
		if got := strings.Join(strings.Fields(stdout), " "); !regexp.MustCompile(want).MatchString(got) {
			return fmt.Errorf("status is %q: want %q", got, want)
		}
		return nil
	}
	var ends atomic.Bool
	done := make(chan struct{})
	begin := time.Now()
	for i, p := range pairs {
		go func() {
			defer func() { done <- struct{}{} }()
			frames := ipv4Frames(60, length)
			for !ends.Load() { // each sends several times the budget
				p.near.Inject(fmt.Sprint("t", i), frames...)
				time.Sleep(5 * time.Millisecond)
			}
		}()
	}
	defer func() { ends.Store(true); <-done; <-done }()
	// passed returns the bytes that each shaper passed, and the times at which they were read.
	passed := func() (bytes [2]float64, at [2]time.Time) {
		for i, p := range pairs {
			bytes[i], at[i] = float64(p.statsList()[0].Classes[0].Green.Bytes), time.Now()
		}
		return bytes, at
	}
	// within waits until both pass a fraction of the budget within a second.
	within := func(what string, least, most float64) {
		t.Helper()
		eventually(t, func() error {
			first, from := passed()
			time.Sleep(time.Second)
			second, to := passed()
			if bound := burst + rate*to[1].Sub(begin).Seconds(); second[0]+second[1] > bound {
				t.Fatalf("%s: %.0f bytes passed in %v: more than %.0f", what, second[0]+second[1],
					to[1].Sub(begin), bound)
			}
			part := 0.0
			for i := range pairs {
				part += (second[i] - first[i]) / to[i].Sub(from[i]).Seconds() / rate
			}
			if part < least || part > most {
				return fmt.Errorf("%s: %.3f of the budget passed: want %.2f to %.2f", what, part, least, most)
			}
			return nil
		})
	}
	within("both at full load", 0.95, 1.1)
	eventually(t, func() error {
		return shown(pairs[0],
			`budget customer at unix://.*: \S+ Mbit/s of 8 Mbit/s, 2 hosts; all together at most 8 Mbit/s with a burst of 68,536 bytes since`)
	})
	server.Pause()
	for _, r := range shapers {
		r.err.awaitMatch(t, `budget customer: .*: limited to the rescue share of 1.6 Mbit/s`)
	}
	within("without the server", 0.37, 0.44)
	eventually(t, func() error {
		return shown(pairs[0],
			`: the rescue share of 1.6 Mbit/s; all together at most 8 Mbit/s with a burst of 68,536 bytes, 3.2 Mbit/s with a burst of 29,214 bytes if no host reaches the server; last call: `)
	})
	server.Resume()
	for _, r := range shapers {
		r.err.awaitMatch(t, `budget customer: the store answers again`)
	}
	within("with the server again", 0.95, 1.1)

	// A budget added by a reload has its share before its class is active, unless the machine
	// is so busy that this takes more than a second.
	tries := 0
	nettest.Steady(t, func() error {
		tries++
		name := fmt.Sprint("another", tries)
		more := strings.NewReplacer("name: all", "name: other", "customer", name, "200ms",
			"100ms").Replace(strings.TrimPrefix(text, "classes:\n"))
		pairs[0].wantExit(0, "reload", "--policy", writePolicy(t, text+more))
		return shown(pairs[0],
			`budget `+name+` at unix://.*: \S+ Mbit/s of 8 Mbit/s, 1 host; all together at most 8 Mbit/s with a burst of 67,036 bytes since`)
	})
}
