// Package diff finds the differences between two policies, and the packets of a capture that
// the policies treat differently.
package diff
