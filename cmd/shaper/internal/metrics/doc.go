// Package metrics serves the counters of shapers to Prometheus. The owner of the shapers
// publishes snapshots on a board, and HTTP handlers read only the board.
package metrics
