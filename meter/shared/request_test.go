package shared

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/a-seed-32e5a53f/shaper/meter/shared/lease"
	"github.com/a-seed-32e5a53f/shaper/meter/shared/storetest"
)

// handedLeases is store.lua with the time and the replication ID as arguments.
func handedLeases(t *testing.T) *redis.Script {
	text := layoutScript + storeScript
	for _, change := range [][2]string{
		{"local time = redis.call('TIME')\nlocal now = time[1] * 1000000 + time[2]", "local now = tonumber(ARGV[#ARGV - 2])"},
		{"local info = redis.pcall('INFO', 'replication')", "local info = 'master_replid:' .. ARGV[#ARGV - 1] .. string.rep(' state=online', ARGV[#ARGV])"},
	} {
		if strings.Count(text, change[0]) != 1 {
			t.Fatalf("store.lua must contain %q exactly once", change[0])
		}
		text = strings.Replace(text, change[0], change[1], 1)
	}
	return redis.NewScript(text)
}

// TestScriptAgainstStore makes random calls to a server and to lease.Store. All
// numbers in the replies must be equal.
func TestScriptAgainstStore(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, s *storetest.Server) {
		client, script := s.Client(), handedLeases(t)
		calls := map[string]int{}
		for seed := range uint64(40) {
			r := rand.New(rand.NewPCG(seed, 7))
			key := key(fmt.Sprint("random-", seed))
			var model lease.Store
			server := lease.Server{ID: "a", Replicas: r.Int64N(3)}
			size := lease.Amounts{
				Rate:  [2]int64{1 + r.Int64N(lease.MaxRate), r.Int64N(lease.MaxRate)},
				Burst: [2]int64{1 + r.Int64N(lease.MaxBurst), r.Int64N(1 << 20)},
			}
			if seed%3 == 0 {
				size.Rate[1] = 0
			}
			now := int64(1_700_000_000_000_000)
			hosts := make([]lease.Request, 1+r.IntN(12))
			for i := range hosts {
				terms := lease.Terms{
					Size: size, Weight: 1 + r.Int64N(5), Floor: r.Int64N(4000), Rescue: r.Int64N(1_000_001),
					Interval: 100_000_000, Deadline: 50_000_000,
				}
				hosts[i] = lease.Request{Host: fmt.Sprint("h", i), Instance: r.Int64N(1 << 50), Terms: terms}
			}
			for range 120 {
				q := &hosts[r.IntN(len(hosts))]
				now += r.Int64N(40_000)
				switch r.IntN(150) {
				case 0:
					now += r.Int64N(2_000_000)
				case 1:
					now -= r.Int64N(2_000_000)
				case 2:
					server.ID += "b"
				case 3:
					q.Instance++
				case 4:
					q.Terms.Interval ^= 1_000_000
				case 5:
					q.Terms.Size = size.Part(1+r.Int64N(10), 10)
					if r.IntN(2) == 0 {
						q.Terms.Size = size
						q.Terms.Size.Burst[r.IntN(2)] /= 1 + r.Int64N(3)
					}
				case 6:
					client.Del(t.Context(), key)
					model = lease.Store{}
				case 7:
					q.Leave = true
				case 8:
					q.Holds = size
				case 9:
					q.Rescue = size
				}
				if r.IntN(20) > 0 {
					q.Sequence++
				}
				for i := range q.Demand {
					q.Demand[i] = r.Int64N(size.Rate[i] + 1)
					if r.IntN(3) == 0 {
						q.Demand[i] = 0
					}
				}
				v, err := script.Eval(t.Context(), client, []string{key},
					append(arguments(nil, q), now, server.ID, server.Replicas)...).Result()
				if err != nil {
					t.Fatalf("seed %d: %v", seed, err)
				}
				got, err := reply(v.([]any)[0], q.Leave)
				want := model.Call(now, server, q)
				if err != nil || got != want {
					t.Fatalf("seed %d: got %+v\n%v\n%+v, want\n%+v", seed, *q, err, got, want)
				}
				if calls[got.Refused.String()]++; got.Learning {
					calls["learning"]++
				}
				if q.Leave {
					*q = lease.Request{Host: q.Host, Instance: q.Instance + 1, Terms: q.Terms}
				}
				if got.Refused == lease.Granted && r.IntN(4) > 0 {
					q.Seen, q.Holds, q.Rescue = got.Time, got.Share, got.Rescue
				}
			}
		}
		for _, outcome := range []string{
			"granted", "learning", lease.NameUsed.String(), lease.Interval.String(), lease.Stale.String(),
		} {
			if calls[outcome] == 0 {
				t.Errorf("no call had the outcome %s: got %v", outcome, calls)
			}
		}
		t.Log(calls)
	})
}
