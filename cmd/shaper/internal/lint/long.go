package lint

import (
	"fmt"
	"strings"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// longest is the time of a rate above which a burst or a backlog is probably a mistake, such as
// bits for bytes. Bursts to bridge an RTT take less than a second, and the speed boosts of
// providers 5 to 10 s. Up to gsoMax bytes it may be longer: at slow rates a single GSO packet is.
const longest = 10 * time.Second

// tooLong reports whether n bytes or packets take longer than longest at a rate, and are more bytes than a
// GSO packet.
func (l *linter) tooLong(n int64, r meter.Rate, packets bool) bool {
	bytes := n
	if packets {
		bytes = min(n, gsoMax+1) * l.MTU
	}
	most, fits := r.Burst(longest)
	return r.Bytes > 0 && fits && n > most && bytes > gsoMax
}

// longBurst describes the first burst of a meter worth many seconds of its rate, and returns its
// name; or "". The limit of a window is no burst: its time is written beside it.
func (l *linter) longBurst(p meter.Params, packets bool) (text, key string) {
	if p.Kind().Info().State != meter.StateBuckets {
		return "", ""
	}
	for i, b := range p.Buckets() {
		if !l.tooLong(b.Burst, b.Rate, packets) || i == 0 && boost(p) {
			continue
		}
		unit := "bytes"
		if packets {
			unit = "packets"
		}
		return fmt.Sprintf("%s of %s %s is %s of its rate: after a pause it passes at once, so for that long the limit does not hold",
				b.BurstName, say.Grouped(b.Burst), unit, say.FillTime(b.Burst, b.Rate)),
			strings.ToLower(b.BurstName)
	}
	return "", ""
}

// boost reports whether the burst of a meter's first bucket passes at a second, higher rate, as a speed
// boost does. So it does not pass at once, and dropping yellow as well as red packets makes sense.
func boost(p meter.Params) bool {
	kind, b := p.Kind().Info(), p.Buckets()
	return kind.State == meter.StateBuckets && kind.Peak && b[0].Burst > b[1].Burst
}

// longBursts finds bursts of many seconds.
func (l *linter) longBursts() {
	for _, m := range l.metered() {
		if text, key := l.longBurst(m.params, m.packets); text != "" {
			l.add(Warning, m.object, key, "%s: %s", m.name, text)
		}
	}
}

// longBacklog describes a limit of a queue of many seconds, or is "". With codel or wred, packets are
// dropped before such a backlog.
func (l *linter) longBacklog(c *queue.Config, r meter.Rate) string {
	if c.CoDel != (queue.CoDel{}) || c.WRED != ([3]queue.Early{}) {
		return ""
	}
	n := c.Bytes
	switch {
	case c.Time > 0:
		n, _ = r.Burst(c.Time)
	case n == 0:
		n = int64(c.Packets) * l.MTU
	}
	if !l.tooLong(n, r, false) {
		return ""
	}
	return fmt.Sprintf(
		"a full queue delays each packet by %s: TCP times out and sends again; use a shorter limit, or codel",
		say.FillTime(n, r))
}
