// Package lease shares the rates and bursts of a budget between hosts. It is the
// protocol only: pure step functions of a host and of a store, without a clock, a
// network or a server. Package shared runs them against Redis or Valkey, shaper
// simulate in virtual time.
//
// Every host calls the store once per Interval. It says what it holds at most and what
// it needs, and gets an amount for a Lease, counted on its own monotonic clock from
// before the call. The store hands out what no host holds. Three rules keep the sum
// within the budget whatever is lost, delayed or dies while the store keeps its data:
//
//   - Shrink first, then report. A host gives up what it does not need before it says
//     so. What a reply takes from it counts as held until a later call shows that the
//     host heard of it.
//   - Grow from what is free. The store adds up the most that each host can hold, and
//     grants an increase only from the rest.
//   - Reserve before it is used. A host whose lease has ended falls to its rescue share
//     at the latest, and never rises to it before Grow has passed. By then every other
//     lease that was granted without that rescue share in mind has ended, too.
//
// A store that lost its state, was replaced by a replica, or whose clock jumped, learns
// for one lease: it grants nothing that a host does not hold already.
package lease
