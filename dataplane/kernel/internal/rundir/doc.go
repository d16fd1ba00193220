// Package rundir keeps state that outlives a process: locks, journals of interfaces, files of
// shapers, and pins of links.
package rundir
