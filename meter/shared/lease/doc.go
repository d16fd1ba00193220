// Package lease shares the rates and bursts of a budget among hosts. It contains only
// the protocol: pure step functions of a host and of a store, without a clock, a network
// or a server. Package shared runs them with Redis or Valkey, and shaper simulate runs
// them in virtual time.
//
// Every host calls the store once per Interval. It reports the most it holds and its demand, and
// receives a share. The share is valid for a Lease, measured on the host's own monotonic clock from
// before the call. The store grants only capacity that no host holds. Three rules keep the sum
// within the budget, whatever is lost, delayed or crashes, as long as the store keeps its data:
//
//   - Shrink first, then report. A host releases capacity before it reports the release.
//     Capacity that a reply takes away counts as held until a later call shows that the
//     host received the reply.
//   - Grow from free capacity. The store adds up the most that each host can hold, and
//     grants an increase only from the rest.
//   - Reserve before use. When its lease ends, a host falls to its rescue share or below.
//     It rises to its rescue share only after Grow. By then, all leases granted to other
//     hosts without regard to that rescue share have ended.
//
// After a loss of its state, a failover to a replica, or a jump of its clock, a store learns for
// one lease: it grants no host more than the host already holds.
package lease
