// Package registry lists the budgets that several shapers of a host share, and their users.
package registry
