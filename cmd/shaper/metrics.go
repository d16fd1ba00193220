package main

import (
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// serveMetrics serves what shapers count in Prometheus' text format at
// /metrics. Without a host it listens on loopback. each calls a function for
// each shaper.
func serveMetrics(address string, each func(func(*kernel.Shaper) error) error) (*http.Server, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, usagef("--metrics %q: want an address such as 127.0.0.1:9090", address)
	}
	if host == "" {
		host = "127.0.0.1"
	}
	listener, err := net.Listen("tcp", net.JoinHostPort(host, port))
	if err != nil {
		return nil, fmt.Errorf("--metrics: %w", err)
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(shapers{each})
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	server := &http.Server{Addr: listener.Addr().String(), Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	go func() { _ = server.Serve(listener) }() // it ends with Close
	return server, nil
}

var (
	perClass = []string{"interface", "direction", "class"}
	perColor = append(append([]string{}, perClass...), "color")

	descInfo = prometheus.NewDesc("shaper_info", "1 for each shaper, with what it is.",
		[]string{"interface", "direction", "hook", "program_id", "policy", "dry_run"}, nil)
	descSince   = prometheus.NewDesc("shaper_start_time_seconds", "When it was attached.", []string{"interface", "direction"}, nil)
	descPackets = prometheus.NewDesc("shaper_packets_total", "Packets by color after the meter.", perColor, nil)
	descBytes   = prometheus.NewDesc("shaper_bytes_total", "Metered bytes by color after the meter.", perColor, nil)
	descDropped = prometheus.NewDesc("shaper_dropped_packets_total", "Dropped packets by color and reason.", append(append([]string{}, perColor...), "reason"), nil)
	descLost    = prometheus.NewDesc("shaper_dropped_bytes_total", "Metered bytes of dropped packets by color and reason.", append(append([]string{}, perColor...), "reason"), nil)
	descMarked  = prometheus.NewDesc("shaper_marked_packets_total", "Marked packets by color.", perColor, nil)
	descUntaken = prometheus.NewDesc("shaper_unclassified_packets_total", "Packets that no class took.", []string{"interface", "direction"}, nil)
	descTokens  = prometheus.NewDesc("shaper_tokens", "What a bucket holds now, in bytes (or packets where the meter counts these).",
		append(append([]string{}, perClass...), "stage", "meter", "bucket"), nil)
	descBurst = prometheus.NewDesc("shaper_burst", "What a bucket holds at most.", append(append([]string{}, perClass...), "stage", "meter", "bucket"), nil)
)

// shapers collects from all shapers each time it is asked.
type shapers struct {
	each func(func(*kernel.Shaper) error) error
}

func (shapers) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		descInfo, descSince, descPackets, descBytes, descDropped, descLost, descMarked, descUntaken, descTokens, descBurst,
	} {
		out <- d
	}
}

func (s shapers) Collect(out chan<- prometheus.Metric) {
	if err := s.each(func(sh *kernel.Shaper) error { return collect(out, sh) }); err != nil {
		out <- prometheus.NewInvalidMetric(descInfo, err)
	}
}

func collect(out chan<- prometheus.Metric, sh *kernel.Shaper) error {
	policy, err := policyOf(sh.Label)
	if err != nil {
		return err
	}
	stats, err := sh.Stats()
	if err != nil {
		return err
	}
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	count := func(d *prometheus.Desc, v int64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	name, direction := sh.Interface, sh.Direction.String()
	gauge(descInfo, 1, name, direction, hookOf(&sh.About), fmt.Sprint(sh.Program), policy.Name, fmt.Sprint(sh.Dry))
	gauge(descSince, float64(sh.Since.UnixMilli())/1000, name, direction)
	count(descUntaken, stats[len(stats)-1].Untaken.Packets, name, direction)
	for i := range policy.Policy.Classes {
		class, st := &policy.Policy.Classes[i], &stats[i]
		for color := meter.Green; color <= meter.Red; color++ {
			labels := []string{name, direction, class.Name, color.String()}
			count(descPackets, st.Colors[color].Packets, labels...)
			count(descBytes, st.Colors[color].Bytes, labels...)
			count(descMarked, st.Marked[color].Packets, labels...)
			for cause, n := range st.Drops[color] {
				if cause := dataplane.Cause(cause); cause != dataplane.CauseQueue {
					count(descDropped, n.Packets, append(labels, cause.String())...)
					count(descLost, n.Bytes, append(labels, cause.String())...)
				}
			}
		}
		tokens, err := sh.Tokens(i)
		if err != nil {
			return err
		}
		m := class.Meter
		for k := 0; k < len(tokens) && m != nil; k, m = k+1, m.Then {
			for b, bucket := range policyfile.Buckets(m.Params) {
				gauge(descTokens, float64(tokens[k][b]), name, direction, class.Name, fmt.Sprint(k), m.Name, bucket.Tokens)
				gauge(descBurst, float64(bucket.Burst), name, direction, class.Name, fmt.Sprint(k), m.Name, bucket.Tokens)
			}
		}
	}
	return nil
}
