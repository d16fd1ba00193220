// Package rundir keeps state outliving processes: locks, journals of interfaces, files of shapers,
// and pins of links.
package rundir
