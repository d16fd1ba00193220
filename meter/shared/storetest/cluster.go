package storetest

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

const slots = 16384

// Nodes are the servers of a cluster.
type Nodes struct {
	Primaries []*Server // each with a range of slots, in order
	Replicas  []*Server // the i-th replicates primary i modulo the number of primaries

	t      testing.TB
	client *redis.ClusterClient
}

// Cluster starts a cluster of three primaries which share all slots, and a number of replicas, and
// waits until all of them agree. A node counts as down after 5 s. kind is one returned by Kinds.
func Cluster(t testing.TB, kind string, replicas int, opts ...Option) *Nodes {
	t.Helper()
	c := &Nodes{t: t}
	const primaries = 3
	for i := range primaries + replicas {
		node := start(t, kind, append(opts, Config(
			"cluster-enabled yes", "cluster-config-file nodes.conf", "cluster-node-timeout 5000",
		))...)
		if i < primaries {
			c.Primaries = append(c.Primaries, node)
		} else {
			c.Replicas = append(c.Replicas, node)
		}
	}
	for i, p := range c.Primaries {
		first, last := i*slots/primaries, (i+1)*slots/primaries-1
		c.do(p, "CLUSTER", "SET-CONFIG-EPOCH", i+1)
		c.do(p, "CLUSTER", "ADDSLOTSRANGE", first, last)
	}
	all := c.All()
	for i, a := range all {
		for _, b := range all[:i] {
			c.do(a, "CLUSTER", "MEET", "127.0.0.1", b.Port, b.bus)
		}
	}
	c.agree(len(all))
	for i, r := range c.Replicas {
		c.do(r, "CLUSTER", "REPLICATE", c.ID(c.Primaries[i%primaries]))
	}
	for i, r := range c.Replicas {
		c.Primaries[i%primaries].follows(r)
	}
	c.agree(len(all))
	return c
}

// agree waits until every node reports the cluster as ok, and knows n nodes and the same replicas.
func (c *Nodes) agree(n int) {
	c.t.Helper()
	Until(c.t, "cluster agrees", func() bool {
		for _, s := range c.All() {
			info, err := s.Client().ClusterInfo(context.Background()).Result()
			nodes, err2 := s.Client().ClusterNodes(context.Background()).Result()
			if err != nil || err2 != nil || !strings.Contains(info, "cluster_state:ok") ||
				strings.Count(nodes, " connected") != n || strings.Contains(nodes, "handshake") {
				return false
			}
			if r := strings.Count(nodes, "slave"); r != 0 && r != len(c.Replicas) {
				return false
			}
		}
		return true
	})
}

// All returns the primaries, then the replicas.
func (c *Nodes) All() []*Server {
	return append(append([]*Server(nil), c.Primaries...), c.Replicas...)
}

// Addrs returns the addresses of all nodes.
func (c *Nodes) Addrs() []string {
	var addrs []string
	for _, s := range c.All() {
		addrs = append(addrs, s.Addr)
	}
	return addrs
}

// Options returns the options of Client. go-redis notices a failover only when
// it reloads the cluster's state, by default once a minute.
func (c *Nodes) Options() *redis.ClusterOptions {
	p := c.Primaries[0]
	return &redis.ClusterOptions{
		Addrs: c.Addrs(), Password: p.options.password, TLSConfig: p.TLS(),
		ClusterStateReloadInterval: time.Second,
		ContextTimeoutEnabled:      true, DialerRetries: 1, DisableIdentity: true,
	}
}

// Client returns a client of the cluster, which is closed when the test ends.
func (c *Nodes) Client() *redis.ClusterClient {
	if c.client == nil {
		c.client = redis.NewClusterClient(c.Options())
		c.t.Cleanup(func() { _ = c.client.Close() })
	}
	return c.client
}

// ID returns the ID of a node.
func (c *Nodes) ID(s *Server) string {
	c.t.Helper()
	return fmt.Sprint(c.do(s, "CLUSTER", "MYID"))
}

// Slot returns the slot of a key.
func (c *Nodes) Slot(key string) int {
	c.t.Helper()
	for _, s := range c.All() {
		if slot, err := s.Client().ClusterKeySlot(context.Background(), key).Result(); err == nil {
			return int(slot)
		}
	}
	c.t.Fatal("no node answers")
	return 0
}

// Owner returns the primary owning a slot by its own account, and another primary.
func (c *Nodes) Owner(slot int) (owner, other *Server) {
	c.t.Helper()
	for _, s := range c.Primaries {
		if id := s.ownerOf(slot); id != "" && id == c.ID(s) {
			owner = s
		} else if id != "" {
			other = s
		}
	}
	if owner == nil {
		c.t.Fatalf("no primary owns slot %d", slot)
	}
	return owner, other
}

// Begin starts moving a slot to another primary: from then on the owner answers ASK for missing
// keys of the slot.
func (c *Nodes) Begin(slot int, to *Server) {
	c.t.Helper()
	from, _ := c.Owner(slot)
	c.do(to, "CLUSTER", "SETSLOT", slot, "IMPORTING", c.ID(from))
	c.do(from, "CLUSTER", "SETSLOT", slot, "MIGRATING", c.ID(to))
}

// Move moves a slot with its keys to another primary, with or without Begin:
// from then on the old owner answers MOVED. When Move returns, all nodes know.
func (c *Nodes) Move(slot int, to *Server) {
	c.t.Helper()
	from, _ := c.Owner(slot)
	c.Begin(slot, to)
	keys, err := from.Client().ClusterGetKeysInSlot(context.Background(), slot, 1<<20).Result()
	if err != nil {
		c.t.Fatal(err)
	}
	for _, key := range keys {
		args := []any{"MIGRATE", "127.0.0.1", to.Port, key, 0, 60_000}
		if p := to.options.password; p != "" {
			args = append(args, "AUTH", p)
		}
		c.do(from, args...)
	}
	for _, s := range []*Server{to, from} { // the new owner first: the slot is never without one
		c.do(s, "CLUSTER", "SETSLOT", slot, "NODE", c.ID(to))
	}
	Until(c.t, "all nodes know the slot's new owner", func() bool {
		for _, s := range c.All() {
			if owner := s.ownerOf(slot); owner != c.ID(to) {
				return false
			}
		}
		return true
	})
}

// ownerOf returns the ID of the primary owning a slot, as one node sees it.
func (s *Server) ownerOf(slot int) string {
	shards, _ := s.Client().ClusterShards(context.Background()).Result()
	for _, shard := range shards {
		for _, r := range shard.Slots {
			for _, n := range shard.Nodes {
				if r.Start <= int64(slot) && int64(slot) <= r.End && n.Role == "master" &&
					n.Health == "online" {
					return n.ID
				}
			}
		}
	}
	return ""
}

func (c *Nodes) do(s *Server, args ...any) any {
	c.t.Helper()
	answer, err := s.Client().Do(context.Background(), args...).Result()
	if err != nil {
		c.t.Fatalf("%v: %v", args, err)
	}
	return answer
}
