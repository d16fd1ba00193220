// Package engine runs the eBPF programs for changing states, makes the maps of the programs, and
// converts the parameters and the states of meters to their units. It meters packets of user space by
// the budgets of the host.
package engine
