package kernel

import (
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
)

// SetLease replaces the limits of a meter whose budget is on a server. The previous limits apply
// until now. Times are in ns of CLOCK_MONOTONIC; Now returns it. Phases begin and end by the
// kernel's clock, even if this process ends. Before the first lease all packets are red. A burst of
// more than 72,057,594 tokens is capped at this number if the kernel cannot count it exactly.
// SetLease does nothing if no class uses the budget. It is safe for concurrent use.
func (s *Shaper) SetLease(budget string, lease compiled.Lease) error {
	return s.leases.SetLease(budget, &lease)
}

// Demand returns the tokens requested by packets from the meter of a budget on a server, by
// resulting color, since the budget was added to the policy. It returns zeros if no class uses the
// budget. It is safe for concurrent use.
func (s *Shaper) Demand(budget string) (asked [3]uint64, err error) {
	return s.leases.DemandFor(budget)
}

// Leased returns the present limits of the meter of a budget on a server, and those after
// its lease. Both are zero before the first lease, and if no class uses the budget. Rates
// are rounded down. Another process may have set the lease.
func (s *Shaper) Leased(budget string) (now, last compiled.BucketLimits, err error) {
	return s.maps.LeaseLimits(&s.About, budget)
}
