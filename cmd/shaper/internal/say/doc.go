// Package say formats numbers, policies and tables for people. All commands write counts,
// rates, times, matches, meters and queues with it, so they look the same everywhere.
package say
