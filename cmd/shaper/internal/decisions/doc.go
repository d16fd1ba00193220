// Package decisions writes one row per packet of a replay, as CSV or JSON lines: its class,
// colors, action and reason.
package decisions
