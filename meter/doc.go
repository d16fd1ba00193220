// Package meter colors packets green, yellow or red. It implements the three-color
// meters of RFC 2697 (single rate), RFC 2698 (two rates), RFC 4115 with the coupling
// flag of MEF 10.3, and RFC 2859, and two-color meters: token bucket (GCRA, the leaky
// bucket as a meter), fixed and sliding windows, and sliding log.
//
// # Metering packets
//
// To color packets, a program needs these names, in this order:
//
//   - A [Rate] is exact; it comes from [BitRate], [ByteRate] or [Per].
//   - Parameters are a plain struct, such as [SRTCM], [TRTCM], [TRTCM4115] or
//     [TokenBucket]. Its Profile method checks them and returns a [Profile], which is
//     immutable and may be shared by any number of meters.
//   - [New] returns a [Meter] with full buckets: 24 bytes of state and a pointer to the
//     Profile. [Meter.SetProfile] changes the parameters and keeps the tokens.
//   - [Meter.Color] meters a packet and returns its [Color]. It is the one call on the
//     packet path. [Meter.Colors] meters a burst of packets with one clock reading, and
//     [ColorEach] a burst over many meters.
//   - A [Locked] meter may be used by several goroutines.
//   - A [Table] has a meter for each key, such as each source address, with a bound on the
//     number of keys. [Table.Set] gives a key, such as a customer, parameters of its own.
//     [Shards] is a Table for several goroutines.
//
// The call on the packet path is
//
//	color := m.Color(now, length, in)
//
// now is in nanoseconds on any clock ([Now] and a [CoarseClock] are two), length is in bytes, and
// in is the input color: the packet's earlier color in color-aware mode, always [Green] in
// color-blind mode. No call on the packet path allocates.
//
// # Exactness
//
// Refill is continuous and exact, for any rate from 1 bit/s to 400 Gbit/s: a bucket gains
// every fraction of a token, and does not drift after any number of packets or any idle
// time. The RFCs add whole bytes at each tick of a clock; the two readings differ by less
// than a byte. A packet conforms if its length equals the tokens, also in RFC 4115, whose
// Figure 1 and text disagree.
//
// The meter does not read a clock, mark headers, drop packets or subtract link headers.
// RFC 2697 §1 counts the bytes of the IP packet.
//
// # Limiting programs
//
// A meter also limits requests, logins or anything else a program counts: Per(5, time.Second) is a
// rate of five requests a second, each of length 1. [Meter.Allow] answers yes or no. [Meter.Decide]
// also returns the numbers for a client: remaining, retry after and reset after. [Meter.Peek] tests
// without taking tokens, [Meter.TakeUpTo] takes part of a request, and [Meter.RetryAfter] and
// [Meter.ResetAfter] return how long to wait. [Meter.Reserve] takes tokens ahead of time, and
// [Locked.Wait] sleeps until a request fits. A [CreditWindow] limits the bytes in flight.
//
// # More meters
//
// [FixedWindow], [SlidingWindow], [SlidingCounter] and [SlidingLog] limit the bytes in a window of
// time. [TSWTCM] is the marker of RFC 2859, which measures an average rate. An [Envelope] meters
// flows sharing bandwidth by rank (MEF 10.3 §12).
//
// # Tools around meters
//
// [Meter.AppendBinary] and [Table.AppendBinary] save the exact state, UnmarshalBinary restores it,
// and [Meter.Shift] moves it to a new clock.
//
// [Meter.Explain] returns a verdict with its reason, a [Clause] of an RFC. [Kind] and
// [KindInfo] describe each kind of meter. A program can read and print the parameters of
// all kinds by them; [Field] and [WithField] access parameters by name.
// [Profile.Integers] returns the constants of a meter for an implementation in another
// language.
package meter
