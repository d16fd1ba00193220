// Package cli holds what the commands share: streams, exit codes and errors of usage, arguments,
// the flags of a policy and its warnings, and the effect of signals.
package cli
