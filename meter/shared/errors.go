package shared

import (
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/redis/go-redis/v9"
)

// DecisionRights are what the server must allow the user of a Store, as Rights for an
// Agent.
const DecisionRights = "~{shaper:* +evalsha +eval +time +get +set, and for sliding logs +@list +del +pexpire"

// cannotDecide says whether an error is of the server or the network as a whole, rather
// than of one key.
func cannotDecide(err error) bool {
	for _, t := range trouble {
		if redis.HasErrorPrefix(err, t.prefix) {
			return true
		}
	}
	var reply redis.Error
	return !errors.As(err, &reply)
}

// explain says which store failed, why, and what to do. go-redis's errors hold no passwords.
func (s *Store) explain(addr string, err error) error {
	if redis.HasErrorPrefix(err, "NOPERM") {
		return fmt.Errorf("store %s: %w: allow the user to decide: ACL SETUSER … %s", addr, err, DecisionRights)
	}
	var timeout net.Error
	if errors.Is(err, context.DeadlineExceeded) || errors.As(err, &timeout) && timeout.Timeout() {
		return fmt.Errorf("store %s: no answer within %v: %w", addr, s.config.Deadline, err)
	}
	return fmt.Errorf("store %s: %w", addr, explain(err))
}
