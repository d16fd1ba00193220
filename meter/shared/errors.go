package shared

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/redis/go-redis/v9"
)

// rights are the ACL rules of a user that makes decisions.
const rights = "~{shaper:* +evalsha +eval +time +get +set"

// logRights are those that sliding logs need in addition.
const logRights = "+llen +lindex +ltrim +lset +rpush +del +pexpire"

const grant = "ACL SETUSER … " + rights + ", for sliding logs also " + logRights

// remedies lists the error replies of a server that cannot decide about any key, each with its
// remedy. Without a remedy, the server recovers on its own.
var remedies = []struct{ prefix, remedy string }{
	{"WRONGPASS", "check the user name and the password"},
	{"NOAUTH", "give the client a user name and a password"},
	{"NOPERM", grant},
	{"OOM", "raise maxmemory of the server"},
	{"MISCONF", "see the log of the server: it cannot save its data"},
	{"READONLY", "connect to the primary, or through Sentinel; this is a replica"},
	{"MOVED", "use redis.NewClusterClient; this is a node of a cluster"},
	{"ASK", "use redis.NewClusterClient; this is a node of a cluster"},
	{"CROSSSLOT", "use redis.NewClusterClient; this is a node of a cluster"},
	{"NOREPLICAS", "see min-replicas-to-write of the server"},
	{"ERR max number of clients", "raise maxclients of the server"},
	{"LOADING", ""},
	{"MASTERDOWN", ""},
	{"CLUSTERDOWN", ""},
	{"BUSY", ""},
}

// cannotDecide reports whether an error concerns the server or the network, rather than one
// key or algorithm.
func cannotDecide(err error) bool {
	for _, t := range remedies {
		if redis.HasErrorPrefix(err, t.prefix) {
			return true
		}
	}
	var reply redis.Error
	return !errors.As(err, &reply)
}

// explain adds the server and the remedy to an error. Errors of go-redis contain no passwords.
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
	case errors.As(err, &reply) && (strings.Contains(reply.Error(), "user executing the script") || strings.Contains(reply.Error(), "ACL failure")):
		return fmt.Errorf("store %s: the script failed: %w: %s", addr, err, grant)
	case errors.As(err, &reply):
		return fmt.Errorf("store %s: the script failed: %w", addr, err)
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return fmt.Errorf("store %s: no answer within %v: %w", addr, s.config.Deadline, err)
	}
	return fmt.Errorf("store %s: %w", addr, err)
}
