// Package standby makes processes that stand by visible to others: guards of an interface, and
// processes waiting for an interface that does not exist.
package standby
