// Package hostbudget gives planes in user space the budgets shared by shapers of this host, and
// lists the budgets in use.
package hostbudget

import "github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/registry"

// ConflictError reports a budget of the host in use with other parameters.
type ConflictError = registry.ConflictError

// Use is a budget of this host and its users.
type Use = registry.Use

// InUse returns the used budgets of this host, in any network namespace. It is safe for concurrent
// use. It does not check that their users still exist.
func InUse() ([]Use, error) { return registry.InUse() }
