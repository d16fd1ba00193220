package oracle

import "testing"

// At 8mbit a byte takes 1000 ns, at 4mbit 2000 ns.
func TestTree(t *testing.T) {
	runByHand(t, []handTest{
		{"a rate of its own", `
links: {wan: {rate: 8mbit}}
queues: {q: {link: wan, rate: 4mbit, limit: 10p}, r: {link: wan, limit: 10p}}`, `
			0        q 1000 green 0
			0        q 1000 green 2000000   before r, with the same deadline of 4 ms
			0        r 1000 green 1000000
			0        r 1000 green 3000000
			10000000 q 1000 green 10000000  forgets what it did not send while it was idle
			10000000 q 1000 green 12000000`},
		{"limit at its own rate", "links: {wan: {rate: 8mbit}}\nqueues: {q: {link: wan, rate: 4mbit, limit: 1ms}}", `
			0 q 501 green queue-full
			0 q 500 green 0`},
		{"a link below another one", `
links: {wan: {rate: 8mbit}, ap: {link: wan, rate: 4mbit}}
queues: {a: {link: ap, limit: 10p}, b: {link: ap, limit: 10p, priority: 1}}`, `
			0       a 1000 green 0
			0       b 1000 green 4000000
			1000000 a 1000 green 2000000`},
		{"limit at the rate of the link above", `
links: {wan: {rate: 8mbit}, ap: {link: wan}}
queues: {q: {link: ap, limit: 1ms}}`, `
			0 q 1001 green queue-full
			0 q 1000 green 0`},
		{"a guarantee before a priority", `
links: {wan: {rate: 8mbit}}
queues: {a: {link: wan, limit: 10p}, b: {link: wan, limit: 10p, priority: 1, guarantee: 4mbit}}`, `
			0 a 1000 green 0        each can count on 4mbit
			0 a 1000 green 2000000
			0 a 1000 green 4000000
			0 b 1000 green 1000000
			0 b 1000 green 3000000`},
	})
}
