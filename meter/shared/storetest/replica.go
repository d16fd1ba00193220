package storetest

import (
	"context"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// Replica starts a replica of a primary, of the same kind and with the same password, and waits
// until it holds the primary's data. It is read-only.
func Replica(t testing.TB, primary *Server, opts ...Option) *Server {
	t.Helper()
	opts = append(primary.inherit(),
		append(opts, Config(fmt.Sprintf("replicaof 127.0.0.1 %d", primary.Port)))...)
	r := start(t, primary.Kind, opts...)
	primary.follows(r)
	return r
}

// follows waits until a replica holds the data of its primary and receives all further writes.
func (s *Server) follows(r *Server) {
	s.t.Helper()
	Until(s.t, "replica is up", func() bool { return r.Info("replication", "master_link_status") == "up" })
	Until(s.t, "replica is online", func() bool {
		for i := range 10 {
			line := s.Info("replication", fmt.Sprint("slave", i))
			if strings.Contains(line, fmt.Sprintf("port=%d,", r.Port)) &&
				strings.Contains(line, "state=online") {
				return true
			}
		}
		return false
	})
}

// inherit returns the options common to a replica and its primary.
func (s *Server) inherit() []Option {
	opts := []Option{Password(s.options.password)}
	if s.certs != nil {
		opts = append(opts, TLS())
	}
	return opts
}

// Role returns "master" or "slave", or "" if the server does not answer.
func (s *Server) Role() string { return s.Info("replication", "role") }

// Sentinels watch one primary.
type Sentinels struct {
	Name    string // name of the primary
	Servers []*Server

	t       testing.TB
	primary *Server
}

// Sentinel starts n Sentinels to watch a primary, and waits until all of them know each other and
// the primary's replicas. They consider a primary down after 5 s, and fail over if more than half
// of them agree. Start the replicas first.
func Sentinel(t testing.TB, primary *Server, n int) *Sentinels {
	t.Helper()
	w := &Sentinels{Name: "shaper", t: t, primary: primary}
	lines := []string{
		fmt.Sprintf("sentinel monitor %s 127.0.0.1 %d %d", w.Name, primary.Port, n/2+1),
		fmt.Sprintf("sentinel down-after-milliseconds %s 5000", w.Name),
		fmt.Sprintf("sentinel failover-timeout %s 3000", w.Name),
	}
	if p := primary.options.password; p != "" {
		lines = append(lines, fmt.Sprintf("sentinel auth-pass %s %s", w.Name, p))
	}
	for range n {
		w.Servers = append(w.Servers, startSentinel(t, primary.Kind, lines))
	}
	replicas := primary.Info("replication", "connected_slaves")
	Until(t, "Sentinels know each other and the replicas", func() bool {
		for _, s := range w.Servers {
			m, err := s.master(w.Name)
			if err != nil || m["num-other-sentinels"] != fmt.Sprint(n-1) || m["num-slaves"] != replicas ||
				m["flags"] != "master" {
				return false
			}
		}
		return true
	})
	return w
}

func startSentinel(t testing.TB, kind string, lines []string) *Server {
	t.Helper()
	return start(t, kind, func(o *options) { o.sentinel = true }, Config(lines...))
}

// master returns a Sentinel's view of a primary.
func (s *Server) master(name string) (map[string]string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	client := redis.NewSentinelClient(s.Options())
	defer func() { _ = client.Close() }()
	return client.Master(ctx, name).Result()
}

// Addrs returns the addresses of the Sentinels.
func (w *Sentinels) Addrs() []string {
	var addrs []string
	for _, s := range w.Servers {
		addrs = append(addrs, s.Addr)
	}
	return addrs
}

// Options returns the options for a client to ask the Sentinels for the primary.
func (w *Sentinels) Options() *redis.FailoverOptions {
	return &redis.FailoverOptions{
		MasterName: w.Name, SentinelAddrs: w.Addrs(), Password: w.primary.options.password,
		TLSConfig: w.primary.TLS(), ContextTimeoutEnabled: true, DialerRetries: 1, DisableIdentity: true,
	}
}

// Primary returns the address of the primary according to more than half of the
// Sentinels, or "" if they do not agree.
func (w *Sentinels) Primary() string {
	votes := map[string]int{}
	for _, s := range w.Servers {
		if m, err := s.master(w.Name); err == nil {
			votes[net.JoinHostPort(m["ip"], m["port"])]++
		}
	}
	for addr, n := range votes {
		if n > len(w.Servers)/2 {
			return addr
		}
	}
	return ""
}

// Failover waits until the Sentinels have replaced old.
func (w *Sentinels) Failover(old *Server) {
	w.t.Helper()
	Until(w.t, "Sentinels fail over", func() bool {
		addr := w.Primary()
		return addr != "" && addr != old.Addr
	})
}
