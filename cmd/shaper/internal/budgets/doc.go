// Package budgets manages a process's shares of budgets on servers. It runs the agents, and
// applies their leases to the meters of shapers.
package budgets
