// Package storetest runs real Redis and Valkey servers for tests: on free ports of 127.0.0.1, in
// temporary directories, until the test ends. It also runs replicas, Sentinels and clusters, and a
// TCP proxy that behaves like a broken network.
//
//	storetest.Each(t, func(t *testing.T, s *storetest.Server) {
//		client := s.Client()
//		...
//	})
//
// If no server is installed, a test is skipped; it fails instead if the environment variable CI is
// set. No function sleeps for a fixed time: when a function returns, everything it started is
// ready. Servers die with the test process. go-redis logs nothing in a test that imports this
// package.
//
// The package is for tests. Any version may change it incompatibly.
package storetest

import (
	"context"

	"github.com/redis/go-redis/v9"
)

func init() { redis.SetLogger(quiet{}) }

// quiet discards go-redis's logs about servers stopped by tests on purpose.
type quiet struct{}

func (quiet) Printf(context.Context, string, ...any) {}
