package main

import (
	"github.com/spf13/cobra"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/cli"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/metrics"
)

// metricsFlags are the flags of commands that serve metrics.
type metricsFlags struct {
	address   string // "" for none
	customers int
}

func (m *metricsFlags) add(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&m.address, "metrics", "", "serve Prometheus metrics at `ADDRESS`, such as 127.0.0.1:9190; without a host, listen on loopback only")
	f.IntVar(&m.customers, "metrics-customers", 0, "with --metrics, serve metrics of each of the `N` customers with the most bytes")
}

// parse checks the flags and returns the address.
func (m *metricsFlags) parse() (address metrics.Address, err error) {
	switch {
	case m.customers < 0 || m.customers > metrics.MaxCustomers:
		return address, cli.Usagef("--metrics-customers %d: want 0 to %d", m.customers, metrics.MaxCustomers)
	case m.address == "" && m.customers > 0:
		return address, cli.Usagef("--metrics-customers needs --metrics")
	case m.address == "":
		return address, nil
	}
	if address, err = metrics.ParseAddress(m.address); err != nil {
		err = &cli.UsageError{Err: err}
	}
	return address, err
}
