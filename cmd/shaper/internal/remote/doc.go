// Package remote asks the process of shapers through its control socket, for the commands of users who cannot
// look at the kernel.
package remote
