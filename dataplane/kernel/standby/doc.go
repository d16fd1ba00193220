// Package standby marks processes that stand by: guards of an interface, and processes that wait
// for an interface that does not exist.
package standby
