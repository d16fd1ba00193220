// Package safedir opens directories that other users cannot control, and files in them. All
// directories of shaper are checked here: those of --state, of control sockets, of locks and
// journals, and of pins.
package safedir
