// Package storetest runs real Redis and Valkey servers for tests: on free ports of
// 127.0.0.1, in temporary directories, until the test ends. It also runs replicas,
// Sentinels and clusters, and a TCP proxy that behaves like a broken network.
//
//	storetest.Each(t, func(t *testing.T, s *storetest.Server) {
//		client := s.Client()
//		...
//	})
//
// A test without an installed server is skipped, or fails if the environment
// variable CI is set. Nothing here sleeps for a fixed time: what a function has
// started is ready when it returns. Servers die with the test process. go-redis logs
// nothing in a test that imports this package.
package storetest

import (
	"context"

	"github.com/redis/go-redis/v9"
)

func init() { redis.SetLogger(quiet{}) }

// quiet discards what go-redis logs of servers that are gone, which tests want.
type quiet struct{}

func (quiet) Printf(context.Context, string, ...any) {}
