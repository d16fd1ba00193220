// Package meter colors packets green, yellow or red by the three-color
// meters of RFC 2697 (single rate), RFC 2698 (two rates) and RFC 4115 with
// the coupling flag of MEF 10.3, and by the rest of the family: token bucket,
// GCRA, fixed and sliding windows, sliding log, and the marker of RFC 2859.
//
// Parameters are a plain struct, such as SRTCM or FixedWindow. It compiles to an
// immutable Profile, which any number of meters share. A Meter is a pointer to it
// and 24 bytes of state. Color is the one call on the packet path:
//
//	color := m.Color(now, length, before)
//
// now is in nanoseconds on a clock of the caller's choice, length in bytes.
// before is the color that the packet came with (color-aware mode), or Green
// for every packet (color-blind mode). Allow answers yes or no, and Now is a
// clock. Colors does the same for a burst of packets with one time, ColorEach for
// a burst over many meters. Locked is a meter that several goroutines share. Table
// has a meter for each of many keys, and Shards is one for several goroutines.
// Envelope meters flows that share their bandwidth by rank, CreditWindow what is on
// its way.
//
// Who limits more than packets may ask without taking (Peek), take a part
// (TakeUpTo), ask when to come again (RetryAfter), learn all of it at once (Decide),
// reserve, cancel and wait. What is metered need not be bytes: Per(5, time.Second) is
// a rate of five requests a second, each of length 1.
//
// Refill is continuous and exact: after dt ns a bucket has gained exactly
// dt * rate tokens, fraction included, for any rate from 1 bit/s to
// 400 Gbit/s, with no drift after any number of packets and any idle time.
// The RFCs tick in whole bytes; the two readings are never a byte apart. A
// packet equal to the tokens conforms, in RFC 4115 too, where Figure 1 and
// the prose differ.
//
// What the meter does not do: it reads no clock, marks no header, drops
// nothing, and does not subtract link headers. RFC 2697 §1 counts the bytes of
// the IP packet.
package meter
