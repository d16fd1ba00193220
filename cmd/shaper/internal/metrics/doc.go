// Package metrics serves the counters of shapers to Prometheus. The process that owns the
// shapers publishes them on a board; HTTP handlers read only that.
package metrics
