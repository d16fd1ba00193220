// Package filelock is for file locks that a process holds while it changes something. A holder can
// be slow, because of 100,000 customers or a busy machine; then others must wait for it. They must
// not wait for one that is stopped. So a holder sets the time of the file again and again, and
// others wait as long as the time changes, up to a minute.
package filelock
