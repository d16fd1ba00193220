// Package standby marks standby processes: guards of an interface, and processes waiting for an
// interface that does not exist.
package standby
