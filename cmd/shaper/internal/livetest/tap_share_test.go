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

// TestLiveTapShare has two shapers, each in a network of its own, share 8 Mbit/s on a real
// server: both at full load never let more through than the budget, and use it, until
// the server stands still and each falls to its rescue share.
func TestLiveTapShare(t *testing.T) {
	pairs := []*pair{newTAPPair(t), anotherPair(t)}
	socket := filepath.Join(t.TempDir(), "store")
	server := storetest.Start(t, storetest.Kinds(t)[0], storetest.Config("unixsocket "+socket, "unixsocketperm 777"))
	text := `classes:
  - name: all
    meter:
      type: token-bucket
      rate: 8mbit
      burst: 64KiB
      share: {budget: customer, store: "unix://` + socket + `", interval: 200ms, rescue: 40%, hosts: 2}
`
	policy := file(t, text)
	const rate, burst, length = 1e6, 64 << 10, 1000
	var shapers []*process
	for i, p := range pairs {
		r := p.carry(fmt.Sprint("t", i), "--uplink", "v0", "--policy", policy) // names that differ: the host's is the same
		r.err.await(t, `budget customer: \S+ \S+ of 8 Mbit/s`)
		shapers = append(shapers, r)
	}
	// shown is an error if status does not show a text, a regular expression.
	shown := func(p *pair, want string) error {
		t.Helper()
		stdout, _ := p.do(0, "status")
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
			frames := packets(60, length)
			for !ends.Load() { // several times the budget, each
				p.near.Inject(fmt.Sprint("t", i), frames...)
				time.Sleep(5 * time.Millisecond)
			}
		}()
	}
	defer func() { ends.Store(true); <-done; <-done }()
	// passed is what each let through, and when that was read.
	passed := func() (bytes [2]float64, at [2]time.Time) {
		for i, p := range pairs {
			bytes[i], at[i] = float64(p.statsList()[0].Classes[0].Green.Bytes), time.Now()
		}
		return bytes, at
	}
	// within waits for a second in which both let through a part of the budget.
	within := func(what string, least, most float64) {
		t.Helper()
		eventually(t, func() error {
			first, from := passed()
			time.Sleep(time.Second)
			second, to := passed()
			if bound := burst + rate*to[1].Sub(begin).Seconds(); second[0]+second[1] > bound {
				t.Fatalf("%s: %.0f bytes passed in %v: more than %.0f", what, second[0]+second[1], to[1].Sub(begin), bound)
			}
			part := 0.0
			for i := range pairs {
				part += (second[i] - first[i]) / to[i].Sub(from[i]).Seconds() / rate
			}
			if part < least || part > most {
				return fmt.Errorf("%s: %.3f of the budget pass: want %.2f to %.2f", what, part, least, most)
			}
			return nil
		})
	}
	within("both at full load", 0.95, 1.1)
	eventually(t, func() error {
		return shown(pairs[0], `budget customer at unix://.*: \S+ Mbit/s of 8 Mbit/s, 2 hosts; all together at most 8 Mbit/s since`)
	})
	server.Pause()
	for _, r := range shapers {
		r.err.await(t, `budget customer: .*: limited to the rescue share of 1.6 Mbit/s`)
	}
	within("without the server", 0.37, 0.44)
	eventually(t, func() error {
		return shown(pairs[0], `: the rescue share of 1.6 Mbit/s; all together at most 8 Mbit/s, 3.2 Mbit/s if no host reaches the server; last call: `)
	})
	server.Resume()
	for _, r := range shapers {
		r.err.await(t, `budget customer: the store answers again`)
	}
	within("with the server again", 0.95, 1.1)

	// A budget that a reload brings has its share before it takes over, unless the machine
	// is so busy that this takes longer than a second.
	tries := 0
	nettest.Steady(t, func() error {
		tries++
		name := fmt.Sprint("another", tries)
		more := strings.NewReplacer("name: all", "name: other", "customer", name, "200ms", "100ms").Replace(strings.TrimPrefix(text, "classes:\n"))
		pairs[0].do(0, "reload", "--policy", file(t, text+more))
		return shown(pairs[0], `budget `+name+` at unix://.*: \S+ Mbit/s of 8 Mbit/s, 1 host; all together at most 8 Mbit/s since`)
	})
}
