// Package stats describes attached shapers: their status, counters, rates, customers and changes in
// force, as tables and as JSON.
package stats
