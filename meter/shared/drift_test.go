package shared

import (
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/meter/shared/storetest"
)

// floatGCRA is the idea of redis_rate and others: a theoretical arrival time in seconds, with
// fractions, in a double. Since 2017 that is a double's 29th bit, so its last is 60 ns.
// ARGV: burst, interval in s, seconds, microseconds.
var floatGCRA = redis.NewScript(`
local interval = ARGV[2] + 0
local now = ARGV[3] - 1483228800 + ARGV[4] / 1000000
local arrival = math.max(tonumber(redis.call('GET', KEYS[1]) or 0), now) + interval
if now < arrival - interval * ARGV[1] then
  return 0
end
redis.call('SET', KEYS[1], arrival)
return 1`)

// floatBucket is the classic token bucket: tokens, with fractions, and the time of the last
// request. ARGV: burst, tokens in a second, seconds, microseconds.
var floatBucket = redis.NewScript(`
local now = ARGV[3] + ARGV[4] / 1000000
local state = redis.call('HMGET', KEYS[1], 'tokens', 'last')
local tokens = math.min(ARGV[1], (state[1] or ARGV[1]) + (now - (state[2] or now)) * ARGV[2])
local allowed = tokens >= 1 and 1 or 0
redis.call('HSET', KEYS[1], 'tokens', tokens - allowed, 'last', now)
return allowed`)

// TestFloatsDrift has requests come at exactly the times at which they conform. Scripts with
// floats refuse some, or are slower than the limit for ever; ours refuses none.
func TestFloatsDrift(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, server *storetest.Server) {
		c := server.Client()
		for i, drift := range []struct {
			what   string
			script *redis.Script
			rate   int64         // in a second
			every  time.Duration // a request, of which so many conform
			of     int
			slow   float64 // part of the rate that floats lose, at least
		}{
			{"GCRA, 1,000,000 in a second, one each µs", floatGCRA, 1_000_000, time.Microsecond, 1, 0.005},
			{"GCRA, 10 in a second, one each 0.1 s", floatGCRA, 10, 100 * time.Millisecond, 1, 0.1},
			{"token bucket, 10 in a second, one each 10 ms", floatBucket, 10, 10 * time.Millisecond, 10, 0.05},
		} {
			const requests = 2000
			v := newVirtual(t, server, 1_795_000_000_000_000)
			l := v.limiter(fmt.Sprint("drift", i), meter.TokenBucket{Rate: meter.Per(drift.rate, time.Second), Burst: 1})
			var exact, floats int
			for range requests {
				d, err := l.Decide(ctx, "b", 1)
				must(t, err)
				exact += int(d.Taken)
				parameter := fmt.Sprint(drift.rate)
				if drift.script == floatGCRA {
					parameter = fmt.Sprint(1 / float64(drift.rate))
				}
				allowed, err := drift.script.Run(ctx, c, []string{fmt.Sprint("float", i)}, 1, parameter, v.us/1e6, v.us%1e6).Int()
				must(t, err)
				floats += allowed
				v.us += drift.every.Microseconds()
			}
			want := requests / drift.of
			if exact != want {
				t.Errorf("%s: %d allowed, want %d", drift.what, exact, want)
			}
			if lost := 1 - float64(floats)/float64(want); lost < drift.slow {
				t.Errorf("%s: floats allowed %d of %d, want a drift of %v at least", drift.what, floats, want, drift.slow)
			} else {
				t.Logf("%s: floats allowed %d of %d", drift.what, floats, want)
			}
		}
	})
}
