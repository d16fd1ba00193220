// Package budgets keeps a process's shares of budgets on servers: it runs the agents, and
// has the meters of shapers follow their leases.
package budgets
