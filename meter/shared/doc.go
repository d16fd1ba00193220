// Package shared enforces limits shared by several hosts. A script on a Redis or Valkey server
// makes each decision, on the server's clock:
//
//	client, err := shared.Open(shared.Server{URL: "redis://user:password@store:6379"})
//	store, err := shared.New(client, shared.Config{})
//	perSecond, err := store.Limiter(shared.Limit{
//		Name:   "per-second",
//		Params: meter.TokenBucket{Rate: meter.Per(100, time.Second), Burst: 100},
//		Fail:   shared.FailRescue, Share: 0.1, // without the server, each of ten hosts allows a tenth
//	})
//	d, err := perSecond.Decide(ctx, "customer-42", 1)
//
// Limits take the parameters of package meter: token bucket, GCRA, fixed window, sliding
// counter and sliding log. They give the same verdicts for the same times, to the microsecond.
// The scripts use no floating-point tokens and round nothing. Backend.Limiter rejects limits whose
// numbers a script could not count exactly.
//
// Decide takes n or nothing, TakeUpTo as much of n as fits. Backend.Each decides about many
// requests in one round trip. Backend.All takes from several limits, or from none.
//
// # Leases
//
// A decision at the server takes a round trip, which is too long for a packet. An [Agent]
// requests a share of a budget's rate and burst from the server once per interval, and makes
// the meters of this host ([LeasedMeter]) follow. The sum of all hosts' shares never exceeds the
// budget; package lease describes the protocol. ListBudgets, ShowBudget, SetBudget,
// UnsetBudget and DropHost are for operators.
//
// # Keys
//
// A limit uses one key for each budget, such as a customer, and for each Key within it, such as a
// user of the customer:
//
//	{shaper:customer-42}:per-second:bucket.1.33:alice
//
// The part in braces is the hash tag, which places all keys of a budget in one slot of a
// cluster. The third part is the algorithm with the unit of the state. If a new configuration
// changes it, the limit starts full. A key expires when its limit is full again: when the bucket is
// full, or the window is over.
//
// # Fail modes
//
// No decision takes longer than Config.Deadline. If a call fails because the server cannot be
// reached, or cannot decide about any key, the store is lost. From then on each limit decides
// locally and at once, by its fail mode, and Decision.Err gives the reason. A monitor
// probes the server; after its first success the store decides again.
//
// Local meters start full. So during an outage a host allows its share of rate and burst, in
// addition to the amounts the server allowed before. Keep the sum of all hosts' shares at most 1.
//
// # Clocks
//
// Each key follows the clock of its server. If that clock goes back, for instance because a
// failover moved the key to a server whose clock is behind, amounts taken stay taken. A limit
// then refuses for at most the time it needs to become full; a window, for at most two windows. A
// bucket may start full if the clock goes back by half of its cycle, usually 1.2 hours.
//
// The server must be a 64-bit build of Redis 7.0 or Valkey 7.2, or later.
package shared
