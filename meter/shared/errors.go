package shared

import (
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/redis/go-redis/v9"
)

// remedies is what a server replies that cannot decide about any key, and the remedy. Where
// there is none, the server recovers by itself.
var remedies = []struct{ prefix, remedy string }{
	{"WRONGPASS", "check the user name and the password"},
	{"NOAUTH", "give the client a user name and a password"},
	{"NOPERM", "allow the user to decide: ACL SETUSER … ~{shaper:* +evalsha +eval +time +get +set, and for sliding logs +@list +del +pexpire"},
	{"OOM", "raise maxmemory of the server"},
	{"MISCONF", "free the server's disk, or see its log"},
	{"READONLY", "it is a replica: connect to the primary, or by Sentinel"},
	{"MOVED", "it is a node of a cluster: use redis.NewClusterClient"},
	{"ASK", "it is a node of a cluster: use redis.NewClusterClient"},
	{"CROSSSLOT", "it is a node of a cluster: use redis.NewClusterClient"},
	{"NOREPLICAS", "see min-replicas-to-write of the server"},
	{"ERR max number of clients", "raise maxclients of the server"},
	{"LOADING", ""},
	{"MASTERDOWN", ""},
	{"CLUSTERDOWN", ""},
	{"BUSY", ""},
}

// cannotDecide says whether an error is of the server or the network as a whole, rather
// than of one key.
func cannotDecide(err error) bool {
	for _, t := range remedies {
		if redis.HasErrorPrefix(err, t.prefix) {
			return true
		}
	}
	var reply redis.Error
	return !errors.As(err, &reply)
}

// explain says which store failed, why, and what to do. go-redis's errors hold no passwords.
func (s *Store) explain(addr string, err error) error {
	for _, t := range remedies {
		if redis.HasErrorPrefix(err, t.prefix) {
			if t.remedy == "" {
				return fmt.Errorf("store %s: %w", addr, err)
			}
			return fmt.Errorf("store %s: %w: %s", addr, err, t.remedy)
		}
	}
	var reply redis.Error
	var timeout net.Error
	switch {
	case errors.As(err, &reply):
		return fmt.Errorf("store %s: the script failed: %w", addr, err)
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return fmt.Errorf("store %s: no answer within %v: %w", addr, s.config.Deadline, err)
	}
	return fmt.Errorf("store %s: %w", addr, err)
}
