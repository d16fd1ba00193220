// Package diff finds the differences between two policies, and the packets of a capture they treat
// differently.
package diff
