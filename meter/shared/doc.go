// Package shared limits rates that several hosts share: each decision is made by a script at
// a server of Redis or Valkey.
package shared
