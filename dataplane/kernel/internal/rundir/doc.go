// Package rundir keeps the state that outlives a process: locks, journals of interfaces, files of
// shapers, and pins of links.
package rundir
