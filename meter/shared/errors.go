package shared

import (
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/redis/go-redis/v9"
)

// rights are the ACL rules needed to make decisions.
const rights = "~{shaper:* +evalsha +eval +time +get +set"

// logRights are needed for sliding logs in addition.
const logRights = "+llen +lindex +ltrim +lset +rpush +del +pexpire"

const grant = "ACL SETUSER … " + rights + ", for sliding logs also " + logRights

// cannotDecide reports whether an error concerns the server or the network, and
// not only one key or algorithm.
func cannotDecide(err error) bool {
	var reply redis.Error
	return !errors.As(err, &reply) || troubleOf(err) >= 0
}

// explain adds the server and the remedy to an error. Errors of go-redis contain no passwords.
func (s *Backend) explain(addr string, err error) error {
	var reply redis.Error
	var timeout net.Error
	if !errors.As(err, &reply) &&
		(errors.Is(err, context.DeadlineExceeded) || errors.As(err, &timeout) && timeout.Timeout()) {
		return fmt.Errorf("store %s: no answer within %v: %w", addr, s.config.Deadline, err)
	}
	return fmt.Errorf("store %s: %w", addr, explain(err, grant))
}
