// Package engine runs the eBPF programs that change the states of meters, makes the maps of all
// programs, and converts the parameters and states of meters to the units of the programs.
package engine
