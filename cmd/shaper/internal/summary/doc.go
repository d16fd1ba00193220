// Package summary holds the result of a replay: totals and the worst episodes, as a table and as
// JSON, and the series of the HTML report, which it collects packet by packet.
package summary
