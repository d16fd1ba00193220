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
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// serveMetrics serves what shapers count in Prometheus' text format at
// /metrics, and says so. Without a host it listens on loopback. each calls a
// function for each shaper.
func serveMetrics(s streams, address string, each func(func(live) error) error) (*http.Server, error) {
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
	fmt.Fprintf(s.err, "shaper: metrics at http://%s/metrics\n", server.Addr)
	return server, nil
}

var (
	perClass  = []string{"interface", "direction", "class"}
	perColor  = append(append([]string{}, perClass...), "color")
	perStage  = append(append([]string{}, perClass...), "stage", "meter")
	perBucket = append(append([]string{}, perStage...), "bucket")

	descInfo = prometheus.NewDesc("shaper_info", "1 for each shaper, with what it is.",
		[]string{"interface", "direction", "hook", "program_id", "policy", "dry_run"}, nil)
	descSince   = prometheus.NewDesc("shaper_start_time_seconds", "When it was attached.", []string{"interface", "direction"}, nil)
	descPackets = prometheus.NewDesc("shaper_packets_total", "Packets by color after the meter.", perColor, nil)
	descBytes   = prometheus.NewDesc("shaper_bytes_total", "Metered bytes by color after the meter.", perColor, nil)
	descDropped = prometheus.NewDesc("shaper_dropped_packets_total", "Dropped packets by color and reason.", append(append([]string{}, perColor...), "reason"), nil)
	descLost    = prometheus.NewDesc("shaper_dropped_bytes_total", "Metered bytes of dropped packets by color and reason.", append(append([]string{}, perColor...), "reason"), nil)
	descMarked  = prometheus.NewDesc("shaper_marked_packets_total", "Marked packets by color.", perColor, nil)
	descQueued  = prometheus.NewDesc("shaper_queued_packets_total", "Packets by color that went through a queue.", perColor, nil)
	descDelay   = prometheus.NewDesc("shaper_queue_delay_seconds", "How long a packet would wait; 0 in a queue of a link.", []string{"interface", "direction", "queue"}, nil)
	descWaiting = prometheus.NewDesc("shaper_queue_bytes", "Bytes that wait.", []string{"interface", "direction", "queue"}, nil)
	descBehind  = prometheus.NewDesc("shaper_queue_dropped_packets_total", "Packets that HTB had no room for, which classes count as queued.", []string{"interface", "direction", "queue"}, nil)
	descUntaken = prometheus.NewDesc("shaper_unclassified_packets_total", "Packets that no class took.", []string{"interface", "direction"}, nil)
	descTokens  = prometheus.NewDesc("shaper_tokens", "What a bucket holds now, or what is left of a limit, in bytes (or packets where the meter counts these).",
		perBucket, nil)
	descKeys    = prometheus.NewDesc("shaper_keys", "Keys that a meter for each knows; not counted in the kernel.", perStage, nil)
	descEvicted = prometheus.NewDesc("shaper_keys_evicted_total", "Keys forgotten for new ones.", perStage, nil)
	descRefused = prometheus.NewDesc("shaper_keys_refused_total", "Packets whose key found no room.", perStage, nil)
	descBurst   = prometheus.NewDesc("shaper_burst", "What a bucket holds at most, or the limit.", perBucket, nil)
)

// shapers collects from all shapers each time it is asked.
type shapers struct {
	each func(func(live) error) error
}

func (shapers) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		descInfo, descSince, descPackets, descBytes, descDropped, descLost, descMarked, descQueued, descDelay, descWaiting, descBehind, descUntaken, descTokens, descBurst, descKeys, descEvicted, descRefused,
	} {
		out <- d
	}
}

func (s shapers) Collect(out chan<- prometheus.Metric) {
	if err := s.each(func(sh live) error { return collect(out, sh) }); err != nil {
		out <- prometheus.NewInvalidMetric(descInfo, err)
	}
}

func collect(out chan<- prometheus.Metric, sh live) error {
	about := sh.Info()
	policy, err := policyOf(about.Label)
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
	name, direction := about.Interface, about.Direction.String()
	gauge(descInfo, 1, name, direction, hookOf(about), fmt.Sprint(about.Program), policy.Name, fmt.Sprint(about.Dry))
	gauge(descSince, float64(about.Since.UnixMilli())/1000, name, direction)
	count(descUntaken, stats[len(stats)-1].Untaken.Packets, name, direction)
	queues, err := sh.Queues()
	if err != nil {
		return err
	}
	for _, q := range queues {
		gauge(descDelay, q.Delay.Seconds(), name, direction, q.Name)
		gauge(descWaiting, float64(q.Bytes), name, direction, q.Name)
		count(descBehind, q.Dropped, name, direction, q.Name)
	}
	for i := range policy.Policy.Classes {
		class, st := &policy.Policy.Classes[i], &stats[i]
		for color := meter.Green; color <= meter.Red; color++ {
			labels := []string{name, direction, class.Name, color.String()}
			count(descPackets, st.Colors[color].Packets, labels...)
			count(descBytes, st.Colors[color].Bytes, labels...)
			count(descMarked, st.Marked[color].Packets, labels...)
			count(descQueued, st.Queued[color].Packets, labels...)
			for cause, n := range st.Drops[color] {
				cause := dataplane.Cause(cause).String()
				count(descDropped, n.Packets, append(labels, cause)...)
				count(descLost, n.Bytes, append(labels, cause)...)
			}
		}
		tokens, err := sh.Tokens(i)
		if err != nil {
			return err
		}
		m := class.Meter
		for k := 0; k < len(tokens) && m != nil; k, m = k+1, m.Then {
			if m.Per.By != dataplane.NoKey {
				if r, ok := sh.(*remote); ok { // the kernel does not count them
					keys, labels := r.Keys(i)[k], []string{name, direction, class.Name, fmt.Sprint(k), m.Name}
					gauge(descKeys, float64(keys.Keys), labels...)
					count(descEvicted, int64(keys.Evicted), labels...)
					count(descRefused, int64(keys.Refused), labels...)
				}
				continue // each key has its own tokens
			}
			for b, bucket := range policyfile.Buckets(m.Params) {
				gauge(descTokens, float64(tokens[k][b]), name, direction, class.Name, fmt.Sprint(k), m.Name, bucket.Tokens)
				gauge(descBurst, float64(bucket.Burst), name, direction, class.Name, fmt.Sprint(k), m.Name, bucket.Tokens)
			}
		}
	}
	return nil
}
