// Package engine runs the eBPF programs for changing states, makes the maps of the programs, and
// converts the parameters and the states of meters to their units.
package engine
