// Package safedir opens directories controlled by no other user, and files in them. It is the only
// place where shaper decides whether a directory can be trusted: of --state, of a control socket,
// of locks and journals, and of pins.
package safedir
