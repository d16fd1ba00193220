// Package registry lists the budgets shared by several shapers of a host, and their users.
package registry
