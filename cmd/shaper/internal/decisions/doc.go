// Package decisions writes one row for each packet of a replay, in CSV or JSON: its class,
// its colors, the action and the reason.
package decisions
