// Package safedir opens directories beyond the control of other users, and files in them. It is the
// only place where shaper decides whether a directory can be trusted: that of --state, of a control
// socket, of locks and journals, and of pins.
package safedir
