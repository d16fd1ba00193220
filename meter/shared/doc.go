// Package shared limits rates that several hosts share. A script at a server of Redis or
// Valkey makes each decision, by the server's clock:
//
//	client, err := shared.Open("redis://user:password@store:6379")
//	store, err := shared.New(client, shared.Config{})
//	perSecond, err := store.Limiter(shared.Limit{
//		Name:   "per-second",
//		Params: meter.GCRA{Rate: meter.Per(100, time.Second), Burst: 100},
//		Fail:   shared.FailRescue, Share: 0.1, // a tenth for each of ten hosts, while the store is lost
//	})
//	d, err := perSecond.Decide(ctx, "customer-42", 1)
//
// The parameters are those of package meter, and so are the verdicts, for the same times, to
// the microsecond: token bucket, GCRA, fixed window, sliding counter and sliding log. There
// are no floating-point tokens, and nothing is rounded: Store.Limiter refuses limits whose
// numbers a script could not count exactly. Several goroutines may use all of it.
//
// Decide takes n or nothing, TakeUpTo what fits of n. Store.Each decides about many
// requests in one round trip, and Store.All takes from several limits or from none.
//
// # Keys
//
// A limit has one key for each budget, such as a customer, and for each key within it, such as
// a user of the customer:
//
//	{shaper:customer-42}:per-second:bucket.1.33:alice
//
// What is in braces puts all limits of a budget into one slot of a cluster. A key expires as
// soon as it means nothing: when the bucket is full, or the window over. The third part is
// the kind of the limit and the unit of its state. A limit that changes so that these change
// begins with all of its tokens.
//
// # Without the store
//
// No decision takes longer than Config.Deadline. When a call fails because the server cannot
// be reached or cannot decide, the store is lost: from then on Limit.Fail decides at once,
// locally, and Decision.Err says why. A monitor looks for the store, and the decisions after
// its first success are the store's again.
//
// Rescue meters begin full. So a host's share is a rate and a burst beside what the store
// gave out before it was lost, and the shares of all hosts should add up to at most 1.
//
// # Clocks
//
// A key's clock is that of the server that has it. If it goes back, as after a failover to a
// server whose clock is behind, what was taken stays taken, and a limit refuses for at most
// the time that it takes to be whole again, windows for at most two. A bucket whose clock goes back by
// more than an hour or two may be full.
//
// The server must be a 64-bit build of Redis 7.0, Valkey 7.2, or later.
package shared
