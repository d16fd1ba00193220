// Package engine runs the eBPF programs that change the states of meters, makes the maps of all
// programs, and converts the parameters and states of meters to the units of the programs. It also
// meters packets of planes in user space by the budgets of the host.
package engine
