package shared

import (
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/meter/shared/storetest"
)

// floatGCRA is the approach of redis_rate and others: a theoretical arrival
// time in seconds as a double, with fractions. Since 2017 the integer part has
// 29 bits, so the last bit is worth 60 ns. ARGV: burst, interval in s, seconds,
// microseconds.
var floatGCRA = redis.NewScript(`
local interval = ARGV[2] + 0
local now = ARGV[3] - 1483228800 + ARGV[4] / 1000000
local arrival = math.max(tonumber(redis.call('GET', KEYS[1]) or 0), now) + interval
if now < arrival - interval * ARGV[1] then
  return 0
end
redis.call('SET', KEYS[1], arrival)
return 1`)

// floatBucket is the classic token bucket: tokens as a double, and the time of
// the last request. ARGV: burst, tokens per second, seconds, microseconds.
var floatBucket = redis.NewScript(`
local now = ARGV[3] + ARGV[4] / 1000000
local state = redis.call('HMGET', KEYS[1], 'tokens', 'last')
local tokens = math.min(ARGV[1], (state[1] or ARGV[1]) + (now - (state[2] or now)) * ARGV[2])
local allowed = tokens >= 1 and 1 or 0
redis.call('HSET', KEYS[1], 'tokens', tokens - allowed, 'last', now)
return allowed`)

// TestFloatsDrift sends requests exactly at the times at which they conform.
// Scripts with floats refuse some, or are permanently slower than the limit.
// Our scripts refuse none.
func TestFloatsDrift(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, server *storetest.Server) {
		c := server.Client()
		for i, drift := range []struct {
			name   string
			script *redis.Script
			rate   int64         // per second
			every  time.Duration // interval between requests
			of     int
			slow   float64 // minimum part of the rate that floats lose
		}{
			{"GCRA, 1,000,000 per second, one per µs", floatGCRA, 1_000_000, time.Microsecond, 1, 0.005},
			{"GCRA, 10 per second, one per 0.1 s", floatGCRA, 10, 100 * time.Millisecond, 1, 0.1},
			{"token bucket, 10 per second, one per 10 ms", floatBucket, 10, 10 * time.Millisecond, 10, 0.05},
		} {
			const requests = 2000
			v := newVirtual(t, server, 1_795_000_000_000_000)
			l := v.limiter(fmt.Sprint("drift", i),
				meter.TokenBucket{Rate: meter.Per(drift.rate, time.Second), Burst: 1})
			var exact, floats int
			for range requests {
				d, err := l.Decide(ctx, "b", 1)
				noError(t, err)
				exact += int(d.Taken)
				parameter := fmt.Sprint(drift.rate)
				if drift.script == floatGCRA {
					parameter = fmt.Sprint(1 / float64(drift.rate))
				}
				allowed, err := drift.script.Run(ctx, c, []string{fmt.Sprint("float", i)}, 1, parameter,
					v.us/1e6, v.us%1e6).Int()
				noError(t, err)
				floats += allowed
				v.us += drift.every.Microseconds()
			}
			want := requests / drift.of
			if exact != want {
				t.Errorf("%s: got %d allowed, want %d", drift.name, exact, want)
			}
			if lost := 1 - float64(floats)/float64(want); lost < drift.slow {
				t.Errorf("%s: floats allowed %d of %d, want a drift of at least %v", drift.name, floats, want,
					drift.slow)
			} else {
				t.Logf("%s: floats allowed %d of %d", drift.name, floats, want)
			}
		}
	})
}
