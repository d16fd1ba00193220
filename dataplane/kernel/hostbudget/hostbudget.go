// Package hostbudget gives planes in user space the budgets that shapers of this host share, and
// lists the budgets in use.
package hostbudget

import "github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/registry"

// ConflictError reports that a budget of the host is in use with other parameters.
type ConflictError = registry.ConflictError

// Use is a budget of this host and its users.
type Use = registry.Use

// InUse returns the budgets of this host that are in use, in any network namespace. It is
// safe for concurrent use. It does not check that their users still exist.
func InUse() ([]Use, error) { return registry.InUse() }
